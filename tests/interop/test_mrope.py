"""M-RoPE with a table that the client has, as vLLM's models do: positions
[rows, n], and each section of the pairs reads its own row of a cos_sin_cache.
The expressions are those of vLLM's forward_native, in float32."""

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
