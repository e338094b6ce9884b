"""Documents of programs that are written by calling operators instead of naming what they hand to each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roped._functions import Operator, methods, plain


class Value:
    """What a step takes or makes: a name in a recording. It has no numbers."""

    def __init__(self, recorder: "Recorder", name: str, view: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._recorder, self._view, self._is_used, self._is_output = recorder, dict(view or {}), False, False

    def __repr__(self) -> str:
        return f"<Value {self.name}>"

    def _text(self) -> Any:
        """As a document has it."""
        return {"name": self.name, **self._view} if self._view else self.name


class Recorder:
    """Operators are its methods, as they are a client's, but nothing runs: they become the steps of a document.

    Tensors are values: input(...), region(...), what a step has made, and regions of a client. A parameter may be
    parameter(...). output(name=value) says what comes back. document is what client.program(name, document) takes."""

    def __init__(self) -> None:
        self._inputs: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._outputs: list[Value] = []
        self._steps: list[tuple[str, dict[str, Value], dict[str, Value], dict[str, Any]]] = []
        self._names: set[str] = set()

    if TYPE_CHECKING:  # the operators

        def __getattr__(self, name: str) -> Any: ...

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def input(self, name: str, dtype: str | None = None, shape: Sequence[int | str] | None = None) -> Value:
        """An input of the program. dtype, as in "BF16", and shape, with sizes or names of sizes, are optional: what
        says them all is checked when the program is put."""
        self._take(name)
        declared = _view(dtype, shape)
        self._inputs.append({"name": name, **declared} if declared else name)
        return Value(self, name)

    def region(
        self,
        name: Any,
        offset: int = 0,
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        stride: int | None = None,
    ) -> Value:
        """A region of the server, or what begins offset bytes behind its start; dtype, shape and stride where it does
        not say them itself. name: a client's region, or what it is called."""
        place = f"@{getattr(name, 'name', name)}" + (f":{offset}" if offset else "")
        return Value(self, place, _view(dtype, shape, stride))

    def parameter(self, name: str, default: Any = None) -> str:
        """A parameter of the program, to be given to steps. Without a default each run gives it."""
        if name in self._parameters:
            raise ValueError(f"parameter '{name}' is there already")
        self._parameters[name] = plain(default)
        return f"${name}"

    def output(self, **values: Value) -> None:
        """What comes back, under these names."""
        for name, value in values.items():
            self._check(value, f"output '{name}'")
            if value.name.startswith("@") or not any(value in made.values() for _, _, made, _ in self._steps):
                raise ValueError(f"output '{name}' is '{value.name}', expected what a step makes")
            if value._is_output:
                raise ValueError(f"output '{name}' is output '{value.name}' already")
            self._take(name)
            value.name, value._is_output, value._is_used = name, True, True
            self._outputs.append(value)

    @property
    def document(self) -> dict[str, Any]:
        """The program so far. Outputs of steps that nobody uses have no names in it."""
        steps: list[dict[str, Any]] = []
        for op, taken, made, params in self._steps:
            step: dict[str, Any] = {"op": op, "in": {name: value._text() for name, value in taken.items()}}
            out = {name: value._text() for name, value in made.items() if value._is_used}
            steps.append(step | ({"out": out} if out else {}) | ({"params": params} if params else {}))
        return {
            "inputs": [*self._inputs],
            "parameters": dict(self._parameters),
            "steps": steps,
            "outputs": [value.name for value in self._outputs],
        }

    def _take(self, name: str) -> None:
        if name in self._names:
            raise ValueError(f"'{name}' is there already, expected a name of its own")
        self._names.add(name)

    def _check(self, value: Any, what: str) -> Value:
        if hasattr(value, "_as_input"):  # a client's region
            return self.region(value)
        if not isinstance(value, Value):
            raise TypeError(f"{what} is {type(value).__name__}, expected a value of the recording, or a region")
        if value._recorder is not self:
            raise ValueError(f"{what} is '{value.name}' of another recording")
        return value

    def _call(self, op: Operator, arguments: tuple[Any, ...], out: Any, named: dict[str, Any]) -> Any:
        tensors, params = op.bound(arguments, named, ["table"] if op.has_angles else [])
        params |= {name: value for name, value in tensors.items() if isinstance(value, str)}  # of both kinds
        taken = {
            name: self._check(value, f"{op.name}(): tensor '{name}'")
            for name, value in tensors.items()
            if not isinstance(value, str)
        }
        made: dict[str, Value] = {}
        results: list[Value] = []
        places = op.places(out)
        for name in places:
            if name not in op.output_names:
                raise TypeError(f"{op.name}() has no output '{name}'")
        for name in op.output_names:
            held = taken.get(name) if name in op.updated else None
            if name in places:
                value = self._check(places[name], f"{op.name}(): output '{name}'")
                if not value.name.startswith("@"):
                    raise ValueError(f"{op.name}(): output '{name}' is '{value.name}', expected a region")
                value._is_used = True
                made[name] = value
            elif held and held.name.startswith("@"):  # updated where it is
                value = held
            else:
                value = made[name] = Value(self, f"{op.name}{len(self._steps) + 1}.{name}")
            results.append(value)
        for value in taken.values():
            value._is_used = True
        self._steps.append((op.name, taken, made, params))
        return op.result(results)


def _view(dtype: str | None, shape: Sequence[int | str] | None, stride: int | None = None) -> dict[str, Any]:
    """What was said of a tensor."""
    members = {"dtype": dtype, "shape": None if shape is None else list(shape), "stride": stride}
    return {name: value for name, value in members.items() if value is not None}


for _name, _function in methods(Recorder._call, ["table"]):
    setattr(Recorder, _name, _function)
