"""client/examples/decoder.py as it stands there: its own check against float64
must pass, and must fail where the chain is another one. And a chain of the same
calls with the v2 client, which needs nothing that it has not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.http as triton
from safetensors.numpy import load

from reference import rmsnorm, rope

SCRIPT = Path(__file__).resolve().parents[2] / "client/examples/decoder.py"


def run(path, address):
    command = [sys.executable, path, f"http://{address}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert requests.get(f"http://{address}/v1/regions").json()["used"] == 0  # it tidies up
    return result


def test_decoder(address):
    result = run(SCRIPT, address)
    assert result.returncode == 0, result.stdout + result.stderr
    words = result.stdout.splitlines()[-1].replace(",", "").split()
    sent, received, resident = (int(word) for word in words if word.isdigit())
    activations = 4 * (1024 + (16 + 8 + 8) * 128) + 4 + 4  # hidden, q, k, v, position, slot
    assert activations < sent < activations + 200
    assert 4 * 1024 < received < 4 * 1024 + 200  # the normalised row
    assert resident > 32 << 20  # the caches


@pytest.mark.parametrize(
    "part, other, wrong",
    [
        ('"theta": THETA', '"theta": 9e5', "q of the last step"),
        ('from_k_weight="k_norm"', 'from_k_weight="q_norm"', "k_cache"),
        ('from_positions="zeros", ', "", "k_cache"),  # rotated again
        ("  step(hidden, positions, slots,", "  step(hidden, positions, slots - 1,", "k_cache"),
    ],
)
def test_decoder_notices(address, tmp_path, part, other, wrong):
    text = SCRIPT.read_text()
    assert text.count(part) == 1
    if wrong == "k_cache":
        text = text.replace('check("q of the last step"', '0 and check("q of the last step"')
    (tmp_path / "decoder.py").write_text(text.replace(part, other))
    result = run(tmp_path / "decoder.py", address)
    assert result.returncode == 1
    assert f"{wrong} is WRONG" in result.stderr


HEADS, WIDTH, SLOTS = {"q": 4, "k": 2, "v": 2}, 64, 8
ROW = sum(HEADS.values()) * WIDTH


def head_of_row(kind, name):
    """Input or output that is part of the region "row": q, then k, then v."""
    first = {"q": 0, "k": 4, "v": 6}[name] * WIDTH * 4
    shape = [1, HEADS[name], WIDTH]
    tensor = triton.InferInput(name, shape, "FP32") if kind == "input" else triton.InferRequestedOutput(name)
    tensor.set_shared_memory("row", HEADS[name] * WIDTH * 4, first)
    return tensor


def in_region(name, shape, datatype="FP32"):
    tensor = triton.InferInput(name, shape, datatype)
    tensor.set_shared_memory(name, int(np.prod(shape)) * 4)
    return tensor


def test_the_v2_client_chains(client, address, rng):
    """One hidden row crosses; it stands for q, k and v, as if projected."""
    regions = {"row": [1, ROW], "k_cache": [SLOTS, 2, WIDTH], "v_cache": [SLOTS, 2, WIDTH]}
    for name, shape in regions.items():
        params = {"dtype": "F32", "shape": ",".join(map(str, shape))}
        assert requests.put(f"http://{address}/v1/regions/{name}", params=params).status_code == 201
    hidden = rng.standard_normal((1, ROW)).astype(np.float32)
    x, slots = triton.InferInput("x", hidden.shape, "FP32"), triton.InferInput("slots", [1], "INT32")
    x.set_data_from_numpy(hidden)
    slots.set_data_from_numpy(np.array([5], np.int32))
    y = triton.InferRequestedOutput("y")
    y.set_shared_memory("row", ROW * 4)
    client.infer("rmsnorm", [x], outputs=[y])
    client.infer(
        "qk_rmsnorm_rope",
        [head_of_row("input", "q"), head_of_row("input", "k")],
        outputs=[head_of_row("output", "q"), head_of_row("output", "k")],
        parameters={"theta": 1e6, "offset": 1000},
    )
    caches = [in_region(name, regions[name]) for name in ["k_cache", "v_cache"]]
    heads = [head_of_row("input", name) for name in "qkv"]
    client.infer("rope_append", [*heads, *caches, slots], outputs=[head_of_row("output", "q")])

    found = {}
    for name in regions:
        url = f"http://{address}/v1/regions/{name}"
        found[name] = load(requests.get(url).content)[name]
        assert requests.delete(url).status_code == 200
    q, k, v = np.split(rmsnorm(hidden).reshape(1, 8, WIDTH), [4, 6], axis=1)
    q, k = (rope(rmsnorm(part), np.array([1000]), theta=1e6) for part in [q, k])
    bound = 1e-5  # three calls
    assert np.abs(found["row"].reshape(8, WIDTH)[:4] - q[0]).max() < bound * np.abs(q).max()
    for name, expected in [("k_cache", k), ("v_cache", v)]:
        assert np.abs(found[name][5] - expected[0]).max() < bound * np.abs(expected).max()
        assert not np.delete(found[name], 5, axis=0).any()
