"""Is what you computed right? For tests of kernels.

    from roped.testing import assert_matches

    y = my_rmsnorm(x, weight, eps=1e-5)
    assert_matches(y, "rmsnorm", x, weight, eps=1e-5)

What is expected is computed in this process on the CPU, or by a daemon where client
is given. The tolerances are those that roped promises of its operators, for either
side: README.md has them, and 'ropectl verify' applies the same.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np

from roped import ops
from roped._functions import TABLE
from roped._tensors import as_array, dtype_name, host_bytes, is_torch, numpy_dtype

__all__ = ["assert_matches"]

_CODES = ("U8", "F8_E4M3", "F8_E5M2")
_UNITS = {"F16": (10, -14), "BF16": (7, -126)}  # bits of the mantissa, least exponent
_RELATIVE = 2e-6  # 1e-6 of both sides
_CODES_APART = 1000  # FP8: one code in so many may be the next one
_SUMS = ("binary_backward",)  # results are measured by their terms' magnitudes


def assert_matches(actual: Any, op: str, /, *inputs: Any, client: Any = None, **parameters: Any) -> None:
    """Raises an AssertionError unless actual is what op makes of these inputs.

    actual is a tensor of numpy, torch or DLPack; of an operator with several outputs
    a tuple in their order, or a dict by name, in which those that are left out or
    None are not compared. The inputs are not changed, caches neither.
    """
    if op not in TABLE:
        raise ValueError(f"no operator '{op}', expected one of {', '.join(TABLE)}")
    named = {name: _copy(value) for name, value in parameters.items()}
    expected = _run(client or ops, op, [_copy(value) for value in inputs], named)
    terms = {}
    if op in _SUMS:
        magnitudes = {name: _magnitude(value) for name, value in parameters.items()}
        terms = _outputs(op, _run(ops, op, [_magnitude(value) for value in inputs], magnitudes))
    wanted, found = _outputs(op, expected), _outputs(op, actual)
    if missing := [name for name in found if wanted.get(name) is None]:
        raise AssertionError(f"{op} makes no {' and no '.join(missing)} of these inputs")
    if not found:
        raise ValueError(f"nothing to compare: expected one of {', '.join(wanted)}")
    for name, tensor in found.items():
        if problem := _difference(tensor, wanted[name], terms.get(name)):
            raise AssertionError(f"{op}: {name}: {problem}")


def _run(owner: Any, op: str, inputs: list[Any], named: dict[str, Any]) -> Any:
    torch = sys.modules.get("torch")
    with torch.no_grad() if torch else nullcontext():
        return getattr(owner, op)(*inputs, **named)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or isinstance(value, np.ndarray)


def _copy(value: Any) -> Any:
    """On the CPU, and nobody else's: operators update caches."""
    if not _is_tensor(value):
        return value
    tensor = as_array(value, "input")
    return tensor.detach().cpu().clone() if is_torch(tensor) else np.array(tensor)


def _magnitude(value: Any) -> Any:
    return abs(_copy(value)) if _is_tensor(value) else value


def _outputs(op: str, result: Any) -> dict[str, Any]:
    names = TABLE[op].output_names
    if not isinstance(result, (tuple, list, dict)):
        result = (result,)
    if not isinstance(result, dict):
        result = dict(zip(names, result, strict=False))
    if unknown := [name for name in result if name not in names]:
        raise ValueError(f"{op} has no output '{unknown[0]}', expected one of {', '.join(names)}")
    return {name: tensor for name, tensor in result.items() if tensor is not None}


def _numbers(tensor: Any, name: str) -> Any:
    """As float64; of FP8 the places of codes among all, which are neighbours where values are."""
    data = host_bytes(tensor)
    if name in _CODES:
        code = data.astype(np.int16)
        return np.where(code & 0x80, -(code & 0x7F), code).astype(np.float64)
    if name == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return data.view(numpy_dtype(name)).astype(np.float64)


def _tolerance(expected: Any, name: str, scale: Any) -> Any:
    if name in _CODES:
        return np.ones_like(expected)
    if name == "F32":
        return _RELATIVE * scale + 2.0**-149
    if name not in _UNITS:
        return np.zeros_like(expected)
    mantissa, least = _UNITS[name]
    exponent = np.maximum(np.frexp(expected)[1] - 1, least)
    return 2 * np.ldexp(1.0, np.where(expected == 0, least, exponent) - mantissa) + _RELATIVE * scale


def _difference(actual: Any, expected: Any, terms: Any) -> str:
    """What is wrong, or ''."""
    actual, expected = as_array(actual, "actual"), as_array(expected, "expected")
    found, wanted = dtype_name(actual.dtype), dtype_name(expected.dtype)
    shape = tuple(expected.shape)
    if tuple(actual.shape) != shape:
        return f"shape {list(actual.shape)}, expected {list(shape)}"
    if found != wanted and not {found, wanted} <= set(_CODES):
        return f"type {found}, expected {wanted}"
    got, right = _numbers(actual, found), _numbers(expected, wanted)
    if not got.size:
        return ""
    with np.errstate(invalid="ignore"):
        if terms is not None:
            scale = np.abs(_numbers(terms, wanted))
        else:
            rows = np.where(np.isfinite(right), np.abs(right), 0).reshape(-1, shape[-1] if shape else 1)
            scale = np.repeat(rows.max(axis=1), rows.shape[1])
        off = np.where((got == right) | (np.isnan(got) & np.isnan(right)), 0, np.abs(got - right))
        off = np.where(np.isnan(off), np.inf, off)
        tolerance = _tolerance(right, wanted, scale)
        n_wrong = int((off > tolerance).sum())
    n_codes = int((off > 0).sum()) if wanted in _CODES else 0
    if not n_wrong and n_codes <= 1 + got.size // _CODES_APART:
        return ""
    if not n_wrong:
        return f"{n_codes} of {got.size} codes are the next one, expected at most {1 + got.size // _CODES_APART}"
    worst = int(np.argmax(np.where(off > tolerance, off / np.maximum(tolerance, 2.0**-149), -1)))
    index = [int(i) for i in np.unravel_index(worst, shape)]
    unit = "code " if wanted in _CODES else ""
    return (
        f"{n_wrong} of {got.size} elements are off; at {index} {unit}{got[worst]:.9g}, expected {unit}{right[worst]:.9g} "
        f"within {tolerance[worst]:.3g}"
    )
