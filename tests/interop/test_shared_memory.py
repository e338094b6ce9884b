"""tritonclient with system shared memory, against a daemon with
--allow_client_shm; the order of calls is that of the vendor's example."""

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from reference import assert_close, rmsnorm
from test_infer import rows, tensor


@pytest.fixture
def client(demo_address):
    with triton.InferenceServerClient(demo_address) as client:
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        yield client
        client.unregister_system_shared_memory()


@pytest.fixture
def region(client, request):
    """A function that makes a region of the client and registers it."""
    handles = []

    def make(name, size):
        key = f"/roped_interop_{name}"
        handles.append(shm.create_shared_memory_region(name, key, size))
        client.register_system_shared_memory(name, key, size)
        return handles[-1]

    yield make
    client.unregister_system_shared_memory()
    for handle in handles:
        shm.destroy_shared_memory_region(handle)


def shared_input(name, shape, datatype, region, size, offset=0):
    value = triton.InferInput(name, shape, datatype)
    value.set_shared_memory(region, size, offset)
    return value


def shared_output(name, region, size, offset=0):
    value = triton.InferRequestedOutput(name, binary_data=True)
    value.set_shared_memory(region, size, offset)
    return value


def test_extensions(client, address):
    assert {"system_shared_memory", "cuda_shared_memory"} <= set(client.get_server_metadata()["extensions"])
    with triton.InferenceServerClient(address) as plain:
        assert plain.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
            plain.register_system_shared_memory("x", "/x", 64)


def test_status(client, region):
    region("data", 256)
    expected = {"name": "data", "key": "/roped_interop_data", "offset": 0, "byte_size": 256}
    assert client.get_system_shared_memory_status() == [expected]
    assert client.get_system_shared_memory_status("data") == [expected]
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory("data")
    client.unregister_system_shared_memory("data")  # of what is not there: no error
    assert client.get_system_shared_memory_status() == []


@pytest.mark.parametrize("model", ["simple", "rmsnorm"])
def test_both_ways(client, region, rng, model):
    if model == "simple":
        arrays = {"INPUT0": np.arange(16, dtype=np.int32).reshape(1, 16), "INPUT1": np.ones((1, 16), np.int32)}
        expected = {"OUTPUT0": arrays["INPUT0"] + 1, "OUTPUT1": arrays["INPUT0"] - 1}
    else:
        arrays = {"x": rows(rng, 1, 16), "weight": rows(rng, 1, 16)[0]}
        expected = {"y": rmsnorm(arrays["x"], arrays["weight"])}
    source, sink = region("source", 256), region("sink", 256)
    inputs, outputs, at = [], [], 0
    for name, array in arrays.items():
        shm.set_shared_memory_region(source, [array], offset=at)
        inputs.append(shared_input(name, array.shape, np_to_triton_dtype(array.dtype), "source", array.nbytes, at))
        at += array.nbytes
    outputs = [shared_output(name, "sink", 64, 64 * i) for i, name in enumerate(expected)]
    result = client.infer(model, inputs, outputs=outputs)
    for i, (name, array) in enumerate(expected.items()):
        output = result.get_output(name)
        assert "data" not in output and "parameters" not in output
        dtype = np.int32 if model == "simple" else np.float32
        found = shm.get_contents_as_numpy(sink, dtype, array.shape, offset=64 * i)
        if model == "simple":
            assert (found == array).all()
        else:
            assert_close(found, array)


def test_one_input_in_memory_one_in_the_body(client, region, rng):
    x, weight = rows(rng, 4, 16), rows(rng, 1, 16)[0]
    shm.set_shared_memory_region(region("weights", 64), [weight])
    inputs = [tensor("x", x), shared_input("weight", [16], "FP32", "weights", 64)]
    assert_close(client.infer("rmsnorm", inputs).as_numpy("y"), rmsnorm(x, weight))


@pytest.mark.parametrize(
    "region_name, size, offset, phrase",
    [
        ("none", 64, 0, "Unable to find shared memory region: 'none'"),
        ("data", 64, 512, "Invalid offset for shared memory region"),
        ("data", 64, 224, "Invalid offset \\+ byte size for shared memory region"),
        ("data", 32, 0, "input byte size mismatch|byte_size|expected"),
    ],
)
def test_phrases(client, region, region_name, size, offset, phrase):
    region("data", 256)
    with pytest.raises(InferenceServerException, match=phrase):
        client.infer("rmsnorm", [shared_input("x", [1, 16], "FP32", region_name, size, offset)])


def test_registered_twice(client, region):
    region("data", 256)
    with pytest.raises(InferenceServerException, match="shared memory region 'data' already in manager"):
        client.register_system_shared_memory("data", "/roped_interop_data", 256)
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region: '/roped_interop_none'"):
        client.register_system_shared_memory("none", "/roped_interop_none", 256)
