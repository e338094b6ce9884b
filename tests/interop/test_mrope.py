"""Positions of several rows. M-RoPE with a table that the client has, as vLLM's
models do: each section of the pairs reads its own row of a cos_sin_cache, by
the expressions of vLLM's forward_native, in float32. And images, whose sections
have frequencies of their own."""

import json

import numpy as np
import pytest
import requests
import safetensors.numpy

from test_safetensors import call, load

N_TOKENS, N_ROWS = 11, 512


def cache(r, theta=1e6):
    frequency = np.float32(1) / np.power(np.float32(theta), np.arange(0, r, 2, dtype=np.float32) / np.float32(r))
    angle = np.arange(N_ROWS, dtype=np.float32)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


def blocks(x, section):
    """x [rows, n, r/2]: section i is that of row i."""
    parts = np.split(x, np.cumsum(section)[:-1], axis=-1)
    return np.concatenate([part[i] for i, part in enumerate(parts)], axis=-1)


def interleaved(x, section):
    pair = np.arange(x.shape[-1])
    out = np.where((pair % 3 == 1) & (pair < 3 * section[1]), x[1], x[0])
    return np.where((pair % 3 == 2) & (pair < 3 * section[2]), x[2], out)


def rotated(x, cos, sin, style):
    r = 2 * cos.shape[-1]
    first, second = (slice(0, r // 2), slice(r // 2, r)) if style == "neox" else (slice(0, r, 2), slice(1, r, 2))
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos[:, None] - b * sin[:, None]
    out[..., second] = b * cos[:, None] + a * sin[:, None]
    return out


# Qwen2-VL, Qwen3-VL, Qwen3.5, HunYuan-VL (four rows)
MODELS = [
    ((16, 24, 24), False, 128, 128),
    ((24, 20, 20), True, 128, 128),
    ((11, 11, 10), True, 256, 64),
    ((16, 16, 16, 16), False, 128, 128),
]


def tensors_of(rng, section, d):
    q, k = (rng.standard_normal((N_TOKENS, heads, d), np.float32) for heads in (4, 2))
    return q, k, rng.integers(0, N_ROWS, (len(section), N_TOKENS))


def expected(x, table, positions, section, is_interleaved, style):
    cos, sin = np.split(table[positions], 2, axis=-1)
    chosen = interleaved if is_interleaved else blocks
    return rotated(x, chosen(cos, section), chosen(sin, section), style)


def close(found, wanted):
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("section, is_interleaved, d, r", MODELS)
def test_cache(address, rng, section, is_interleaved, d, r, style):
    q, k, positions = tensors_of(rng, section, d)
    table = cache(r)
    params = {"mrope_section": ",".join(map(str, section)), "style": style, "rotary_dim": r}
    params["mrope_interleaved"] = str(is_interleaved).lower()
    tensors = {"q": q, "k": k, "positions": positions, "cos_sin_cache": table}
    out = load(call(address, "rope", tensors, **params))
    for name, x in (("q", q), ("k", k)):
        close(out[name], expected(x, table, positions, section, is_interleaved, style))


def test_rows_in_another_order(address, rng):
    q, k, positions = tensors_of(rng, (32, 32), 128)
    table = cache(128)
    tensors = {"q": q, "k": k, "positions": positions, "cos_sin_cache": table}
    out = load(call(address, "rope", tensors, mrope_section="32,32", mrope_axes="1,0"))
    close(out["q"], expected(q, table, positions[::-1], (32, 32), False, "neox"))


def test_named_table(address, rng):
    """The call's sections beside a table without; a table's own cannot be changed."""
    section, tables = (16, 24, 24), f"http://{address}/v1/tables"
    q, k, positions = tensors_of(rng, section, 128)
    body = {"theta": 1e6, "head_dim": 128, "rotary_dim": 128}
    own = {**body, "mrope_section": section}
    for name, json_body in (("plain", body), ("own", own)):
        assert requests.put(f"{tables}/{name}", data=json.dumps(json_body)).status_code == 201
    tensors = {"q": q, "k": k, "positions": positions}
    params = {"mrope_section": "16,24,24"}
    inlined = load(call(address, "rope", tensors, theta=1e6, **params))
    beside = load(call(address, "rope", tensors, table="plain", **params))
    within = load(call(address, "rope", tensors, table="own"))
    for out in (beside, within):
        assert np.array_equal(out["q"], inlined["q"]) and np.array_equal(out["k"], inlined["k"])
    refused = requests.post(
        f"http://{address}/v1/rope?table=own&mrope_section=24,24,16", data=safetensors.numpy.save(tensors)
    )
    assert refused.status_code == 400 and "'mrope_section'" in refused.json()["error"]
    for name in ("plain", "own"):
        requests.delete(f"{tables}/{name}")


# ----------------------------------------------------------------------- images


def angles_of_images(d, side, theta=10000.0):
    """[side, d/4] for one axis."""
    width = d // 2
    frequency = 1 / np.power(np.float32(theta), np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
    return np.arange(side, dtype=np.float32)[:, None] * frequency.astype(np.float32)


def test_llama_4(address, rng):
    """vLLM's mllama4: x, then y, each from 1 on, and a class token that does not rotate."""
    side, d = 6, 88
    angle = angles_of_images(d, side + 1)
    x, y = np.arange(side * side) % side + 1, np.arange(side * side) // side + 1
    positions = np.concatenate([[x, y], [[0], [0]]], axis=1)
    q = rng.standard_normal((side * side + 1, 3, d), np.float32)
    angle = np.concatenate([angle[positions[0]], angle[positions[1]]], axis=-1)
    turned = q.view(np.complex64) * np.exp(1j * angle.astype(np.float64))[:, None].astype(np.complex64)
    params = {"scaling": "axial", "mrope_section": f"{d // 4},{d // 4}", "style": "gptj"}
    out = load(call(address, "rope", {"q": q, "positions": positions}, **params))
    close(out["q"], turned.view(np.float32))


def test_gemma_4(address, rng):
    """Each half of a head rotates by itself: a call for each."""
    d, positions = 64, rng.integers(0, 48, (2, N_TOKENS))
    q = rng.standard_normal((N_TOKENS, 3, d), np.float32)
    angle, out = angles_of_images(d, 48, theta=100.0), q
    for row, first in zip(positions, (0, d // 2)):
        params = {"theta": 100, "rotary_dim": d // 2, "rotary_offset": first}
        out = load(call(address, "rope", {"q": out, "positions": row}, **params))["q"]
    halves = (
        rotated(part, np.cos(angle[row]), np.sin(angle[row]), "neox")
        for part, row in zip(np.split(q, 2, axis=-1), positions)
    )
    close(out, np.concatenate(list(halves), axis=-1))
