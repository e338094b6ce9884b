"""Gradients of what torch calls. A result without one refuses, in a sentence, when a backward reaches it and not
before: models that only infer have parameters that require gradients, too."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found,unused-ignore]

from roped._errors import Error
from roped._functions import TABLE, Operator

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
def _setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.params = keyword_only_inputs
    ctx.save_for_backward(*inputs)


def _rope_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.has_k, ctx.params = inputs[1] is not None, keyword_only_inputs
    ctx.save_for_backward(*inputs[2:])  # where the angles come from


def _turned_back(ctx: Any, sentence: str, grad_q: Any, grad_k: Any, angles: Sequence[Any], at: int) -> tuple[Any, ...]:
    """The gradient of a rotation is the rotation backwards; its angles, the inputs from at on, have none."""
    params = {name: ctx.params[name] for name in _ANGLES.split()}
    params["inverse"] = not params["inverse"]
    q, k = torch.ops.roped.rope(grad_q, grad_k, *angles, **params)
    wanted = [*ctx.needs_input_grad[at:], *[False] * len(angles)]
    of_angles = [
        torch.ops.roped.no_gradient(grad_q, f"{sentence}, but none of its angles: {_INSTEAD}", tensor.shape, tensor.dtype)
        if is_wanted else None
        for tensor, is_wanted in zip(angles, wanted)
    ]  # fmt: skip
    return q, None if grad_k is None else k, *of_angles


def _rope_backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[Any, ...]:
    sentence = "roped.ops.rope has gradients of q and k"
    return _turned_back(ctx, sentence, grad_q, grad_k if ctx.has_k else None, ctx.saved_tensors, at=2)


def _binary_backward(ctx: Any, of_grad_a: torch.Tensor, of_grad_b: torch.Tensor) -> tuple[Any, ...]:
    """grad_a is the sum of g times the derivative of a + b, a - b, a * b or a / b in a, and grad_b that in b."""
    saved, function = ctx.saved_tensors, ctx.params["function"]
    like: Any = [None if tensor is None else tensor.float() for tensor in saved]
    g, a, b = like
    u, v = of_grad_a.float(), of_grad_b.float()
    if function == "mul":
        made: list[Any] = [u * b + v * a, g * v, g * u]
    elif function == "div":
        made = [(u - v * a / b) / b, -g * v / b**2, g * (2 * v * a / b - u) / b**2]
    else:  # a and b do not matter
        made = [u - v if function == "sub" else u + v, *(None if t is None else torch.zeros_like(t) for t in (a, b))]
    return tuple(None if t is None else t.sum_to_size(s.shape).to(s.dtype) for t, s in zip(made, saved))


def _xielu_backward(params: dict[str, Any], grad_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x > 0: alpha_p * x^2 + slope * x, else alpha_n * (e^min(x, eps) - 1 - x) + slope * x; x at most limit."""
    known = TABLE["act_and_mul"].params
    alpha_p, alpha_n, slope, eps, limit = (
        known[name].get("default") if params[name] is None else params[name]
        for name in ("alpha_p", "alpha_n", "slope", "eps", "limit")
    )
    z = x.float()
    of_power = torch.where(z < eps, z.clamp(max=eps).exp(), 0.0)
    made = torch.where(z > 0, 2 * alpha_p * z, alpha_n * (of_power - 1)) + slope
    made = made if limit is None else torch.where(z > limit, 0.0, made)
    return (grad_y.float() * made).to(x.dtype)


def _act_and_mul_backward(ctx: Any, grad_y: torch.Tensor) -> tuple[Any, ...]:
    """rounding=steps has the gradient of rounding=type: a rounding has no slope of its own."""
    x, gate, up = ctx.saved_tensors
    if ctx.params["activation"] == "xielu":  # which has no up
        return tuple(None if t is None else _xielu_backward(ctx.params, grad_y, t) for t in (x, gate, up))
    params = {name: ctx.params[name] for name in f"activation rounding {_ACTIVATED}".split()}
    params["rounding"] = "type" if params["rounding"] == "steps" else params["rounding"]
    made = torch.ops.roped.act_and_mul_backward(grad_y, x, gate, up, **params)
    return tuple(None if t is None else g for t, g in zip((x, gate, up), made))


def _as_rounded(params: dict[str, Any], tensor: Any) -> Any:
    """Of a norm that rounds on its way, the gradient does, too, to the tensor's type; that of another one is float32."""
    return tensor.float() if params["rounding"] in (None, "once") else tensor


def _of_norm(
    kind: str, params: dict[str, Any], grad_y: Any, x: Any, *weights: Any, heads: int = 1, grad_x: Any = None
) -> tuple[Any, ...]:
    """The gradients of x, with grad_x added, and of what is given of weight and bias. What the norm rounds has the type
    of grad_y; x may be float32 beside it."""
    norm = {name: params[name] for name in ("eps", "weight_bias", "rounding")}
    rounds, dtype = norm["rounding"] not in (None, "once"), grad_y.dtype
    grad_y = grad_y if rounds else grad_y.to(x.dtype)
    backward = getattr(torch.ops.roped, f"{kind}_backward")
    if heads == 1 and norm["rounding"] != "scale" and grad_y.dtype == x.dtype:
        grad_x, *sums = backward(grad_y, x, *weights, grad_residual=grad_x, **norm)
        return grad_x, *(None if tensor is None else made for tensor, made in zip(weights, sums))

    # the norm, and then products with weights, of which every head has its own
    def by_heads(tensor: Any) -> Any:
        return None if tensor is None else tensor.float().unflatten(-1, (heads, -1))

    def rounded(tensor: Any) -> Any:
        return tensor.to(dtype).float() if rounds else tensor

    del norm["weight_bias"]
    unit = getattr(torch.ops.roped, kind)(_as_rounded(params, x), heads=heads, **norm)
    g = grad_y.float()
    of_unit = g if weights[0] is None else rounded(g * (weights[0].float() + (params["weight_bias"] or 0)))
    grad_rows, *_ = backward(by_heads(of_unit), by_heads(x), grad_residual=by_heads(grad_x), eps=params["eps"])
    sums = [g * rounded(unit.float()), g]
    of_weights = (None if t is None else made.sum_to_size(t.shape).to(t.dtype) for t, made in zip(weights, sums))
    return grad_rows.flatten(-2).to(x.dtype), *of_weights


def _norm_backward(ctx: Any, grad_y: torch.Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # once: a checkpoint gives them no second time
    kind = "rmsnorm" if len(saved) == 2 else "layer_norm"
    return _of_norm(kind, ctx.params, grad_y, *saved, heads=ctx.params["heads"] or 1)


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.params = keyword_only_inputs
    ctx.has_addend = inputs[-1] is not None
    ctx.save_for_backward(output[1], *inputs[2:-1])


def _add_norm_backward(ctx: Any, grad_y: torch.Tensor, grad_residual: torch.Tensor) -> tuple[Any, ...]:
    """Of the sum as it was returned; all that is added has its gradient, times what it was multiplied by."""
    total, *weights = ctx.saved_tensors
    kind = "rmsnorm" if len(weights) == 1 else "layer_norm"
    x = total.to(grad_y.dtype).to(total.dtype) if ctx.params["sum_rounding"] == "type" else total
    heads = ctx.params["heads"] or 1
    grad_sum, *sums = _of_norm(kind, ctx.params, grad_y, x, *weights, heads=heads, grad_x=grad_residual)

    def scaled(name: str, dtype: Any) -> Any:
        scale = math.prod(1.0 if ctx.params[one] is None else ctx.params[one] for one in ("sum_scale", name))
        return (grad_sum if scale == 1 else grad_sum.float() * scale).to(dtype)

    addend = scaled("addend_scale", grad_y.dtype) if ctx.has_addend else None
    return scaled("x_scale", grad_y.dtype), scaled("residual_scale", total.dtype), *sums, addend


def _rmsnorm_add_backward(ctx: Any, grad_sum: torch.Tensor) -> tuple[Any, ...]:
    x, _, weight = ctx.saved_tensors
    grad_x, grad_weight = _of_norm("rmsnorm", ctx.params, grad_sum, x, weight)
    return grad_x, grad_sum, grad_weight


def _gated_rmsnorm_backward(ctx: Any, grad_y: torch.Tensor) -> tuple[Any, ...]:
    """The product with act(gate) is act_and_mul, in float32: before the norm, or behind it."""
    (x, gate, weight), params = ctx.saved_tensors, ctx.params
    of_product = partial(torch.ops.roped.act_and_mul_backward, activation=params["gate_activation"])
    heads = x.shape[-1] // (params["group_size"] or x.shape[-1])
    wide = gate.float()
    if params["gate_first"]:
        product = torch.ops.roped.act_and_mul(None, wide, x.float(), activation=params["gate_activation"])
        grad_product, grad_weight = _of_norm("rmsnorm", params, grad_y, product, weight, heads=heads)
        _, grad_gate, grad_x = of_product(grad_product, None, wide, x.float())
    else:
        x = _as_rounded(params, x)
        norm = {name: params[name] for name in ("eps", "weight_bias", "rounding")}
        y = torch.ops.roped.rmsnorm(x, weight, heads=heads, **norm)
        _, grad_gate, grad_norm = of_product(grad_y.float(), None, wide, y.float())
        grad_x, grad_weight = _of_norm("rmsnorm", params, grad_norm.to(x.dtype), x, weight, heads=heads)
    return grad_x.to(gate.dtype), grad_gate.to(gate.dtype), grad_weight


def _qk_rmsnorm_rope_backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[Any, ...]:
    """Rotated back in float32, then the norm of each head."""
    q, k, q_weight, k_weight, *angles = ctx.saved_tensors
    sentence = "roped.ops.qk_rmsnorm_rope has gradients of q, k and their weights"
    angles = [t.float() if t is not None and t.is_floating_point() else t for t in angles]
    turned_k = None if k is None else grad_k.float()
    turned_q, turned_k, *of_angles = _turned_back(ctx, sentence, grad_q.float(), turned_k, angles, at=4)

    def of(g: Any, x: Any, weight: Any) -> tuple[Any, Any]:
        if x is None:
            return None, None
        rows = _as_rounded(ctx.params, x).reshape(-1, ctx.params["head_dim"] or x.shape[-1])
        grad_x, grad_weight = _of_norm("rmsnorm", ctx.params, g.reshape(rows.shape).to(rows.dtype), rows, weight)
        return grad_x.to(x.dtype).reshape(x.shape), grad_weight

    (of_q, of_q_weight), (of_k, of_k_weight) = of(turned_q, q, q_weight), of(turned_k, k, k_weight)
    return of_q, of_k, of_q_weight, of_k_weight, *of_angles


class Formula(NamedTuple):
    """A gradient, and the parameters that it knows; of choices it may name the values. A parameter, or a choice, that an
    operator is given later is not among them: until its gradient is written, a backward of it refuses."""

    backward: Callable[..., Any]
    knows: str
    setup: Callable[..., Any] = _setup

    def unknown(self, op: Operator, params: dict[str, Any]) -> str:
        """What of these is not known and has an effect, or ""."""
        known = {word.partition("=")[0]: word.partition("=")[2] for word in self.knows.split()}
        for name, value in params.items():
            if value is None or value == op.params[name].get("default"):
                continue
            if name not in known or (known[name] and value not in known[name].split("|")):
                return f"{name}={value}"
        return ""


_ANGLES = (
    "style layout head_dim rotary_dim rotary_offset offset inverse theta scaling factor low_freq_factor high_freq_factor "
    "beta_fast beta_slow mscale mscale_all_dim attention_factor truncate max_position original_max_position longrope "
    "alpha mixed_b mrope_section mrope_axes mrope_interleaved mrope_turns angle_precision angles"
)
_ROWS, _LAYERS = "eps weight_bias rounding=once|hf", "eps weight_bias rounding=once|type"
_SUMS = " heads sum_rounding=once|type x_scale residual_scale addend_scale sum_scale sum_order=addends_first|residual_first"
_ACTIVATIONS = "silu|gelu|gelu_tanh|relu|relu2|quick_gelu|sigmoid|swiglu_oai|gelu_fast"
_ACTIVATED = "gated interleaved gate_second limit alpha beta"
FORMULAS = {
    "rope": Formula(_rope_backward, _ANGLES, _rope_setup),
    "qk_rmsnorm_rope": Formula(_qk_rmsnorm_rope_backward, f"{_ROWS} {_ANGLES}"),
    "binary_backward": Formula(_binary_backward, "function=add|sub|mul|div a_shape b_shape"),
    "act_and_mul": Formula(
        _act_and_mul_backward,
        f"activation={_ACTIVATIONS}|xielu rounding=once|type|steps {_ACTIVATED} alpha_p alpha_n slope eps",
    ),
    "rmsnorm": Formula(_norm_backward, f"{_ROWS}|scale heads"),
    "add_rmsnorm": Formula(_add_norm_backward, _ROWS + _SUMS, _add_norm_setup),
    "rmsnorm_add": Formula(_rmsnorm_add_backward, f"{_ROWS} sum_rounding=once|type"),
    "gated_rmsnorm": Formula(_gated_rmsnorm_backward, f"{_ROWS} gate_activation=silu|sigmoid gate_first group_size"),
    "layer_norm": Formula(_norm_backward, f"{_LAYERS} heads"),
    "add_layer_norm": Formula(_add_norm_backward, _LAYERS + _SUMS, _add_norm_setup),
}


def _guarded(op: Operator) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The setup and the backward of a formula, which refuses what it does not know."""

    def setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        ctx.unknown = FORMULAS[op.name].unknown(op, keyword_only_inputs)
        if ctx.unknown:
            ctx.kinds = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs]
        else:
            FORMULAS[op.name].setup(ctx, inputs, keyword_only_inputs, output)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if not ctx.unknown:
            made: tuple[Any, ...] = FORMULAS[op.name].backward(ctx, *gradients)
            return made
        sentence = f"roped.ops.{op.name} has no gradient with {ctx.unknown}: {_INSTEAD}"
        return tuple(k and torch.ops.roped.no_gradient(gradients[0], sentence, *k) for k in ctx.kinds)

    return setup, backward


def register(op: Operator, library: Any) -> None:
    if op.name in FORMULAS:
        setup, backward = _guarded(op)
        torch.library.register_autograd(f"roped::{op.name}", backward, setup_context=setup, lib=library)
    else:
        library.impl(op.name, _recorder(op), "Autograd", with_keyset=True)
