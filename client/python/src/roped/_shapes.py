"""Types and shapes of a call's outputs, from the descriptor and the inputs'."""

from collections.abc import Mapping
from math import prod
from typing import Any

from roped._functions import Operator

Kind = tuple[str, tuple[Any, ...]]  # type and shape; sizes may be symbols of torch
Dims = list[dict[str, Any]]
_FP8 = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}


class Mismatch(Exception):
    """The inputs fit no form: the library or the server says what is wrong."""


class _Call:
    """What is known of a call: its form, values of parameters, sizes of symbols. Built from the operator's table, in
    which shapes are parsed already."""

    def __init__(self, op: Operator, form: int, inputs: Mapping[str, Kind], values: dict[str, Any]) -> None:
        self.op, self.form, self.inputs, self.values = op, form, inputs, values
        self.sizes: dict[str, Any] = {}
        for param in op.params.values():
            value = values.get(param["name"])
            if "shape" in param and value is not None and param["kind"] == "ints":
                self.sizes[param["shape"]] = tuple(value)
            elif "shape" in param and value:
                self.sizes[param["shape"]] = value
        for port in op.inputs:
            if port["name"] in inputs:
                shape = inputs[port["name"]][1]
                self._match(self.dims(port, len(shape)), shape)

    def _holds(self, name: str, choices: list[str]) -> bool:
        if not choices:
            return name in self.inputs
        if name == "form":
            return bool(self.op.forms) and self.op.forms[self.form]["name"] in choices
        return str(self.values[name]).lower() in choices

    def dims(self, port: Mapping[str, Any], rank: int | None) -> Dims:
        """The alternative of a shape that holds: the form's, or the first of the rank whose conditions do."""
        every = port["alternatives"]
        if "when" not in every[0]:
            return every[self.form if len(every) > 1 else 0]["dims"]  # type: ignore[no-any-return]
        for other in self.op.inputs:  # who has the same ones has the same one
            if other["shape"] == port["shape"] and other["name"] in self.inputs:
                rank = len(self.inputs[other["name"]][1])
                break
        for one in every:
            if all(self._holds(*item) for item in one["when"].items()) and _fits(one["dims"], rank):
                return one["dims"]  # type: ignore[no-any-return]
        raise Mismatch

    def _match(self, dims: Dims, shape: tuple[Any, ...]) -> None:
        packs = [dim for dim in dims if "pack" in dim]
        n_packed = len(shape) - len(dims) + 1 if packs else 1
        if n_packed < 0 or (not packs and len(shape) != len(dims)):
            raise Mismatch
        at = 0
        for dim in dims:
            if "pack" in dim:
                self.sizes[dim["pack"]] = tuple(shape[at : at + n_packed])
                at += n_packed
            else:
                if "name" in dim and dim["name"] not in self.sizes:
                    self._solve(dim, shape[at])
                at += 1

    def _operand(self, sign: str, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        size = self.sizes.get(name, self.values.get(name))
        if size is None and sign != "+":
            raise Mismatch
        return prod(size) if isinstance(size, tuple) else size or 0

    def _solve(self, dim: Mapping[str, Any], size: Any) -> None:
        """A dim's symbol from its size: the steps backwards."""
        for sign, name, _ in reversed(dim.get("steps", [])):
            number = self._operand(sign, name)
            if sign == "+":
                size = size - number
            elif sign == "^" or number == 0:
                raise Mismatch
            else:
                size = size // number if sign == "*" else size * number
        self.sizes[dim["name"]] = size

    def size(self, dim: Mapping[str, Any]) -> Any:
        """Of a dim that is no pack; None: there is no such dim."""
        size: Any = dim.get("size") if "size" in dim else self.sizes.get(dim["name"])
        if size is None:
            raise Mismatch
        size = prod(size) if isinstance(size, tuple) else size
        for sign, name, is_kept in dim.get("steps", []):
            number = self._operand(sign, name)
            if sign == "+":
                size = size + number
            elif sign == "*":
                size = size * number
            elif sign == "^":
                size = -(-size // number) * number
            elif number:
                size = size // number
            elif is_kept:
                size = 1
            else:
                return None
        return size

    def shape(self, port: Mapping[str, Any]) -> tuple[Any, ...]:
        """Of an output."""
        shape: list[Any] = []
        for dim in self.dims(port, None):
            if "pack" not in dim:
                size = self.size(dim)
                shape.extend([] if size is None else [size])
            elif dim["pack"] in self.sizes:
                shape.extend(self.sizes[dim["pack"]])
            else:
                raise Mismatch
        return tuple(shape)


def _fits(dims: Dims, rank: int | None) -> bool:
    n_packs = sum("pack" in dim for dim in dims)
    return rank is None or (rank >= len(dims) - n_packs if n_packs else rank == len(dims))


def _bound(op: Operator, inputs: Mapping[str, Kind], values: dict[str, Any]) -> _Call:
    """The call in the first form that fits."""
    for form, row in enumerate(op.forms or [{}]):
        if "param" in row and values[row["param"]] != row["value"]:
            continue
        try:
            return _Call(op, form, inputs, values)
        except Mismatch:
            continue
    raise Mismatch


def _type(op: Operator, port: Mapping[str, Any], inputs: Mapping[str, Kind], values: dict[str, Any]) -> str:
    for other in op.inputs:
        if other["type"] == port["type"] and other["name"] in inputs:
            return inputs[other["name"]][0]
    for param in op.params.values():
        if param.get("type") == port["type"]:
            choice = str(values[param["name"]])
            return _FP8.get(choice, choice.upper())
    chosen = op.chosen_types.get(port["type"])
    if chosen is not None:
        choices = op.params[chosen["by"]]["choices"]
        return str(chosen["of"].split("|")[choices.index(values[chosen["by"]])])
    return str(port["dtypes"][0])


def outputs(op: Operator, inputs: Mapping[str, Kind], params: Mapping[str, Any]) -> dict[str, Kind]:
    """The outputs that the call makes, by name; Mismatch."""
    values = {name: params.get(name, row.get("default")) for name, row in op.params.items()}
    call = _bound(op, inputs, values)
    made = {}
    for port in op.outputs:
        needs = port.get("requires")
        if needs is None or needs in inputs or values.get(needs) is True:
            made[port["name"]] = (_type(op, port, inputs, values), call.shape(port))
    return made


def token_dims(op: Operator, inputs: Mapping[str, Kind], params: Mapping[str, Any]) -> dict[str, int]:
    """How many dims at the front number tokens, of tensors that may be slices of wider rows; Mismatch. An input and an
    output of one name are alike."""
    values = {name: params.get(name, row.get("default")) for name, row in op.params.items()}
    call = _bound(op, inputs, values)
    found = {}
    for port in (*op.inputs, *op.outputs):
        n = 0
        for dim in call.dims(port, None) if "strided" in port else []:
            symbol = dim.get("pack", dim.get("name"))
            if symbol not in op.tokens or symbol not in call.sizes:
                break
            n += len(call.sizes[symbol]) if "pack" in dim else 1
        found[port["name"]] = n
    return found


def stride(shape: tuple[int, ...], strides: tuple[int, ...], n_dims: int) -> int | None:
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
