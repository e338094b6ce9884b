"""Norms of sums, and norms into FP8, as FlashInfer, vLLM and SGLang describe theirs, in float32 numpy, at
the tolerances of their tests. Where a peer rounds between its steps, so does rounding=type, and where it
rounds the sum first, sum_rounding=type."""

import ml_dtypes
import numpy as np
import pytest
from fused_rows import fuse, fused
from test_safetensors import call, load

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
MAX = {E4M3: np.float32(448), E5M2: np.float32(57344)}
NAMES = {E4M3: "e4m3", E5M2: "e5m2"}
OPS = {False: "rmsnorm_quantize", True: "add_rmsnorm_quantize"}
EPS = np.float32(1e-6)


def draw(rng, n, hidden, dtype, adds):
    tensors = {
        "x": rng.standard_normal((n, hidden)).astype(dtype),
        "weight": rng.normal(1, 0.1, hidden).astype(dtype),
    }
    if adds:
        tensors["residual"] = rng.standard_normal((n, hidden)).astype(dtype)
    return tensors


def sum_of(tensors):
    """x + residual in float32, not rounded."""
    z = tensors["x"].astype(np.float32)
    return z + tensors["residual"].astype(np.float32) if "residual" in tensors else z


def scale_of(z):
    mean = np.square(z).mean(axis=-1, keepdims=True, dtype=np.float32)
    return (1 / np.sqrt(mean + EPS)).astype(np.float32)


def into_fp8(y, dtype):
    return np.clip(y, -MAX[dtype], MAX[dtype]).astype(dtype)


def vllm_norm(tensors, rounds_sum=False):
    """x * rms is rounded to the type, and so is its product with the weight."""
    dtype, z = tensors["x"].dtype, sum_of(tensors)
    if rounds_sum:
        z = z.astype(dtype).astype(np.float32)
    return ((z * scale_of(z)).astype(dtype) * tensors["weight"]).astype(np.float32)


def vllm_quantize(y, dtype, scale_ub=None):
    """Groups are the last dim. Scales have a floor, values are divided."""
    largest = np.abs(y).max(axis=-1, keepdims=True)
    bound = largest if scale_ub is None else np.minimum(largest, np.float32(scale_ub))
    scales = np.maximum(bound / MAX[dtype], 1 / (MAX[dtype] * np.float32(512)))
    return into_fp8(y / scales, dtype), scales


def assert_same_codes(found, expected):
    """vLLM's test wants values within 1e-6. A norm whose float32 sum was added in another order may
    round to its neighbour now and then: in one place of 5,000."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    found, expected = found.astype(np.float32), expected.astype(np.float32)
    is_off = ~np.isclose(found, expected, rtol=1e-5, atol=1e-6)
    assert is_off.mean() <= 2e-4
    # of e4m3 a unit is an eighth at most, of e5m2 a quarter; beside 0 the smallest code
    assert np.allclose(found, expected, rtol=0.26, atol=0.002)


def assert_residual(out, tensors, adds):
    assert ("residual" in out) == adds
    if adds:
        assert (out["residual"] == sum_of(tensors).astype(tensors["x"].dtype)).all()


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("n, hidden", [(1, 111), (7, 768), (83, 5120), (1, 8192)])
def test_vllm_fused_add_rms_norm(address, rng, n, hidden, dtype):
    """Its CUDA kernel adds in the type, takes the norm of that sum, and rounds before the weight too:
    the same bits, but where a float32 sum in another order moves a tie."""
    tensors = draw(rng, n, hidden, dtype, True)
    out = load(call(address, "add_rmsnorm", tensors, eps=1e-6, rounding="hf", sum_rounding="type"))
    expected = vllm_norm(tensors, rounds_sum=True).astype(dtype)
    n_off = (out["y"].view(np.int16) != expected.view(np.int16)).sum()
    assert n_off <= max(2, 2e-4 * n * hidden)
    assert_residual(out, tensors, True)


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("n, hidden", [(1, 111), (83, 5120)])
def test_flashinfer_fused_add_rmsnorm(address, rng, n, hidden, dtype):
    """The defaults: the norm of the float32 sum, rounded once."""
    tensors = draw(rng, n, hidden, dtype, True)
    out = load(call(address, "add_rmsnorm", tensors, eps=1e-6))
    z = sum_of(tensors)
    expected = (z * scale_of(z) * tensors["weight"].astype(np.float32)).astype(dtype)
    n_off = (out["y"].view(np.int16) != expected.view(np.int16)).sum()
    assert n_off <= max(2, 2e-3 * n * hidden)  # float16: ties are eight times as frequent
    assert_residual(out, tensors, True)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("n, hidden", [(1, 111), (19, 500), (99, 1024), (19, 3072), (1, 8192)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_flashinfer_quant(address, rng, n, hidden, dtype, scale, adds):
    """rmsnorm_quant and fused_add_rmsnorm_quant: norm in float32, divided by scale, clamped and
    rounded to FP8. Their test allows 1 and 1; codes are compared besides."""
    tensors = draw(rng, n, hidden, dtype, adds)
    out = load(call(address, OPS[adds], tensors, eps=1e-6, dequant_scale=scale))
    z = sum_of(tensors)
    y = z * scale_of(z) * tensors["weight"].astype(np.float32)
    expected = into_fp8(y / np.float32(scale), E4M3)
    assert np.allclose(out["y"].astype(np.float32), expected.astype(np.float32), rtol=1, atol=1)
    assert_same_codes(out["y"], expected)
    assert_residual(out, tensors, adds)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("n, hidden", [(19, 500), (99, 1024)])
def test_flashinfer_quant_of_slices(address, rng, n, hidden, adds):
    """The same where x, and residual in place, are slices of wider rows."""
    tensors = draw(rng, n, hidden, BF16, adds)
    weight, rows = {"weight": tensors["weight"]}, {**tensors, "_rest": np.full((n, 8), 7, BF16)}
    del rows["weight"]
    slices = fuse(address, ["residual"], **rows)
    out = load(call(address, OPS[adds], weight, eps=1e-6, dequant_scale=0.1, **slices))
    same_x, *residual, rest = fused(address, *rows.values())
    z = sum_of(tensors)
    y = z * scale_of(z) * tensors["weight"].astype(np.float32)
    assert_same_codes(out["y"], into_fp8(y / np.float32(0.1), E4M3))
    assert (same_x == tensors["x"]).all() and (rest == 7).all()
    assert_residual({"residual": residual[0]} if residual else {}, tensors, adds)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("fp8", [E4M3, E5M2])
@pytest.mark.parametrize("n, hidden", [(1, 64), (1, 1027), (7, 1025), (83, 768), (3, 5137)])
@pytest.mark.parametrize("has_bound", [False, True])
def test_vllm_dynamic_per_token(address, rng, n, hidden, dtype, fp8, adds, has_bound):
    """rms_norm_dynamic_per_token_quant, its scale_ub the mean of the norm, its scales [n, 1]."""
    tensors = draw(rng, n, hidden, dtype, adds)
    y = vllm_norm(tensors)
    bound = {"scale_ub": float(y.mean())} if has_bound else {}
    out = load(
        call(address, OPS[adds], tensors, eps=1e-6, dynamic="true", rounding="type",
             scale_layout="rows_2d", output_dtype=NAMES[fp8], **bound)
    )  # fmt: skip
    expected, scales = vllm_quantize(y, fp8, **bound)
    assert out["scales"].shape == (n, 1)
    assert np.allclose(out["scales"], scales)
    assert_same_codes(out["y"], expected)
    assert_residual(out, tensors, adds)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("n, hidden", [(1, 128), (7, 1024), (83, 5120)])
@pytest.mark.parametrize("layout", ["rows", "columns", "columns_4"])
def test_vllm_per_block(address, rng, n, hidden, group, dtype, adds, layout):
    """rms_norm_per_block_quant: scales as rows, transposed, and aligned for TMA."""
    tensors = draw(rng, n, hidden, dtype, adds)
    params = {"dynamic": "true", "rounding": "type", "group_size": group, "scale_layout": layout}
    out = load(call(address, OPS[adds], tensors, eps=1e-6, **params))
    expected, scales = vllm_quantize(vllm_norm(tensors).reshape(n, -1, group), E4M3)
    found = out["scales"] if layout == "rows" else out["scales"].T
    assert found.shape == (n + (-n % 4 if layout == "columns_4" else 0), hidden // group)
    assert np.allclose(found[:n], scales[..., 0])
    assert (found[n:] == 0).all()
    assert_same_codes(out["y"], expected.reshape(n, hidden))
    assert_residual(out, tensors, adds)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("n, hidden", [(1, 1024), (83, 5120)])
def test_vllm_static(address, rng, n, hidden, adds):
    """rms_norm_static_fp8_quant multiplies by 1 / scale, which is exact for powers of two. With a
    residual its kernel takes the norm of the rounded sum."""
    tensors = draw(rng, n, hidden, BF16, adds)
    of_sum = {"sum_rounding": "type"} if adds else {}
    out = load(call(address, OPS[adds], tensors, eps=1e-6, dequant_scale=0.0625, rounding="type", **of_sum))
    assert_same_codes(out["y"], into_fp8(vllm_norm(tensors, adds) * np.float32(16), E4M3))
    assert_residual(out, tensors, adds)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("n, hidden", [(1, 512), (127, 1536)])
@pytest.mark.parametrize("layout", ["rows", "columns", "columns_4"])
def test_sglang_per_token_group(address, rng, n, hidden, group, adds, layout):
    """The norm (float32, one rounding) and then sglang_per_token_group_quant_fp8: scale
    max|y| / 448, row major, column major, or aligned for TMA. In one pass y is not rounded in
    between: a code may be the neighbour of theirs, a scale is a bfloat16 unit off."""
    tensors = draw(rng, n, hidden, BF16, adds)
    params = {"dynamic": "true", "group_size": group, "scale_layout": layout}
    out = load(call(address, OPS[adds], tensors, eps=1e-6, **params))
    z = sum_of(tensors)
    y = z * scale_of(z) * tensors["weight"].astype(np.float32)
    groups = y.astype(BF16).astype(np.float32).reshape(n, -1, group)
    scales = np.maximum(np.abs(groups).max(axis=-1), np.float32(1e-10)) / MAX[E4M3]
    found = (out["scales"] if layout == "rows" else out["scales"].T)[:n]
    assert np.allclose(found, scales, rtol=2**-8)
    theirs = into_fp8(groups / scales[..., None], E4M3).astype(np.float32) * scales[..., None]
    ours = out["y"].astype(np.float32).reshape(groups.shape) * found[..., None]
    assert np.allclose(ours, theirs, rtol=0.14, atol=1e-2)
    y = y.reshape(groups.shape)
    assert np.abs(ours - y).mean() <= np.abs(theirs - y).mean() * 1.001  # nearer to the norm
