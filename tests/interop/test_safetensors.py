"""/v1 with requests and safetensors: one file there, one file back. BF16 and
FP8 are ml_dtypes, which safetensors.numpy saves and cannot load."""

import gzip
import json
import struct

import ml_dtypes
import numpy as np
import pytest
import requests
import safetensors
import safetensors.numpy

from reference import assert_close, assert_rounded_to, rmsnorm, rope
from test_infer import POSITIONS, heads, rows

DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "U8": np.uint8,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def load(data):
    found = {}
    for name, entry in safetensors.deserialize(data):
        array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]])
        found[name] = array.reshape(entry["shape"])
    return found


def metadata(data):
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n])["__metadata__"]


def call(address, op, tensors, **params):
    response = requests.post(f"http://{address}/v1/{op}", data=safetensors.numpy.save(tensors), params=params)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/x-safetensors"
    return response.content


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_rope(address, rng, dtype, style):
    q, k = heads(rng, dtype), heads(rng, dtype, n_heads=1)
    tensors = {"q": q, "k": k, "positions": POSITIONS}
    out = load(call(address, "rope", tensors, style=style, theta=500000))
    assert sorted(out) == ["k", "q"] and out["q"].dtype == dtype
    assert_close(out["q"], rope(q, POSITIONS, style, 500000.0))
    assert_close(out["k"], rope(k, POSITIONS, style, 500000.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rmsnorm(address, rng, dtype):
    x, weight = rows(rng, 7, 384).astype(dtype), rows(rng, 1, 384)[0].astype(dtype)
    out = load(call(address, "rmsnorm", {"x": x, "weight": weight}, eps=1e-5))
    assert_close(out["y"], rmsnorm(x, weight, 1e-5))


@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_rope_quantize(address, rng, format, as_bytes):
    q, k = heads(rng, ml_dtypes.bfloat16), heads(rng, ml_dtypes.bfloat16, n_heads=1)
    tensors = {"q_rope": q, "k_rope": k, "positions": POSITIONS}
    params = {"output_dtype": format, "fp8": "u8" if as_bytes else "native"}
    content = call(address, "rope_quantize", tensors, **params)
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[format]
    out = safetensors.numpy.load(content) if as_bytes else load(content)
    assert out["q_rope"].dtype == (np.uint8 if as_bytes else dtype)
    assert_rounded_to(out["q_rope"].view(dtype), rope(q, POSITIONS))
    assert_rounded_to(out["k_rope"].view(dtype), rope(k, POSITIONS))


def test_answer_is_read_by_the_reference_reader(address, rng, tmp_path):
    x = rows(rng, 3, 64)
    content = call(address, "rmsnorm", {"x": x})
    assert_close(safetensors.numpy.load(content)["y"], rmsnorm(x))
    (tmp_path / "out.safetensors").write_bytes(content)
    with safetensors.safe_open(tmp_path / "out.safetensors", framework="np") as file:
        assert list(file.keys()) == ["y"]
        assert file.metadata() == metadata(content)


def test_times_of_a_call_are_in_its_headers(address, rng):
    response = requests.post(f"http://{address}/v1/rmsnorm", data=safetensors.numpy.save({"x": rows(rng)}))
    phases = [part.split(";")[0].strip() for part in response.headers["Server-Timing"].split(",")]
    assert phases == ["receive", "queue", "plan", "h2d", "kernel", "d2h"]


@pytest.mark.parametrize(
    "tensors, params, phrase",
    [
        ({}, {}, "x"),
        ({"x": np.zeros((2, 8), np.int32)}, {}, "x"),
        ({"x": np.zeros((2, 8), np.float32), "weight": np.zeros(7, np.float32)}, {}, "dim 0 is 7, expected h = 8"),
        ({"x": np.zeros((2, 8), np.float32)}, {"eps": "small"}, "eps"),
        ({"x": np.zeros((2, 8), np.float32)}, {"epsilon": 1}, "epsilon"),
    ],
)
def test_errors_name_what_is_wrong(address, tensors, params, phrase):
    response = requests.post(f"http://{address}/v1/rmsnorm", data=safetensors.numpy.save(tensors), params=params)
    assert response.status_code == 400
    assert phrase in response.json()["error"]


@pytest.mark.parametrize("how", ["whole", "chunks", "gzip"])
def test_regions(address, rng, how):
    """Weights stay on the server; the calls that use them leave them out."""
    weight, url = rows(rng, 1, 384)[0], f"http://{address}/v1/regions/weight_{how}"
    body, headers = safetensors.numpy.save({"weight": weight}), {}
    if how == "chunks":
        body = iter([body[:100], body[100:101], body[101:]])
    elif how == "gzip":
        body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
    response = requests.put(url, data=body, headers=headers)
    assert response.status_code == 201, response.text
    x = rows(rng, 7, 384)
    out = load(call(address, "rmsnorm", {"x": x}, **{"from.weight": f"weight_{how}"}))
    assert_close(out["y"], rmsnorm(x, weight))
    assert (load(requests.get(url).content)["weight"] == weight).all()
    assert requests.delete(url).status_code == 200
