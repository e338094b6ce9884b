"""A daemon for all tests, and the four ways to call an operator: remote and in
process, numpy and torch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import roped
from roped import ops

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/interop"))  # reference.py


def start(folder, *flags):
    port = folder / "port"
    log = open(folder / "log", "w")
    command = [os.environ["ROPED_TEST_BIN"], "--listen", "127.0.0.1:0", "--port_file", port, "--backend", "cpu", *flags]
    process = subprocess.Popen(command, stderr=log)
    for _ in range(600):
        if port.exists() and port.read_text().strip():
            return process, f"http://127.0.0.1:{port.read_text().strip()}"
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)
    raise AssertionError("the daemon did not start")


def stop(process):
    process.terminate()
    assert process.wait(60) == 0


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    process, url = start(tmp_path_factory.mktemp("server"), "--allow_client_shm", "true")
    yield url
    stop(process)


@pytest.fixture(scope="session")
def client(server):
    with roped.Client(server) as client:
        yield client


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def to_torch(value):
    """As torch has it; numpy's own BF16 and FP8 by their bits."""
    import torch

    if not isinstance(value, np.ndarray):
        return value
    narrow = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
    bits = torch.from_numpy(np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").copy())
    return bits.view(narrow.get(value.dtype.name) or getattr(torch, value.dtype.name))


def to_numpy(value):
    import ml_dtypes
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    own = getattr(ml_dtypes, name, None) or getattr(np, name)
    return value.contiguous().view(torch.uint8).numpy().view(own).reshape(value.shape)


@pytest.fixture(params=["remote-numpy", "remote-torch", "process-numpy", "process-torch"])
def call(request, client):
    """call(OPERATOR, {tensors}, parameters): the outputs by name, numpy's."""
    where, library = request.param.split("-")
    if library == "torch":
        pytest.importorskip("torch")

    def function(op, tensors, **params):
        owner = client if where == "remote" else ops
        if library == "torch":
            tensors = {name: to_torch(tensor) for name, tensor in tensors.items()}
        result = getattr(owner, op)(**tensors, **params)
        values = result._asdict() if hasattr(result, "_asdict") else {"y": result}
        made = {name: value for name, value in values.items() if value is not None}
        if library == "torch":
            import torch

            assert all(isinstance(value, torch.Tensor) for value in made.values())
            made = {name: to_numpy(value) for name, value in made.items()}
        return made

    return function
