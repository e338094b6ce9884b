"""Gradients of what torch calls. A result without one refuses, in a sentence, when a backward reaches it and not
before: models that only infer have parameters that require gradients, too."""

from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from roped._errors import Error
from roped._functions import Operator

_INSTEAD = (
    "what is not trained is called under torch.no_grad(), or goes in as tensor.detach(); "
    "what is trained is computed with torch's own operators"
)
_Function: Any = torch.autograd.Function
_new_library: Any = torch.library.Library
_library = _new_library("roped", "FRAGMENT")


# ------------------------------------------------------------- refusals
# An operator, because a compiler traces a backward before anybody asks for it.
def _refuse(gradient: Any, sentence: str, shape: Sequence[int], dtype: Any) -> Any:
    raise Error(sentence)


def _refuse_fake(gradient: Any, sentence: str, shape: Sequence[int], dtype: Any) -> Any:
    return gradient.new_empty(shape, dtype=dtype)


_library.define(
    "no_gradient(Tensor gradient, str sentence, SymInt[] shape, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("no_gradient", _refuse, "CompositeExplicitAutograd")
torch.library.register_fake("roped::no_gradient", _refuse_fake, lib=_library)


class _Refusal(_Function):  # type: ignore[misc,unused-ignore]
    """Results as they are, made from sources: a backward raises the sentence."""

    @staticmethod
    def forward(ctx: Any, sentence: str, results: Sequence[Any], *sources: Any) -> tuple[Any, ...]:
        ctx.sentence, ctx.kinds = sentence, [(tensor.shape, tensor.dtype) for tensor in sources]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        refused = (torch.ops.roped.no_gradient(gradients[0], ctx.sentence, *kind) for kind in ctx.kinds)
        return (None, None, *refused)


def _refused(sentence: str, results: Sequence[Any], sources: Sequence[Any]) -> Sequence[Any]:
    """The results; where a gradient of a source is recorded, such that a backward raises the sentence."""
    if not torch.is_grad_enabled():
        return results
    sources = [tensor for tensor in sources if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    made: Sequence[Any] = _Refusal.apply(sentence, results, *sources) if sources else results
    return made


def refused_remote(op: Operator, results: Sequence[Any], sources: Sequence[Any]) -> Sequence[Any]:
    """The same of results that a server made."""
    here = f"; roped.ops.{op.name}, in this process, has one" if op.name in FORMULAS else ""
    return _refused(f"roped.Client.{op.name} has no gradient{here}: {_INSTEAD}", results, sources)


def _recorder(op: Operator) -> Callable[..., Any]:
    """What torch runs of an operator without a formula where gradients may be recorded."""
    overload = getattr(torch.ops.roped, op.name).default
    sentence = f"roped.ops.{op.name} has no gradient: {_INSTEAD}"

    def recorder(keys: Any, *arguments: Any, **named: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            made = overload.redispatch(keys & torch._C._after_autograd_keyset, *arguments, **named)
        if isinstance(made, torch.Tensor):
            return _refused(sentence, [made], arguments)[0]
        return tuple(_refused(sentence, made, arguments))

    return recorder


# ------------------------------------------------------------- formulas
def _rope_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.has_k, ctx.params = inputs[1] is not None, keyword_only_inputs
    ctx.save_for_backward(*inputs[2:])  # where the angles come from


def _rope_backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[Any, ...]:
    """The gradient of a rotation is the rotation backwards; its angles have none."""
    sentence = f"roped.ops.rope has gradients of q and k, but none of its angles: {_INSTEAD}"
    angles = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[2:], *[False] * len(angles)]
    params = ctx.params | {"inverse": not ctx.params.get("inverse")}
    q, k = torch.ops.roped.rope(grad_q, grad_k if ctx.has_k else None, *angles, **params)
    of_angles = [
        torch.ops.roped.no_gradient(grad_q, sentence, tensor.shape, tensor.dtype) if is_wanted else None
        for tensor, is_wanted in zip(angles, wanted)
    ]
    return (q, k if ctx.has_k else None, *of_angles)


def _binary_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.function = keyword_only_inputs["function"] or "add"
    ctx.save_for_backward(*inputs)


def _binary_backward(ctx: Any, of_grad_a: torch.Tensor, of_grad_b: torch.Tensor) -> tuple[Any, ...]:
    """grad_a is the sum of g times the derivative of a + b, a - b, a * b or a / b in a, and grad_b that in b."""
    saved: Any = ctx.saved_tensors
    like: Any = [None if tensor is None else tensor.float() for tensor in saved]
    g, a, b = like
    u, v = of_grad_a.float(), of_grad_b.float()
    if ctx.function == "mul":
        made: list[Any] = [u * b + v * a, g * v, g * u]
    elif ctx.function == "div":
        made = [(u - v * a / b) / b, -g * v / b**2, g * (2 * v * a / b - u) / b**2]
    else:  # a and b do not matter
        made = [u + v if ctx.function == "add" else u - v, *(None if t is None else torch.zeros_like(t) for t in (a, b))]
    return tuple(None if t is None else t.sum_to_size(s.shape).to(s.dtype) for t, s in zip(made, saved))


def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.params = keyword_only_inputs
    ctx.save_for_backward(*inputs)


_OF_XIELU = ("alpha_p", "alpha_n", "slope", "eps")


def _act_and_mul_backward(ctx: Any, grad_y: torch.Tensor) -> tuple[Any, ...]:
    x, gate, up = ctx.saved_tensors
    if ctx.params.get("activation") == "xielu":
        sentence = f"xielu of act_and_mul has no gradient: {_INSTEAD}"
        return torch.ops.roped.no_gradient(grad_y, sentence, x.shape, x.dtype), None, None
    params = {name: value for name, value in ctx.params.items() if name not in _OF_XIELU}
    if params.get("rounding") == "steps":
        params["rounding"] = "type"
    made = torch.ops.roped.act_and_mul_backward(grad_y, x, gate, up, **params)
    return tuple(None if t is None else g for t, g in zip((x, gate, up), made))


# what a norm, or a norm of a sum, has and its gradient has not
_FORWARD = ("heads", "sum_rounding", "x_scale", "residual_scale", "addend_scale", "sum_scale", "sum_order")


def _without_gradient(params: dict[str, Any], x: Any, grad_y: Any) -> str:
    """What of these the gradients of norms do not know, or ""."""
    if (params.get("heads") or 1) != 1:
        return "with heads"
    if params.get("rounding") == "scale":
        return "with rounding=scale"
    return "" if x.dtype == grad_y.dtype else "with a residual of another type than x"


def _of_norm(ctx: Any, grad_y: Any, grad_residual: Any = None) -> tuple[Any, ...]:
    """The gradients of x, of the weight, and where the norm has a bias, of that."""
    x, *rest = ctx.saved_tensors
    unknown = _without_gradient(ctx.params, x, grad_y)
    if unknown:
        sentence = f"a norm has no gradient {unknown}: {_INSTEAD}"
        refused = (None if t is None else torch.ops.roped.no_gradient(grad_y, sentence, t.shape, t.dtype) for t in (x, *rest))
        return tuple(refused)
    params = {name: value for name, value in ctx.params.items() if name not in _FORWARD}
    backward = torch.ops.roped.rmsnorm_backward if len(rest) == 1 else torch.ops.roped.layer_norm_backward
    grad_x, *sums = backward(grad_y, x, *rest, grad_residual, **params)
    return grad_x, *(None if tensor is None else made for tensor, made in zip(rest, sums))


def _norm_backward(ctx: Any, grad_y: torch.Tensor) -> tuple[Any, ...]:
    return _of_norm(ctx, grad_y)


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.params = keyword_only_inputs
    ctx.has_addend = inputs[-1] is not None
    ctx.save_for_backward(output[1], *inputs[2:-1])


def _add_norm_backward(ctx: Any, grad_y: torch.Tensor, grad_residual: torch.Tensor) -> tuple[Any, ...]:
    """Of the sum as it was returned; all that is added has its gradient, times what it was multiplied by."""
    grad_sum, *sums = _of_norm(ctx, grad_y, grad_residual)

    def scaled(name: str, gradient: Any) -> Any:
        scale = ctx.params.get(name)
        return gradient if scale is None or scale == 1 else gradient * scale

    whole = scaled("sum_scale", grad_sum)
    terms = [scaled(name, whole) for name in ("x_scale", "residual_scale")]
    return *terms, *sums, scaled("addend_scale", whole) if ctx.has_addend else None


# setup_context and backward
FORMULAS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rope": (_rope_setup, _rope_backward),
    "binary_backward": (_binary_setup, _binary_backward),
    "act_and_mul": (_setup, _act_and_mul_backward),
    "rmsnorm": (_setup, _norm_backward),
    "add_rmsnorm": (_add_norm_setup, _add_norm_backward),
    "layer_norm": (_setup, _norm_backward),
    "add_layer_norm": (_add_norm_setup, _add_norm_backward),
}


def register(op: Operator, library: Any) -> None:
    if op.name in FORMULAS:
        setup, backward = FORMULAS[op.name]
        torch.library.register_autograd(f"roped::{op.name}", backward, setup_context=setup, lib=library)
    else:
        library.impl(op.name, _recorder(op), "Autograd", with_keyset=True)
