"""Clients that generators make of /openapi.json, with no hint besides: every
operator is a function in them, named and grouped as the document says, and a
call of one is computed."""

import importlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests
import safetensors.numpy

from reference import assert_close, rmsnorm


@pytest.fixture(scope="module")
def document(tmp_path_factory, address):
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(requests.get(f"http://{address}/openapi.json").content)
    return path


@pytest.fixture(scope="module")
def operators(address):
    names = [operator["name"] for operator in requests.get(f"http://{address}/v1").json()["operators"]]
    assert "rope" in names
    return names


def generate(folder, *arguments):
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # it looks for ruff there
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env={**os.environ, "PATH": programs}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    sys.path.insert(0, str(folder))
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def python_client(tmp_path_factory, document):
    folder = tmp_path_factory.mktemp("python_client")
    said = generate(
        folder, "-m", "openapi_python_client", "generate", "--path", document, "--meta=none", "--output-path=roped_a"
    )
    assert "will not be generated" not in said, said
    return importlib.import_module("roped_a")


@pytest.fixture(scope="module")
def generator_client(tmp_path_factory, document):
    folder = tmp_path_factory.mktemp("generator_client")
    command = "-c 'from openapi_generator_cli import cli; cli()' generate -g python --package-name roped_b -o . -i"
    said = generate(folder, *shlex.split(command), document)
    assert "Renamed to auto-generated" not in said and "ERROR" not in said, said
    return importlib.import_module("roped_b")


def case(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    weight = rng.standard_normal(64).astype(np.float32)
    return x, weight, safetensors.numpy.save({"x": x, "weight": weight})


def test_openapi_python_client_has_every_operator(python_client, operators):
    for operator in operators:
        module = importlib.import_module(f"roped_a.api.operators.{operator}")
        assert callable(module.sync_detailed)


def test_openapi_python_client_warns_of_nothing(tmp_path, document):
    """With the file that client/README.md names it leaves nothing out, and says nothing."""
    config = Path(__file__).resolve().parents[2] / "client/openapi-python-client.yml"
    command = f"-m openapi_python_client generate --meta=none --output-path=roped_c --config {config} --path"
    said = generate(tmp_path, *shlex.split(command), document)
    assert "warning" not in said.lower(), said


def test_openapi_python_client_calls(python_client, address, rng):
    x, weight, body = case(rng)
    call = importlib.import_module("roped_a.api.operators.rmsnorm").sync_detailed
    with python_client.Client(base_url=f"http://{address}") as client:
        file = importlib.import_module("roped_a.types").File
        answer = call(client=client, body=file(io.BytesIO(body)), eps=1e-5)
        assert answer.status_code == 200
        y = safetensors.numpy.load(answer.content)["y"]
        assert_close(y, rmsnorm(x, weight, 1e-5))
        refused = call(client=client, body=file(io.BytesIO(body)), from_x="nowhere")
        assert refused.status_code == 404 and "nowhere" in refused.parsed.error


def test_openapi_generator_has_every_operator(generator_client, operators):
    for operator in operators:
        assert callable(getattr(generator_client.OperatorsApi, operator))


def test_openapi_generator_calls(generator_client, address, rng):
    x, weight, body = case(rng)
    settings = generator_client.Configuration(host=f"http://{address}")
    with generator_client.ApiClient(settings) as client:
        answer = generator_client.OperatorsApi(client).rmsnorm(body, eps=1e-5)
        assert_close(safetensors.numpy.load(bytes(answer))["y"], rmsnorm(x, weight, 1e-5))
        models = generator_client.ModelsApi(client)
        inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}]
        request = generator_client.InferRequest.from_dict({"inputs": inputs})
        found = models.model_infer("rmsnorm", request)
        y = np.array([found.outputs[0].data], np.float32)
        assert_close(y, rmsnorm(np.array([[3, 4]]), eps=1e-6))
