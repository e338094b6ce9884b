"""What the operators compute, in float64 numpy: written to be read. Angles are
the float32 numbers that models are trained with."""

import ml_dtypes
import numpy as np


def frequencies(rotary_dim, theta=10000.0):
    """One inverse frequency per pair, rounded to float32 where PyTorch does."""
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    power = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1) / power


def rope(x, positions, style="neox", theta=10000.0, rotary_dim=None):
    """x [tokens, heads, width], rotated by positions [tokens]."""
    out = x.astype(np.float64)
    r = rotary_dim or x.shape[-1]
    angle = positions.astype(np.float32)[:, None, None] * frequencies(r, theta)
    cos, sin = np.cos(angle.astype(np.float64)), np.sin(angle.astype(np.float64))
    if style == "neox":
        first, second = slice(0, r // 2), slice(r // 2, r)
    else:
        first, second = slice(0, r, 2), slice(1, r, 2)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out


def rmsnorm(x, weight=None, eps=1e-6):
    x = x.astype(np.float64)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight.astype(np.float64)


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    """Row by row, in float64."""
    x = np.asarray(x, np.float64)
    off = x - x.mean(axis=-1, keepdims=True)
    y = off / np.sqrt((off**2).mean(axis=-1, keepdims=True) + eps)
    return y * np.asarray(weight, np.float64) + np.asarray(bias, np.float64)


def silu_and_mul(gate, up):
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    return gate / (1 + np.exp(-gate)) * up


def unit_in_last_place(expected, dtype):
    """Distance of two neighbours of dtype around each expected value."""
    if dtype == np.float32:
        return np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    n_digits = {np.dtype(np.float16): 10, np.dtype(ml_dtypes.bfloat16): 7}[np.dtype(dtype)]
    least = {np.dtype(np.float16): -14, np.dtype(ml_dtypes.bfloat16): -126}[np.dtype(dtype)]
    exponent = np.floor(np.log2(np.maximum(np.abs(expected), 2.0**least)))
    return 2.0 ** (exponent - n_digits)


def assert_close(actual, expected):
    """F32: within 1e-6 of the largest of its row; narrow floats: within one
    unit in the last place of the exact result."""
    assert actual.shape == expected.shape
    if actual.dtype == np.float32:
        bound = 1e-6 * np.abs(expected).max(axis=-1, keepdims=True)
    else:
        bound = unit_in_last_place(expected, actual.dtype)
    error = np.abs(actual.astype(np.float64) - expected)
    assert (error <= bound).all(), f"off by {(error / bound).max()} of the bound"


def assert_rounded_to(actual, exact):
    """FP8 codes: the nearest to the exact value, the largest beyond it. Where
    two codes are equally near up to float32's rounding, either is right."""
    finfo = ml_dtypes.finfo(actual.dtype)
    exact = np.clip(exact, -float(finfo.max), float(finfo.max))
    nearest = exact.astype(actual.dtype)
    error = np.abs(actual.astype(np.float64) - exact)
    best = np.abs(nearest.astype(np.float64) - exact)
    assert (error <= best + 1e-6 * np.abs(exact).max()).all()
    assert (actual.view(np.uint8) == nearest.view(np.uint8)).mean() > 0.999
