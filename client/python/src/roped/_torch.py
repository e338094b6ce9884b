"""The operators as torch.ops.roped.*: schemas, shapes without memory, gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from roped._functions import TABLE, Operator
from roped._in_process import run
from roped._shapes import outputs
from roped._tensors import dtype_name, torch_dtype

_TYPES = {"float": "float?", "int": "int?", "bool": "bool?", "choice": "str?", "dtype": "str?", "ints": "int[]?"}
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
        return _all(op, run(op, _given(op, arguments), {}, _params(named)), arguments[0])

    return implementation


def _fake(op: Operator) -> Callable[..., Any]:
    def fake(*arguments: Any, **named: Any) -> Any:
        given = _given(op, arguments)
        kinds = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in given.items()}
        made = outputs(op, kinds, _params(named))
        like = arguments[0]
        empty = {name: like.new_empty(shape, dtype=torch_dtype(dtype)) for name, (dtype, shape) in made.items()}
        return _all(op, empty, like)

    return fake


def is_watched(tensors: dict[str, Any]) -> bool:
    """Does anyone trace the call, or want its gradient? Else it need not pass torch."""
    if torch.compiler.is_compiling():
        return True
    is_recording = torch.is_grad_enabled()
    for tensor in tensors.values():
        if not isinstance(tensor, torch.Tensor):
            return False
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or (is_recording and tensor.requires_grad):
            return True
    return False


def dispatch(op: Operator, tensors: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    made = getattr(torch.ops.roped, op.name)(*[tensors.get(name) for name in op.tensors], **params)
    returned = dict(zip(_returned(op), [made] if isinstance(made, torch.Tensor) else made))
    values = {}
    for port in op.outputs:
        name, needs = port["name"], port.get("requires")
        flag = op.params.get(needs, {}).get("default")
        if needs is None or needs in tensors or params.get(needs, flag) is True:
            values[name] = tensors[name] if name in op.updated else returned[name]
    return values


# -------------------------------------------------------------- gradients
def _rope_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.has_k, ctx.params = inputs[1] is not None, keyword_only_inputs
    ctx.save_for_backward(*inputs[2:])  # where the angles come from


def _rope_backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[Any, ...]:
    """The gradient of a rotation is the rotation backwards."""
    params = ctx.params | {"inverse": not ctx.params.get("inverse")}
    angles = ctx.saved_tensors
    q, k = torch.ops.roped.rope(grad_q, grad_k if ctx.has_k else None, *angles, **params)
    return (q, k if ctx.has_k else None, *[None] * len(angles))


for _op in TABLE.values():
    _library.define(_schema(_op), tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    for _key in ("CPU", "CUDA"):
        _library.impl(_op.name, _implementation(_op), _key)
    torch.library.register_fake(f"roped::{_op.name}", _fake(_op), lib=_library)
torch.library.register_autograd("roped::rope", _rope_backward, setup_context=_rope_setup, lib=_library)
