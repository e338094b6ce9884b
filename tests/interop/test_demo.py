"""What the protocol's own quick start and examples do, against a daemon with
--server_name triton --demo_models true."""

import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from test_infer import tensor, wanted

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.full((1, 16), -1, np.int32)


@pytest.fixture
def client(demo_address):
    with triton.InferenceServerClient(demo_address) as client:
        yield client


def test_health_and_metadata(client):
    assert client.is_server_live(query_params={"test_1": 1, "test_2": 2})
    assert client.is_server_ready() and client.is_model_ready("simple")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("simple")["name"] == "simple"
    with pytest.raises(InferenceServerException) as error:
        client.get_model_metadata("wrong_model_name")
    assert "Request for unknown model" in error.value.message()


def test_first_input_as_json_second_as_binary(client):
    inputs = [tensor("INPUT0", A, False), tensor("INPUT1", B, True)]
    outputs = [wanted("OUTPUT0", True), wanted("OUTPUT1", False)]
    result = client.infer("simple", inputs, outputs=outputs, query_params={"test_1": 1}, headers={"test": "1"})
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
def test_without_outputs(client, request_algorithm):
    result = client.infer(
        "simple", [tensor("INPUT0", A), tensor("INPUT1", B)], request_compression_algorithm=request_algorithm
    )
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


def test_wrong_model_name(client):
    with pytest.raises(InferenceServerException) as error:
        client.infer("wrong_model_name", [tensor("INPUT0", A), tensor("INPUT1", B)])
    assert error.value.message().startswith("Request for unknown model")
    assert error.value.status() == "404"


def test_statistics(client):
    client.infer("simple", [tensor("INPUT0", A), tensor("INPUT1", B)])
    statistics = client.get_inference_statistics(model_name="simple")["model_stats"]
    assert len(statistics) == 1
    assert statistics[0]["name"] == "simple" and statistics[0]["inference_count"] > 0


def test_config_hides_the_batch(client):
    config = client.get_model_config("simple")
    assert config["max_batch_size"] == 8
    assert config["input"][0]["dims"] == [16]
    assert client.get_model_metadata("simple")["inputs"][0]["shape"] == [-1, 16]


def test_batches(client):
    a, b = np.repeat(A, 8, 0), np.repeat(B, 8, 0)
    result = client.infer("simple", [tensor("INPUT0", a), tensor("INPUT1", b)])
    assert (result.as_numpy("OUTPUT0") == a + b).all()
    a, b = np.repeat(A, 9, 0), np.repeat(B, 9, 0)
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8 for 'simple'"):
        client.infer("simple", [tensor("INPUT0", a), tensor("INPUT1", b)])


def test_shape_and_datatype(client):
    with pytest.raises(InferenceServerException, match="inference input 'INPUT1' data-type is 'FP32', but model 'simple' expects 'INT32'"):
        client.infer("simple", [tensor("INPUT0", A), tensor("INPUT1", B.astype(np.float32))])
    with pytest.raises(InferenceServerException, match="INPUT0"):
        client.infer("simple", [tensor("INPUT0", A[:, :8].copy()), tensor("INPUT1", B[:, :8].copy())])
    with pytest.raises(InferenceServerException, match="but missing required input\\(s\\) \\['INPUT1'\\]"):
        client.infer("simple", [tensor("INPUT0", A)])


def test_repository(client):
    assert {"simple", "identity_fp32", "rope"} <= {model["name"] for model in client.get_model_repository_index()}
    client.load_model("simple")
    assert client.is_model_ready("simple")


def test_demos_are_not_operators(demo_address, address):
    assert requests.get(f"http://{demo_address}/v1/simple").status_code == 404
    assert requests.get(f"http://{address}/v2/models/simple").status_code == 404


@pytest.mark.parametrize("chunked", [False, True])
def test_raw_identity(demo_address, rng, chunked):
    x = rng.standard_normal(100_000, dtype=np.float32).tobytes()
    pieces = (x[i : i + 10_000] for i in range(0, len(x), 10_000))
    response = requests.post(
        f"http://{demo_address}/v2/models/identity_fp32/infer",
        data=pieces if chunked else x,
        headers={"Inference-Header-Content-Length": "0"},
    )
    assert response.content[int(response.headers["Inference-Header-Content-Length"]) :] == x


def test_raw_request_of_two_inputs(demo_address):
    response = requests.post(
        f"http://{demo_address}/v2/models/simple/infer", data=bytes(128), headers={"Inference-Header-Content-Length": "0"}
    )
    assert response.status_code == 400
    expected = "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model configuration"
    assert expected in response.json()["error"]
