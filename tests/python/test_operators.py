"""Operators in all four ways, against numpy in float64."""

import ml_dtypes
import numpy as np
import pytest
import reference
from reference import assert_close, assert_rounded_to

from roped._operators import OPERATORS

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLOATS = [np.float32, np.float16, BF16]


@pytest.fixture
def heads(rng):
    def make(n, count, width, dtype):
        return rng.standard_normal((n, count, width)).astype(dtype)

    return make


@pytest.fixture(params=FLOATS, ids=["f32", "f16", "bf16"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_rope(call, heads, dtype, style):
    q, k, positions = heads(5, 4, 64, dtype), heads(5, 2, 64, dtype), np.array([3, 0, 900, 17, 4], np.int64)
    out = call("rope", {"q": q, "k": k, "positions": positions}, style=style, theta=5e5, rotary_dim=48)
    for name, x in {"q": q, "k": k}.items():
        assert out[name].dtype == dtype
        assert_close(out[name], reference.rope(x, positions, style, 5e5, 48))


def test_rope_of_one_tensor(call, heads):
    q = heads(3, 1, 32, np.float32)
    assert call("rope", {"q": q}, offset=7).keys() == {"q"}


@pytest.mark.parametrize("code, dtype8", [("e4m3", E4M3), ("e5m2", E5M2)])
def test_rope_quantize(call, heads, code, dtype8):
    q, k, nope = heads(4, 8, 64, BF16), heads(4, 1, 64, BF16)[:, 0], heads(4, 8, 32, BF16)
    positions = np.arange(4, dtype=np.int32)
    tensors = {"q_rope": q, "k_rope": k, "q_nope": nope, "k_nope": nope[:, 0], "positions": positions}
    out = call("rope_quantize", tensors, output_dtype=code, scale_q=0.5)
    assert_rounded_to(out["q_rope"], 0.5 * reference.rope(q, positions))
    assert_rounded_to(out["k_rope"], reference.rope(k[:, None], positions)[:, 0])
    assert_rounded_to(out["q_nope"], 0.5 * nope.astype(np.float64))
    assert_rounded_to(out["k_nope"], nope[:, 0].astype(np.float64))
    assert out["q_rope"].dtype == dtype8


def test_qk_rmsnorm_rope(call, heads, rng):
    q, k, positions = heads(4, 4, 64, np.float32), heads(4, 2, 64, np.float32), np.arange(4) * 5
    weights = {name: rng.standard_normal(64, np.float32) for name in ["q_weight", "k_weight"]}
    out = call("qk_rmsnorm_rope", {"q": q, "k": k, **weights, "positions": positions}, eps=1e-5)
    for name, x in {"q": q, "k": k}.items():
        norm = reference.rmsnorm(x, weights[f"{name}_weight"], 1e-5)
        assert_close(out[name], reference.rope(norm, positions))


def test_rope_append(call, heads):
    q, k, v = (heads(3, n, 32, np.float32) for n in [4, 2, 2])
    caches = {name: heads(8, 2, 32, np.float32) for name in ["k_cache", "v_cache"]}
    before = {name: cache.copy() for name, cache in caches.items()}
    positions, slots = np.array([2, 9, 4]), np.array([5, -1, 0])
    tensors = {"q": q, "k": k, "v": v, **caches, "slots": slots, "positions": positions}
    out = call("rope_append", tensors)
    rotated = reference.rope(k, positions)
    assert_close(out["q"], reference.rope(q, positions))
    assert_close(out["k_cache"][[5, 0]], rotated[[0, 2]])
    np.testing.assert_array_equal(out["v_cache"][[5, 0]], v[[0, 2]])
    others = [1, 2, 3, 4, 6, 7]
    for name in caches:
        np.testing.assert_array_equal(out[name][others], before[name][others])


def test_qk_rmsnorm_rope_append(call, heads, rng):
    q, k, v = (heads(3, n, 32, np.float32) for n in [4, 2, 2])
    weights = {name: rng.standard_normal(32, np.float32) for name in ["q_weight", "k_weight"]}
    positions, slots = np.array([2, 9, 4]), np.array([5, 1, 0])
    caches = {name: heads(8, 2, 32, np.float32) for name in ["k_cache", "v_cache"]}
    tensors = {"q": q, "k": k, "v": v, **caches, "slots": slots, **weights, "positions": positions}
    out = call("qk_rmsnorm_rope_append", tensors, eps=1e-5, return_k=True)
    rotated = reference.rope(reference.rmsnorm(k, weights["k_weight"], 1e-5), positions)
    assert_close(out["q"], reference.rope(reference.rmsnorm(q, weights["q_weight"], 1e-5), positions))
    for stored in [out["k"], out["k_cache"][slots]]:
        assert_close(stored, rotated)
    np.testing.assert_array_equal(out["v_cache"][slots], v)


def test_rope_quantize_append(call, heads):
    q, k, v = heads(3, 4, 32, BF16), heads(3, 2, 32, BF16), heads(3, 2, 32, BF16)
    index = lambda *values: np.array(values, np.int32)  # noqa: E731
    cache = lambda: np.zeros((4, 2, 2, 32), E4M3)  # noqa: E731  pages of two entries
    pages = {"page_indices": index(3, 1), "page_indptr": index(0, 2)}
    where = {"batch_indices": index(0, 0, 0), "kv_positions": index(0, 1, 2), "positions": index(0, 1, 2)}
    tensors = {"q_rope": q, "k_rope": k, "v": v, "k_cache": cache(), "v_cache": cache(), **pages, **where}
    out = call("rope_quantize_append", tensors)
    positions = where["positions"]
    assert_rounded_to(out["q_rope"], reference.rope(q, positions))
    stored = np.stack([out["k_cache"][3, 0], out["k_cache"][3, 1], out["k_cache"][1, 0]])
    assert_rounded_to(stored, reference.rope(k, positions))
    assert not out["k_cache"][[0, 2]].view(np.uint8).any()


def test_rmsnorm(call, rng, dtype):
    x, weight = rng.standard_normal((3, 2, 96)).astype(dtype), rng.standard_normal(96).astype(dtype)
    out = call("rmsnorm", {"x": x, "weight": weight}, eps=1e-5)["y"]
    assert out.dtype == dtype
    assert_close(out, reference.rmsnorm(x, weight, 1e-5))


def test_add_rmsnorm(call, rng, dtype):
    x, residual = (rng.standard_normal((3, 96)).astype(dtype) for _ in range(2))
    out = call("add_rmsnorm", {"x": x, "residual": residual})
    total = x.astype(np.float64) + residual.astype(np.float64)
    assert_close(out["residual"], total)
    assert_close(out["y"], reference.rmsnorm(total))


def test_rmsnorm_add(call, rng, dtype):
    x, residual = (rng.standard_normal((3, 96)).astype(dtype) for _ in range(2))
    out = call("rmsnorm_add", {"x": x, "residual": residual}, sum_rounding="once")["y"]  # its only result
    assert_close(out, residual.astype(np.float64) + reference.rmsnorm(x))


def test_gated_rmsnorm(call, rng, dtype):
    x, gate = (rng.standard_normal((3, 96)).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(96).astype(dtype)
    z, w = gate.astype(np.float64), weight.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-z))
    out = call("gated_rmsnorm", {"x": x, "gate": gate, "weight": weight}, gate_activation="sigmoid")
    assert_close(out["y"], reference.rmsnorm(x, weight) * sigmoid)
    gated = (x.astype(np.float64) * z * sigmoid).reshape(3, 4, 24)
    out = call("gated_rmsnorm", {"x": x, "gate": gate, "weight": weight}, gate_first=True, group_size=24)
    assert_close(out["y"], reference.rmsnorm(gated).reshape(3, 96) * w)


def test_norms_of_larger_sums(call, rng, dtype):
    x, residual, addend = (rng.standard_normal((3, 96)).astype(dtype) for _ in range(3))
    tensors = {"x": x, "residual": residual, "addend": addend}
    total = 0.5 * x.astype(np.float64) + residual.astype(np.float64) + addend.astype(np.float64)
    for order in ("addends_first", "residual_first"):
        out = call("add_rmsnorm", tensors, x_scale=0.5, sum_order=order)
        assert_close(out["residual"], total)
        assert_close(out["y"], reference.rmsnorm(total))
        out = call("add_layer_norm", tensors, x_scale=0.5, sum_order=order)
        assert_close(out["y"], reference.layer_norm(total))


def test_layer_norm(call, rng, dtype):
    x, bias = rng.standard_normal((3, 96)).astype(dtype), rng.standard_normal(96).astype(dtype)
    assert_close(call("layer_norm", {"x": x, "bias": bias})["y"], reference.layer_norm(x, bias=bias))


def test_add_layer_norm(call, rng, dtype):
    x, residual = (rng.standard_normal((3, 96)).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(96).astype(dtype) for _ in range(2))
    out = call("add_layer_norm", {"x": x, "residual": residual, "weight": weight, "bias": bias}, eps=1e-3)
    total = x.astype(np.float64) + residual.astype(np.float64)
    assert_close(out["residual"], total)
    assert_close(out["y"], reference.layer_norm(total, weight, bias, 1e-3))


def test_act_and_mul(call, rng, dtype):
    x = rng.standard_normal((3, 2, 96)).astype(dtype)
    expected = reference.silu_and_mul(x[..., :48], x[..., 48:])
    out = call("act_and_mul", {"x": x})["y"]
    assert out.dtype == dtype
    assert_close(out, expected)
    halves = {"gate": np.ascontiguousarray(x[..., :48]), "up": np.ascontiguousarray(x[..., 48:])}
    assert_close(call("act_and_mul", halves)["y"], expected)
    pairs = np.stack([x[..., :48], x[..., 48:]], axis=-1).reshape(x.shape)
    assert_close(call("act_and_mul", {"x": pairs}, interleaved=True)["y"], expected)


def test_act_and_mul_backward(call, rng, dtype):
    grad_y, gate, up = (rng.standard_normal((3, 48)).astype(dtype) for _ in range(3))
    g, x, u = (tensor.astype(np.float64) for tensor in (grad_y, gate, up))
    sigmoid = 1 / (1 + np.exp(-x))
    out = call("act_and_mul_backward", {"grad_y": grad_y, "gate": gate, "up": up})
    assert_close(out["grad_gate"], g * u * sigmoid * (1 + x * (1 - sigmoid)))
    assert_close(out["grad_up"], g * x * sigmoid)


def test_act_and_mul_quantize(call, rng, dtype):
    x = rng.standard_normal((3, 192)).astype(dtype)
    out = call("act_and_mul_quantize", {"x": x}, output_dtype="int8", granularity="group", group_size=32, rounding="type")
    apart = call("act_and_mul", {"x": x}, rounding="type")["y"]
    expected = call("quantize", {"x": apart}, output_dtype="int8", granularity="group", group_size=32)
    assert np.array_equal(out["y"], expected["y"]) and np.array_equal(out["scales"], expected["scales"])


def test_rmsnorm_backward(call, rng, dtype):
    grad_y, x = (rng.standard_normal((5, 96)).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(96).astype(dtype)
    g, rows, w = (tensor.astype(np.float64) for tensor in (grad_y, x, weight))
    scale = 1 / np.sqrt((rows * rows).mean(-1, keepdims=True) + 1e-5)
    normed = rows * scale
    out = call("rmsnorm_backward", {"grad_y": grad_y, "x": x, "weight": weight}, eps=1e-5)
    assert_close(out["grad_x"], scale * (g * w - normed * (g * w * normed).mean(-1, keepdims=True)))
    assert_close(out["grad_weight"], (g * normed).sum(0))


def test_layer_norm_backward(call, rng, dtype):
    grad_y, x, grad_residual = (rng.standard_normal((5, 96)).astype(dtype) for _ in range(3))
    weight, bias = (rng.standard_normal(96).astype(dtype) for _ in range(2))
    g, rows, w = (tensor.astype(np.float64) for tensor in (grad_y, x, weight))
    off = rows - rows.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((off * off).mean(-1, keepdims=True) + 1e-5)
    normed, of_normed = off * scale, g * w - (g * w).mean(-1, keepdims=True)
    tensors = {"grad_y": grad_y, "x": x, "weight": weight, "bias": bias, "grad_residual": grad_residual}
    out = call("layer_norm_backward", tensors, eps=1e-5)
    own = scale * (of_normed - normed * (g * w * normed).mean(-1, keepdims=True))
    assert_close(out["grad_x"], own + grad_residual.astype(np.float64))
    assert_close(out["grad_weight"], (g * normed).sum(0))
    assert_close(out["grad_bias"], g.sum(0))


def test_compare(call, rng):
    b = rng.standard_normal((3, 8), np.float32)
    a = b.copy()
    a[1, 2] += 0.5
    a[2, 7] = np.nan
    out = call("compare", {"a": a, "b": b})
    assert out["index"].tolist() == [23]
    assert out["counts"].tolist() == [1, 1]  # NaN in one alone is counted apart
    assert abs(out["stats"][0] - 0.5) < 1e-6
    assert call("compare", {"a": b, "b": b})["index"].tolist() == [-1]


def test_rmsnorm_quantize(call, rng):
    x = rng.standard_normal((3, 128)).astype(BF16)
    out = call("rmsnorm_quantize", {"x": x}, dynamic=True)
    norm = reference.rmsnorm(x)
    scales = np.abs(norm).max(axis=-1) / 448
    np.testing.assert_allclose(out["scales"], scales, rtol=1e-6)
    assert_rounded_to(out["y"], norm / out["scales"].astype(np.float64)[:, None])


def test_add_rmsnorm_quantize(call, rng):
    x, residual = (rng.standard_normal((3, 128)).astype(BF16) for _ in range(2))
    out = call("add_rmsnorm_quantize", {"x": x, "residual": residual}, dynamic=True, output_dtype="e5m2")
    total = x.astype(np.float64) + residual.astype(np.float64)
    norm = reference.rmsnorm(total)
    assert_close(out["residual"], total)
    np.testing.assert_allclose(out["scales"], np.abs(norm).max(axis=-1) / 57344, rtol=1e-6)
    assert_rounded_to(out["y"], norm / out["scales"].astype(np.float64)[:, None])


def test_quantize(call, rng):
    x = rng.standard_normal((3, 128)).astype(BF16)
    out = call("quantize", {"x": x})
    scales = np.abs(x.astype(np.float64)).max(axis=-1) / 448
    np.testing.assert_allclose(out["scales"], scales, rtol=1e-6)
    assert_rounded_to(out["y"], x.astype(np.float64) / out["scales"].astype(np.float64)[:, None])


def test_quantize_to_int8_by_groups(call, rng):
    x = rng.standard_normal((3, 128), np.float32)
    out = call("quantize", {"x": x}, output_dtype="int8", granularity="group", group_size=32)
    groups = x.astype(np.float64).reshape(3, 4, 32)
    np.testing.assert_allclose(out["scales"], np.abs(groups).max(axis=-1) / 127, rtol=1e-6)
    codes = groups / out["scales"].astype(np.float64)[..., None]
    assert out["y"].dtype == np.int8 and np.abs(out["y"].reshape(3, 4, 32) - codes).max() <= 0.5 + 1e-5


@pytest.mark.parametrize("output_dtype", ["e4m3", "e5m2", "int8"])
def test_dequantize(call, rng, output_dtype):
    x = rng.standard_normal((3, 128), np.float32)
    codes = call("quantize", {"x": x}, output_dtype=output_dtype)
    out = call("dequantize", {"x": codes["y"], "scales": codes["scales"]})["y"]
    expected = codes["y"].astype(np.float64) * codes["scales"].astype(np.float64)[:, None]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert np.abs(out - x).max() < 0.13 * np.abs(x).max()  # half a step of e5m2


@pytest.mark.parametrize(("output_dtype", "group", "step"), [("mxfp8", 32, 0.07), ("mxfp4", 32, 0.34), ("nvfp4", 16, 0.26)])
def test_formats_of_groups(call, rng, output_dtype, group, step):
    x = rng.standard_normal((3, 128), np.float32)
    named = {"scale_layout": "swizzled"}
    codes = call("quantize", {"x": x}, output_dtype=output_dtype, **named)
    assert codes["y"].shape == (3, 128 if output_dtype == "mxfp8" else 64)
    assert codes["scales"].shape == (128, -(-128 // group // 4) * 4)
    out = call("dequantize", {"x": codes["y"], "scales": codes["scales"]}, input_dtype=output_dtype, **named)["y"]
    largest = np.abs(x).reshape(3, -1, group).max(axis=-1).repeat(group, axis=-1)
    assert (np.abs(out - x) <= step * largest).all()


def test_dequantize_bytes(call, rng):
    codes = rng.integers(0, 0x7C, (3, 128), np.uint8)
    out = call("dequantize", {"x": codes}, input_dtype="e5m2", output_dtype="f16", dequant_scale=0.5)["y"]
    expected = (codes.astype(np.uint16) << 8).view(np.float16) / 2  # the upper half of a float16
    np.testing.assert_allclose(out.astype(np.float64), expected.astype(np.float64), atol=2.0**-25)


def reduce(terms, shape):
    """Sums a gradient to the shape of its operand, and its terms' magnitudes."""
    for _ in range(terms.ndim - len(shape)):
        terms = terms.sum(axis=0)
    axes = tuple(i for i, size in enumerate(shape) if size == 1)
    return terms.sum(axis=axes, keepdims=True)


@pytest.mark.parametrize("function", ["add", "sub", "mul", "div"])
def test_binary_backward(call, rng, function):
    a, b = (rng.standard_normal(shape, np.float32) for shape in [(4, 1, 8), (5, 8)])
    b += np.sign(b)
    grad = rng.standard_normal((4, 5, 8), np.float32)
    out = call("binary_backward", {"grad_output": grad, "a": a, "b": b}, function=function)
    g, x, y = (tensor.astype(np.float64) for tensor in (grad, a, b))
    to_a = {"add": g, "sub": g, "mul": g * y, "div": g / y}[function]
    to_b = {"add": g, "sub": -g, "mul": g * x, "div": -g * x / (y * y)}[function]
    for name, terms, shape in [("grad_a", to_a, a.shape), ("grad_b", to_b, b.shape)]:
        error = np.abs(out[name].astype(np.float64) - reduce(terms, shape))
        assert (error <= 1e-6 * reduce(np.abs(terms), shape)).all()


def test_no_operator_is_left_out():
    assert all(f"test_{name}" in globals() for name in OPERATORS)


def test_numbers_of_numpy_are_numbers(call, rng):
    """And flags are flags, however they are said."""
    x = rng.standard_normal((4, 64), np.float32)
    for value in [np.float16(0.5), np.float32(0.5), np.float64(0.5)]:
        np.testing.assert_array_equal(call("rmsnorm", {"x": x}, eps=value)["y"], call("rmsnorm", {"x": x}, eps=0.5)["y"])
    for value in [np.int8(2), np.uint16(2), np.int64(2)]:
        want = call("rmsnorm", {"x": x}, heads=2, eps=0.25)["y"]
        np.testing.assert_array_equal(call("rmsnorm", {"x": x}, heads=value, eps=0.25)["y"], want)
    for i, value in enumerate([np.bool_(True), np.int32(1), 1, "true", True]):  # of another eps: prepared anew
        eps = 0.125 + i
        made = call("rmsnorm_quantize", {"x": x}, dynamic=value, eps=eps)
        np.testing.assert_array_equal(made["scales"], call("rmsnorm_quantize", {"x": x}, dynamic=True, eps=eps)["scales"])
    made = call("rmsnorm_quantize", {"x": x}, dynamic=np.bool_(False), eps=16.0)
    assert "scales" not in made
    k = x.reshape(4, 1, 64)
    want = call("rope_quantize", {"q_rope": k, "k_rope": k}, scale_q=2.0)["q_rope"]
    found = call("rope_quantize", {"q_rope": k, "k_rope": k}, scale_q=np.float32(2), offset=np.int64(0))["q_rope"]
    np.testing.assert_array_equal(found.view(np.uint8), want.view(np.uint8))


def test_empty_tensors(call):
    assert call("rmsnorm", {"x": np.zeros((0, 8), np.float32)})["y"].shape == (0, 8)
