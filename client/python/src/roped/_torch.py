"""The operators as torch.ops.roped.*: schemas, shapes without memory; gradients are in _gradients.py."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from roped._functions import TABLE, Operator
from roped._gradients import register
from roped._shapes import outputs
from roped._tensors import dtype_name, torch_dtype

_TYPES = {"float": "float?", "int": "int?", "bool": "bool?", "choice": "str?", "dtype": "str?", "ints": "int[]?"}
run: Callable[..., Any]  # a call in process: _in_process's, which sets it
_new_library: Any = torch.library.Library
_library = _new_library("roped", "DEF")


def _returned(op: Operator) -> list[str]:
    """What is updated in place is not returned; what is not made is returned empty."""
    return [name for name in op.output_names if name not in op.updated]


def _all(op: Operator, made: dict[str, torch.Tensor], like: torch.Tensor) -> Any:
    values = [made[name] if name in made else like.new_empty(0) for name in _returned(op)]
    return values[0] if len(values) == 1 else tuple(values)


def _schema(op: Operator) -> str:
    """Tensors in order, parameters by name; those that are not given are None."""
    aliases = iter("abcdefgh")
    arguments = []
    for name in op.tensors:
        kind = f"Tensor({next(aliases)}!)" if name in op.updated else "Tensor"
        label = f"{name}_tensor" if name in op.params else name
        arguments.append(f"{kind} {name}" if name in op.required else f"{kind}? {label}=None")
    arguments += ["*"] + [f"{_TYPES[param['kind']]} {name}=None" for name, param in op.params.items()]
    returned = ["Tensor"] * len(_returned(op))
    return f"{op.name}({', '.join(arguments)}) -> ({', '.join(returned)})"


def _given(op: Operator, arguments: Sequence[Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in zip(op.tensors, arguments) if tensor is not None}


def _params(named: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in named.items() if v is not None}


def _implementation(op: Operator) -> Callable[..., Any]:
    def implementation(*arguments: Any, **named: Any) -> Any:
        given = _given(op, arguments)
        made = zip(op.output_names, run(op, given, {}, _params(named)))
        return _all(op, {name: value for name, value in made if value is not None}, next(iter(given.values())))

    return implementation


def _fake(op: Operator) -> Callable[..., Any]:
    def fake(*arguments: Any, **named: Any) -> Any:
        given = _given(op, arguments)
        kinds = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in given.items()}
        made = outputs(op, kinds, _params(named))
        like = next(iter(given.values()))
        empty = {name: like.new_empty(shape, dtype=torch_dtype(dtype)) for name, (dtype, shape) in made.items()}
        return _all(op, empty, like)

    return fake


# Inductor's own: a third of the time of torch.empty
_guards: Any = getattr(torch._C._dynamo, "guards", None)


def empty(shape: tuple[int, ...], dtype: Any, device: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function, and its arguments, that makes a packed tensor on this device, which is the current one."""
    make = getattr(_guards, f"_empty_strided_{device.type}", None)
    if make is None:
        return partial(torch.empty, dtype=dtype, device=device), (shape,)
    return make, (shape, torch.empty(shape, device="meta").stride(), dtype)


_is_compiling, is_recording = torch.compiler.is_compiling, torch.is_grad_enabled
_n_modes, _transform, _is_tracing = (
    torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack, torch._C._is_tracing
)  # fmt: skip
watchers = (_is_compiling, _n_modes, _transform, _is_tracing)  # one of them says something true: see is_watched


def is_watched(values: Iterable[Any]) -> bool:
    """Must a call of torch's own tensors pass through torch? A compiler traces it, or a mode that sees what is
    dispatched, or vmap and its kin, or torch.jit; or a gradient is recorded, of an input or of what is overwritten."""
    if _is_compiling() or _n_modes() or _transform() is not None or _is_tracing():
        return True
    if not is_recording():
        return False
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def wants(tensors: Collection[Any]) -> bool:
    """The same of any call: tensors of other types see what is done to them."""
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return False
    has_others = any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
    return has_others or is_watched(tensors)


def dispatch(op: Operator, tensors: dict[str, Any], places: dict[str, Any], params: dict[str, Any]) -> list[Any]:
    """The outputs in order, copied into places where these are given."""
    made = getattr(torch.ops.roped, op.name)(*[tensors.get(name) for name in op.tensors], **params)
    returned = dict(zip(_returned(op), [made] if isinstance(made, torch.Tensor) else made))
    values: list[Any] = []
    for port in op.outputs:
        name, needs = port["name"], port.get("requires")
        flag = op.params.get(needs, {}).get("default")
        if needs is not None and needs not in tensors and params.get(needs, flag) is not True:
            values.append(None)
        else:
            values.append(tensors[name] if name in op.updated else returned[name])
    own = {name: value for name, value in zip(op.output_names, values) if name not in op.updated and value is not None}
    for name, place in places.items():  # copy_ would convert and repeat
        if name not in own:
            raise ValueError(f"output '{name}': not made by this call, expected {' or '.join(own)}")
        made = own[name]
        if place.dtype != made.dtype or place.shape != made.shape or place.device != made.device:
            raise ValueError(f"output '{name}': {_kind(place)}, expected {_kind(made)}")
    return [places[n].copy_(value) if n in places else value for n, value in zip(op.output_names, values)]


def _kind(tensor: Any) -> str:
    return f"{dtype_name(tensor.dtype)} of {list(tensor.shape)} on {tensor.device}"


for _op in TABLE.values():
    _library.define(_schema(_op), tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    for _key in ("CPU", "CUDA"):
        _library.impl(_op.name, _implementation(_op), _key)
    torch.library.register_fake(f"roped::{_op.name}", _fake(_op), lib=_library)
    register(_op, _library)
