"""Status and phrase of each refusal, as existing tests and clients match
them. Every body is {"error": text, "code": code}."""

import json

import numpy as np
import pytest
import requests


def x_input(**changes):
    return {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]} | changes


def infer(address, body, model="rmsnorm", data=b"", **headers):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    if data:
        headers.setdefault("Inference-Header-Content-Length", str(len(text)))
    return requests.post(f"http://{address}/v2/models/{model}/infer", data=text + data, headers=headers)


def binary(size, **changes):
    return {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": size}} | changes


PARSE = "failed to parse the request JSON buffer: "
ONE_OF = "Input must set only one of the following fields: "

CASES = [
    (b"", "invalid", PARSE),
    (b"{", "invalid", PARSE),
    (b"not JSON", "invalid", PARSE),
    (b"[" * 200 + b"]" * 200, "invalid", PARSE),
    ({}, "invalid", "Unable to parse 'inputs'"),
    ({"inputs": 1}, "invalid", "Unable to parse 'inputs'"),
    ({"inputs": []}, "invalid", "but got 0 inputs for model 'rmsnorm'. Got input(s) [], but missing required input(s) ['x']. Please provide all required input(s)."),
    ({"inputs": [x_input(datatype="INT32")]}, "bad_type", "inference input 'x' data-type is 'INT32', but model 'rmsnorm' expects '"),
    ({"inputs": [x_input(datatype="FLOAT")]}, "bad_type", "invalid datatype for input x"),
    ({"inputs": [x_input(shape=[1, -4])]}, "bad_shape", "dim 1 is -4"),
    ({"inputs": [x_input(shape=[2**40, 2**40])]}, "bad_shape", "causes total element count to exceed maximum size of"),
    ({"inputs": [x_input(shape=[2**31, 2**31])]}, "bad_shape", "byte size overflow for input"),
    ({"inputs": [x_input(shape=[1, 5])]}, "bad_shape", "Shape does not match true shape of 'data' field"),
    ({"inputs": [x_input(shape=[1, 3])]}, "bad_shape", "Shape does not match true shape of 'data' field"),
    ({"inputs": [x_input(datatype="FP16")]}, "invalid", "receiving FP16 data via JSON is not supported"),
    ({"inputs": [x_input(datatype="BF16")]}, "invalid", "receiving BF16 data via JSON is not supported"),
    ({"inputs": [x_input(data=None)]}, "invalid", "'data' is null"),
    ({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32"}]}, "invalid", ONE_OF),
    ({"inputs": [x_input(parameters={"binary_data_size": 16})]}, "invalid", ONE_OF),
    ({"inputs": [x_input(), x_input()]}, "invalid", "input 'x' already exists in request"),
    ({"inputs": [x_input(), x_input(name="other")]}, "unknown_name", "unexpected inference input 'other' for model 'rmsnorm', expected x, weight"),
    ({"inputs": [x_input()], "outputs": [{"name": "other"}]}, "unknown_name", "unexpected inference output 'other' for model 'rmsnorm'"),
    ({"inputs": [x_input()], "outputs": [{"name": "y"}, {"name": "y"}]}, "invalid", "output 'y' already exists in request"),
    ({"inputs": [x_input()], "parameters": {"triton_enable_empty_final_response": True}}, "bad_parameter", "reserved"),
    ({"inputs": [x_input()], "parameters": {"sequence_id": 1}}, "bad_parameter", "sequence_id"),
    ({"inputs": [x_input()], "parameters": {"timeout": -1}}, "bad_parameter", "timeout"),
    ({"inputs": [x_input()], "parameters": {"priority": "high"}}, "bad_parameter", "priority"),
    ({"inputs": [x_input()], "parameters": {"eps": "small"}}, "bad_parameter", "eps"),
    ({"inputs": [x_input()], "parameters": {"epsilon": 1e-6}}, "unknown_name", "epsilon"),
]


@pytest.mark.parametrize("body, code, phrase", CASES)
def test_phrases(address, body, code, phrase):
    response = infer(address, body)
    assert (response.status_code, response.json()["code"]) == (400, code), response.text
    assert response.headers["Content-Type"] == "application/json"
    assert phrase in response.json()["error"]


@pytest.mark.parametrize(
    "body, data, phrase",
    [
        ({"inputs": [binary(12)]}, bytes(12), "input byte size mismatch for input 'x' for model 'rmsnorm'. Expected 16, got 12"),
        ({"inputs": [binary(16)]}, bytes(10), "unexpected size for input 'x', expecting 6 additional bytes for model 'rmsnorm'"),
        ({"inputs": [binary(16)]}, bytes(20), "unexpected additional input data for model 'rmsnorm'"),
    ],
)
def test_phrases_of_binary_data(address, body, data, phrase):
    response = infer(address, body, data=data)
    assert response.status_code == 400
    assert phrase in response.json()["error"]


@pytest.mark.parametrize(
    "length, phrase",
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("-1", "Inference-Header-Content-Length"),
        ("100000", "inference header size should be in range (0, "),
    ],
)
def test_json_length(address, length, phrase):
    response = infer(address, {"inputs": [x_input()]}, **{"Inference-Header-Content-Length": length})
    assert response.status_code == 400
    assert phrase in response.json()["error"]


def test_unknown_models(address):
    body = {"inputs": [x_input()]}
    response = infer(address, body, model="none")
    assert (response.status_code, response.json()["error"]) == (404, "Request for unknown model: 'none' is not found")
    response = infer(address, body, model="rope/versions/9")
    assert (response.status_code, response.json()["error"]) == (404, "Request for unknown model: 'rope' version 9 is not found")


def test_unknown_paths_and_methods(address):
    response = requests.get(f"http://{address}/v2/nothing")
    assert (response.status_code, response.json()["code"]) == (404, "no_route")
    assert response.json()["error"].startswith("no route 'GET /v2/nothing'")
    response = requests.get(f"http://{address}/v2/models/rope/infer")
    assert (response.status_code, response.json()["code"]) == (405, "wrong_method")
    assert response.json()["error"].endswith("the method is wrong, expected POST")
    assert response.headers["Allow"] == "POST"


def test_bfloat16_answer_as_json(address):
    body = {"inputs": [binary(8, datatype="BF16")], "outputs": [{"name": "y"}]}
    response = infer(address, body, data=np.zeros(4, np.uint16).tobytes())
    assert response.status_code == 400
    assert "sending BF16 data via JSON is not supported" in response.json()["error"]


def test_connection_survives_every_refusal(address):
    with requests.Session() as session:
        for body, _, _ in CASES:
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            assert session.post(f"http://{address}/v2/models/rmsnorm/infer", data=text).status_code == 400
            assert session.get(f"http://{address}/v2/health/live").status_code == 200
