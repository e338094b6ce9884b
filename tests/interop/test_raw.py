"""Bodies that are not JSON and tensors with a Content-Length: one raw tensor,
chunks, and more than 2 GiB."""

import http.client
import json

import numpy as np
import pytest
import requests

from reference import assert_close, rmsnorm, rope
from test_infer import POSITIONS, heads, rows

RAW = {"Inference-Header-Content-Length": "0"}


def outputs(response):
    """Names to float32 arrays of an answer that is JSON, then binary."""
    assert response.status_code == 200, response.text
    json_bytes = int(response.headers["Inference-Header-Content-Length"])
    at, found = json_bytes, {}
    for output in json.loads(response.content[:json_bytes])["outputs"]:
        n = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(response.content[at : at + n], np.float32).reshape(output["shape"])
        at += n
    assert at == len(response.content)
    return found


@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "application/x-www-form-urlencoded"])
def test_raw_tensor(address, rng, content_type):
    x = rows(rng, 1, 64)[0]
    headers = RAW | ({"Content-Type": content_type} if content_type else {})
    response = requests.post(f"http://{address}/v2/models/rmsnorm/infer", data=x.tobytes(), headers=headers)
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert_close(outputs(response)["y"], rmsnorm(x))


def test_raw_tensor_in_chunks(address, rng):
    x = rows(rng, 1, 4096)[0]
    pieces = (x.tobytes()[i : i + 1000] for i in range(0, x.nbytes, 1000))
    response = requests.post(f"http://{address}/v2/models/rmsnorm/infer", data=pieces, headers=RAW)
    assert_close(outputs(response)["y"], rmsnorm(x))


@pytest.mark.parametrize(
    "model, size, phrase",
    [
        ("rmsnorm", 7, "input byte size mismatch for input 'x'"),
        ("rope", 64, "The shape of the raw input 'q' can not be deduced because there are more than one variable-sized dimension"),
        ("rope_quantize", 64, "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in"),
    ],
)
def test_raw_tensor_that_says_too_little(address, model, size, phrase):
    response = requests.post(f"http://{address}/v2/models/{model}/infer", data=bytes(size), headers=RAW)
    assert response.status_code == 400
    assert phrase in response.json()["error"]


def test_raw_tensor_without_its_header(address):
    response = requests.post(
        f"http://{address}/v2/models/rmsnorm/infer", data=bytes(64), headers={"Content-Type": "application/octet-stream"}
    )
    assert response.status_code == 400
    assert "'Inference-Header-Content-Length: 0'" in response.json()["error"]


@pytest.mark.parametrize("chunk", [1, 100, 1 << 16])
def test_json_and_binary_in_chunks(address, rng, chunk):
    q = heads(rng)
    text = json.dumps(
        {
            "inputs": [
                {"name": "q", "shape": q.shape, "datatype": "FP32", "parameters": {"binary_data_size": q.nbytes}},
                {"name": "positions", "shape": [len(POSITIONS)], "datatype": "INT32", "data": POSITIONS.tolist()},
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = text + q.tobytes()
    pieces = (body[i : i + chunk] for i in range(0, len(body), chunk))
    response = requests.post(
        f"http://{address}/v2/models/rope/infer", data=pieces, headers={"Inference-Header-Content-Length": str(len(text))}
    )
    assert_close(outputs(response)["q"], rope(q, POSITIONS))


LARGE = (1 << 31) + (1 << 20)


def available_bytes():
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


@pytest.mark.skipif(available_bytes() < 7 << 30, reason="too little memory for two bodies over 2 GiB")
def test_more_than_2_gib_both_ways(demo_address):
    """Lengths beyond 31 bits; the answer is chunked, because clients read
    Content-Length into an int."""
    piece = np.arange(1 << 18, dtype=np.float32).tobytes()
    assert LARGE % len(piece) == 0
    connection = http.client.HTTPConnection(demo_address, timeout=300)
    connection.putrequest("POST", "/v2/models/identity_fp32/infer")
    connection.putheader("Content-Length", str(LARGE))
    connection.putheader("Inference-Header-Content-Length", "0")
    connection.endheaders()
    for _ in range(LARGE // len(piece)):
        connection.send(piece)
    response = connection.getresponse()
    assert response.status == 200
    assert response.getheader("Content-Length") is None
    text = json.loads(response.read(int(response.getheader("Inference-Header-Content-Length"))))
    assert text["outputs"][0]["shape"] == [LARGE // 4]
    assert text["outputs"][0]["parameters"]["binary_data_size"] == LARGE
    for _ in range(LARGE // len(piece)):
        assert response.read(len(piece)) == piece
    assert response.read() == b""
    connection.close()
