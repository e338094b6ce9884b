"""tritonclient with CUDA shared memory: this process allocates on the GPU, the
daemon opens what it allocated. Needs a daemon on a GPU (ROPED_TEST_BACKEND=cuda)
and cuda-python or cuda-bindings."""

import os

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from reference import assert_close, rmsnorm
from test_infer import rows
from test_shared_memory import shared_input, shared_output

if os.environ.get("ROPED_TEST_BACKEND") != "cuda":
    pytest.skip("no GPU: ROPED_TEST_BACKEND is not cuda", allow_module_level=True)
try:
    import tritonclient.utils.cuda_shared_memory as shm
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def client(demo_address):
    with triton.InferenceServerClient(demo_address) as client:
        client.unregister_cuda_shared_memory()
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def region(client):
    """A function that makes a region of this process and registers it."""
    handles = []

    def make(name, size):
        handles.append(shm.create_shared_memory_region(name, size, 0))
        client.register_cuda_shared_memory(name, shm.get_raw_handle(handles[-1]), 0, size)
        return handles[-1]

    yield make
    client.unregister_cuda_shared_memory()
    for handle in handles:
        shm.destroy_shared_memory_region(handle)


def test_both_ways(client, region, rng):
    x, weight = rows(rng, 64, 4096), rows(rng, 1, 4096)[0]
    source, sink = region("source", x.nbytes + weight.nbytes), region("sink", x.nbytes)
    shm.set_shared_memory_region(source, [x, weight])
    inputs = [
        shared_input("x", x.shape, "FP32", "source", x.nbytes),
        shared_input("weight", weight.shape, "FP32", "source", weight.nbytes, x.nbytes),
    ]
    for _ in range(3):
        result = client.infer("rmsnorm", inputs, outputs=[shared_output("y", "sink", x.nbytes)])
        assert "data" not in result.get_output("y")
        assert_close(shm.get_contents_as_numpy(sink, np.float32, x.shape), rmsnorm(x, weight))


def test_in_place(client, region, rng):
    x = rows(rng, 8, 256)
    memory = region("both", x.nbytes)
    shm.set_shared_memory_region(memory, [x])
    inputs = [shared_input("x", x.shape, "FP32", "both", x.nbytes)]
    client.infer("rmsnorm:x", inputs, outputs=[shared_output("y", "both", x.nbytes)])
    assert_close(shm.get_contents_as_numpy(memory, np.float32, x.shape), rmsnorm(x, np.ones(256, np.float32)))


def test_status_and_refusals(client, region):
    memory = region("data", 1024)
    assert client.get_cuda_shared_memory_status() == [{"name": "data", "device_id": 0, "byte_size": 1024}]
    with pytest.raises(InferenceServerException, match="already"):
        client.register_cuda_shared_memory("data", shm.get_raw_handle(memory), 0, 1024)
    with pytest.raises(InferenceServerException, match="device"):
        client.register_cuda_shared_memory("far", shm.get_raw_handle(memory), 99, 1024)
    inputs = [shared_input("x", [4, 128], "FP32", "data", 2048)]
    with pytest.raises(InferenceServerException):
        client.infer("rmsnorm:x", inputs)
    client.unregister_cuda_shared_memory("data")
    client.unregister_cuda_shared_memory("data")  # of what is not there: no error
    assert client.get_cuda_shared_memory_status() == []
