"""tritonclient.http, unmodified, runs programs: they are models."""

import json

import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from reference import assert_close, rmsnorm
from test_infer import rows, tensor, wanted

NORMS = {
    "inputs": ["x", "residual"],
    "parameters": {"eps": 1e-5},
    "steps": [
        {"op": "add_rmsnorm", "in": {"x": "x", "residual": "residual"}, "out": {"y": "h", "residual": "sum"},
         "params": {"eps": "$eps"}},
        {"op": "rmsnorm", "in": {"x": "h"}, "out": {"y": "y"}},
    ],
    "outputs": ["y", "sum"],
}
TYPED = {
    "inputs": [{"name": "x", "dtype": "BF16", "shape": ["rows", 128]}],
    "steps": [
        {"op": "rmsnorm", "in": {"x": "x"}, "out": {"y": "h"}},
        {"op": "rmsnorm_quantize", "in": {"x": "h"}, "out": {"y": "codes", "scales": "scales"}, "params": {"dynamic": True}},
    ],
    "outputs": ["h", "codes", "scales"],
}


@pytest.fixture(autouse=True)
def programs(address):
    """The documents above as programs, until the test ends."""
    paths = {f"http://{address}/v1/programs/{name}": document for name, document in [("norms", NORMS), ("typed", TYPED)]}
    for path, document in paths.items():
        requests.put(path, data=json.dumps(document)).raise_for_status()
    yield
    for path in paths:
        requests.delete(path)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_a_run(client, rng, binary_in, binary_out):
    x, residual = rows(rng, 3, 64), rows(rng, 3, 64)
    result = client.infer(
        "norms", [tensor("x", x, binary_in), tensor("residual", residual, binary_in)],
        outputs=[wanted("sum", binary_out), wanted("y", binary_out)], parameters={"eps": 0.5}, request_id="one",
    )
    response = result.get_response()
    assert (response["model_name"], response["id"]) == ("norms", "one")
    assert [output["name"] for output in response["outputs"]] == ["sum", "y"]
    np.testing.assert_array_equal(result.as_numpy("sum"), x + residual)
    assert_close(result.as_numpy("y"), rmsnorm(rmsnorm(x + residual, eps=0.5)))


def test_it_gives_the_bits_of_calls(client, rng):
    x = rows(rng, 5, 128).astype(ml_dtypes.bfloat16)
    ran = client.infer("typed", [tensor("x", x)])
    h = client.infer("rmsnorm", [tensor("x", x)]).as_numpy("y")
    called = client.infer("rmsnorm_quantize", [tensor("x", h)], parameters={"dynamic": True})
    assert ran.as_numpy("h").tobytes() == h.tobytes()
    assert ran.as_numpy("codes").tobytes() == called.as_numpy("y").tobytes()
    assert ran.as_numpy("scales").tobytes() == called.as_numpy("scales").tobytes()
    assert ran.get_output("codes")["parameters"]["content_datatype"] == "F8_E4M3"


def test_metadata_and_config(client):
    assert client.is_model_ready("typed") and client.is_model_ready("norms", "1")
    metadata = client.get_model_metadata("typed")
    assert [(one["name"], one["datatype"], one["shape"]) for one in metadata["inputs"]] == [("x", "BF16", [-1, 128])]
    outputs = {one["name"]: one for one in metadata["outputs"]}
    assert (outputs["h"]["datatype"], outputs["h"]["shape"]) == ("BF16", [-1, 128])
    assert (outputs["codes"]["datatype"], outputs["codes"]["shape"]) == ("UINT8", [-1, 128])
    assert outputs["codes"]["parameters"]["content_datatype"] == "F8_E4M3"
    config = client.get_model_config("typed")
    assert config["input"][0]["data_type"] == "TYPE_BF16" and config["max_batch_size"] == 0
    assert [one["name"] for one in config["output"]] == ["h", "codes", "scales"]
    assert "norms" in [model["name"] for model in client.get_model_repository_index()]
    client.load_model("norms")


def test_statistics(client, rng):
    inputs = [tensor("x", rows(rng)), tensor("residual", rows(rng))]
    for _ in range(3):
        client.infer("norms", inputs)
    with pytest.raises(InferenceServerException):
        client.infer("norms", inputs[:1])
    counted = client.get_inference_statistics("norms")["model_stats"]
    assert len(counted) == 1
    assert counted[0]["inference_count"] == 3
    assert counted[0]["inference_stats"]["fail"]["count"] == 1
    everything = client.get_inference_statistics()["model_stats"]
    assert {one["name"]: one for one in everything}["norms"]["execution_count"] == 3


@pytest.mark.parametrize("model, names, more, why", [
    ("norms", ["x"], {}, r"expected 2 inputs but got 1 inputs for model 'norms'.*missing required input\(s\) \['residual'\]"),
    ("norms", ["x", "residual", "z"], {}, "unexpected inference input 'z' for model 'norms', expected x, residual"),
    ("norms", ["x", "residual"], {"outputs": ["h"]}, "unexpected inference output 'h' for model 'norms'"),
    ("norms", ["x", "residual"], {"parameters": {"epsilon": 1}}, "unknown parameter 'epsilon'"),
    ("norms", ["x", "residual"], {"parameters": {"eps": -1}}, r"step 1 \(add_rmsnorm\): "),
    ("typed", ["x"], {}, "inference input 'x' data-type is 'FP32', but model 'typed' expects 'BF16'"),
    ("nonorms", ["x"], {}, "Request for unknown model: 'nonorms' is not found"),
])
def test_errors(client, rng, model, names, more, why):
    if "outputs" in more:
        more = {"outputs": [wanted(name) for name in more["outputs"]]}
    with pytest.raises(InferenceServerException, match=why):
        client.infer(model, [tensor(name, rows(rng)) for name in names], **more)


def test_shapes_that_do_not_fit_name_the_step(client, rng):
    with pytest.raises(InferenceServerException, match=r"step 1 \(add_rmsnorm\): tensor 'residual': "):
        client.infer("norms", [tensor("x", rows(rng, 2, 8)), tensor("residual", rows(rng, 3, 8))])


def test_a_program_that_is_forgotten_is_no_model(client, address, rng):
    requests.delete(f"http://{address}/v1/programs/norms").raise_for_status()
    assert not client.is_model_ready("norms")
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'norms' is not found"):
        client.infer("norms", [tensor("x", rows(rng)), tensor("residual", rows(rng))])


def test_async_runs(address, rng):
    with triton.InferenceServerClient(address, concurrency=4) as client:
        x = [rows(rng, 4, 64) for _ in range(16)]
        running = [client.async_infer("norms", [tensor("x", one), tensor("residual", one)]) for one in x]
        for one, future in zip(x, running):
            np.testing.assert_array_equal(future.get_result().as_numpy("sum"), one + one)
