"""Methods made from the operator table: one for each operator, with its
arguments, defaults and text. Only what a caller gives is passed on, because an
argument that is given may exclude another."""

import inspect
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np

from roped._operators import OPERATORS

# whose method it is, the operator, arguments by place, out=, arguments by name
Call = Callable[[Any, "Operator", tuple[Any, ...], Any, dict[str, Any]], Any]


_BOOLS = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}  # as the daemon reads them


def plain(value: Any) -> Any:
    """What numpy calls a bool, an int or a float is one: as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


class Operator:
    """A row of the table, with what every call of it looks up."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.name: str = row["name"]
        self.help: str = row["help"]
        self.forms, self.inputs, self.outputs = row["forms"], row["inputs"], row["outputs"]
        self.chosen_types: dict[str, dict[str, str]] = row["chosen_types"]
        self.has_angles = row.get("angles", False)
        self.tokens: list[str] = row.get("tokens", "").split()  # dims that number them
        self.params = {param["name"]: param for param in row["parameters"]}
        self.tensors = [port["name"] for port in sorted(self.inputs, key=lambda port: "optional" in port)]
        self.positional = [name for name in self.tensors if name not in self.params]  # the others are numbers or tensors
        self.required = [port["name"] for port in self.inputs if "optional" not in port]
        self.updated = [port["name"] for port in self.inputs if "updated" in port]
        self.indexes = [port["name"] for port in self.inputs if "index" in port]
        self.input_names = [port["name"] for port in self.inputs]
        self.output_names = [port["name"] for port in self.outputs]
        title = "".join(word.capitalize() for word in self.name.split("_"))
        self.result_type: Any = namedtuple(f"{title}Result", self.output_names)  # type: ignore[misc]
        globals()[self.result_type.__name__] = self.result_type  # where pickle looks for it

    def bound(
        self, arguments: tuple[Any, ...], named: dict[str, Any], more: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors and parameters by name, as they were written; more: parameters beside the operator's own."""
        if len(arguments) > len(self.positional):
            raise TypeError(f"{self.name}() takes {len(self.positional)} tensors, {len(arguments)} were given")
        tensors = {name: tensor for name, tensor in zip(self.positional, arguments) if tensor is not None}
        params: dict[str, Any] = {}
        for name, value in named.items():
            if name in tensors:
                raise TypeError(f"{self.name}() got tensor '{name}' twice")
            if name not in self.positional and name not in self.params and name not in more:
                raise self._refusal(name, more)
            if name not in self.positional:
                value = plain(value)
            if value is not None:
                is_tensor = name in self.tensors and not isinstance(value, int | float)
                (tensors if is_tensor else params)[name] = value if is_tensor else self._read(name, value)
        for name in self.required:
            if name not in tensors:
                raise TypeError(f"{self.name}() misses tensor '{name}'")
        return tensors, params

    def _read(self, name: str, value: Any) -> Any:
        """A flag as a bool, because some outputs are there if it is set; what is none is refused with the call."""
        is_flag = self.params.get(name, {}).get("kind") == "bool" and isinstance(value, int | str)
        return _BOOLS.get(value, value) if is_flag else value

    def _refusal(self, name: str, more: Collection[str]) -> TypeError:
        near = get_close_matches(name, [*self.positional, *self.params, *more], 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return TypeError(f"{self.name}() got an unexpected argument '{name}'{hint}")

    def result(self, values: list[Any]) -> Any:
        """Of outputs in order, None for what was not made: the only one itself, or a named tuple."""
        return values[0] if len(values) == 1 else tuple.__new__(self.result_type, values)

    def places(self, out: Any) -> dict[str, Any]:
        """out= of a call by name: of an operator with one output, it may be the place itself."""
        if out is None or isinstance(out, dict):
            return out or {}
        if len(self.output_names) > 1:
            raise TypeError(f"{self.name}() has outputs {', '.join(self.output_names)}: out is a dict of them")
        return {self.output_names[0]: out}


def _signature(op: Operator, first: list[str], more: list[str]) -> inspect.Signature:
    kind = inspect.Parameter
    arguments = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in first]
    arguments += [
        kind(name, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if name in op.required else None)
        for name in op.positional
    ]
    arguments += [kind("out", kind.KEYWORD_ONLY, default=None)]
    arguments += [kind(p["name"], kind.KEYWORD_ONLY, default=p.get("default")) for p in op.params.values()]
    arguments += [kind(name, kind.KEYWORD_ONLY, default=None) for name in more]
    return inspect.Signature(arguments)


def _method(op: Operator, call: Call, more: list[str]) -> Any:
    def function(self: Any, *arguments: Any, out: Any = None, **named: Any) -> Any:
        return call(self, op, arguments, out, named)

    return described(function, op, ["self"], more)


def described(function: Any, op: Operator, first: list[str], more: list[str]) -> Any:
    """The function as help() shows it. first, more: arguments before the operator's own, and after."""
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.help
    function.__signature__ = _signature(op, first, more)
    return function


def methods(call: Call, angle_parameters: list[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each operator's name and method. angle_parameters: more, of those that take angles."""
    for op in TABLE.values():
        yield op.name, _method(op, call, angle_parameters if op.has_angles else [])


def text_of(value: Any) -> str:
    """A parameter as a query string has it."""
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


TABLE = {name: Operator(row) for name, row in OPERATORS.items()}
