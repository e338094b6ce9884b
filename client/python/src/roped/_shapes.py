"""Types and shapes of a call's outputs, from the descriptor and the inputs'."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from roped._functions import Operator

Kind = tuple[str, tuple[Any, ...]]  # type and shape; sizes may be symbols of torch
_DIM = re.compile(r"(\.\.\.)?(\w+)(?:(//?)(\w+))?(?:\^(\d+))?")
_FP8 = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}


class Mismatch(Exception):
    """The inputs fit no form: the library or the server says what is wrong."""


def _alternative(port: Mapping[str, Any], form: int) -> list[str]:
    shapes: list[str] = port["shape"].split("|")
    return shapes[form if len(shapes) > 1 else 0].split()


def _match(pattern: list[str], shape: tuple[Any, ...], sizes: dict[str, Any]) -> None:
    packs = [i for i, dim in enumerate(pattern) if dim.startswith("...")]
    n_packed = len(shape) - len(pattern) + 1 if packs else 1
    if n_packed < 0 or (not packs and len(shape) != len(pattern)):
        raise Mismatch
    at = 0
    for dim in pattern:
        if dim.startswith("..."):
            sizes[dim[3:]] = tuple(shape[at : at + n_packed])
            at += n_packed
        else:
            sizes.setdefault(dim, shape[at])
            at += 1


def _sizes(op: Operator, form: int, inputs: Mapping[str, Kind], values: dict[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for param in op.params.values():
        if "shape" in param and values.get(param["name"]) is not None:
            sizes[param["shape"]] = tuple(values[param["name"]])
    for port in op.inputs:
        if port["name"] in inputs:
            _match(_alternative(port, form), inputs[port["name"]][1], sizes)
    return sizes


def _bound(op: Operator, inputs: Mapping[str, Kind], values: dict[str, Any]) -> dict[str, Any]:
    """Sizes by symbol of the first form that fits, and its index."""
    for form, row in enumerate(op.forms or [{}]):
        if "param" in row and values[row["param"]] != row["value"]:
            continue
        try:
            return {"": form, **_sizes(op, form, inputs, values)}
        except Mismatch:
            continue
    raise Mismatch


def _shape(pattern: list[str], sizes: dict[str, Any], values: dict[str, Any]) -> tuple[Any, ...]:
    shape: list[Any] = []
    for dim in pattern:
        pack, name, slash, divisor, unit = _DIM.fullmatch(dim).groups()  # type: ignore[union-attr]
        size: Any = int(name) if name.isdecimal() else sizes.get(name)
        if size is None:
            raise Mismatch
        if pack:
            shape.extend(size)
            continue
        size = prod(size) if isinstance(size, tuple) else size
        by = values[divisor] if divisor else 1
        if by == 0 and slash == "/":
            continue  # no such dim
        size = size // by if by else 1
        shape.append(-(-size // int(unit)) * int(unit) if unit else size)
    return tuple(shape)


def _type(op: Operator, port: Mapping[str, Any], inputs: Mapping[str, Kind], values: dict[str, Any]) -> str:
    for other in op.inputs:
        if other["type"] == port["type"] and other["name"] in inputs:
            return inputs[other["name"]][0]
    for param in op.params.values():
        if param.get("type") == port["type"]:
            return _FP8[values[param["name"]]]
    return str(port["dtypes"][0])


def outputs(op: Operator, inputs: Mapping[str, Kind], params: Mapping[str, Any]) -> dict[str, Kind]:
    """The outputs that the call makes, by name; Mismatch."""
    values = {name: params.get(name, row.get("default")) for name, row in op.params.items()}
    sizes = _bound(op, inputs, values)
    made = {}
    for port in op.outputs:
        needs = port.get("requires")
        if needs is None or needs in inputs or values.get(needs) is True:
            shape = _shape(_alternative(port, sizes[""]), sizes, values)
            made[port["name"]] = (_type(op, port, inputs, values), shape)
    return made


def token_dims(op: Operator, inputs: Mapping[str, Kind], params: Mapping[str, Any]) -> dict[str, int]:
    """How many dims at the front number tokens, of tensors that may be slices of wider rows; Mismatch. An input and an
    output of one name are alike."""
    values = {name: params.get(name, row.get("default")) for name, row in op.params.items()}
    sizes = _bound(op, inputs, values)
    found = {}
    for port in (*op.inputs, *op.outputs):
        n = 0
        for dim in _alternative(port, sizes[""]):
            symbol = dim.removeprefix("...")
            if "strided" not in port or symbol not in op.tokens or symbol not in sizes:
                break
            n += len(sizes[symbol]) if dim.startswith("...") else 1
        found[port["name"]] = n
    return found


def step(shape: tuple[int, ...], strides: tuple[int, ...], n_dims: int) -> int | None:
    """Elements from one token to the next, where the first dims number tokens that are packed inside; None where it
    is no such tensor."""
    token, at = 1, None
    for i in reversed(range(len(shape))):
        if shape[i] == 1:
            continue
        if i >= n_dims:
            expected: int | None = token
            token *= shape[i]
        else:
            expected = strides[i] if at is None else at
            at = expected * shape[i]
        if strides[i] != expected:
            return None
    first = [strides[i] for i in range(n_dims) if shape[i] != 1]
    return None if not first or first[-1] < token else first[-1]
