"""act_and_mul and its gradient, beside the activations of transformers."""

import argparse
import dataclasses
from collections.abc import Iterator

import torch
from transformers.activations import ACT2FN, XIELUActivation
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from case import TYPES, Case, Metadata, Tensors, has_equal_bytes, randn

# Activations: roped's name, that of transformers
ACTIVATIONS = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu",
    "relu2": "relu2", "quick_gelu": "quick_gelu", "sigmoid": "sigmoid",
}  # fmt: skip

# name, type, parameters beside the activation, shape of each input
ACTIVATION_LAYOUTS = [
    ("swiglu_oai_f32", "f32", {"activation": "swiglu_oai", "interleaved": "true"}, {"x": (3, 96)}),
    ("swiglu_oai_limit_bf16", "bf16", {
        "activation": "swiglu_oai", "interleaved": "true", "limit": "2.5"}, {"x": (3, 96)}),
    ("pairs_limit_f32", "f32", {"interleaved": "true", "limit": "1.25"}, {"x": (3, 96)}),
    ("second_f32", "f32", {"activation": "gelu", "gate_second": "true"}, {"x": (3, 96)}),
    ("second_f16", "f16", {"gate_second": "true"}, {"x": (3, 96)}),
    ("two_tensors_f32", "f32", {"limit": "1.25"}, {"gate": (3, 48), "up": (3, 48)}),
    ("alone_f32", "f32", {"activation": "gelu", "gated": "false"}, {"x": (3, 48)}),
]  # fmt: skip


def draw_activation(name: str, dtype: str, parameters: Metadata, shapes: dict) -> Case:
    """Not below -3, where float32 formulas of gelu lose their digits."""
    metadata = {"op": "act_and_mul", **parameters}
    case = Case("act_and_mul", f"act_and_mul_{name}", metadata, {})
    while not case.inputs or not is_firm_activation(case):
        case.inputs = {key: randn(*shape) * 1.5 for key, shape in shapes.items()}
        case.inputs = {key: x.clamp(min=-3).to(TYPES[dtype]) for key, x in case.inputs.items()}
    return case


def activation_rows(rounded: tuple[str, ...]) -> list[tuple]:
    """As ACTIVATION_LAYOUTS, which end them. rounding=type, of those named, is stored in the type
    of x, and compared by its bits."""
    rows = [(f"{name}_f32", "f32", {"activation": name}, {"x": (3, 96)}) for name in ACTIVATIONS]
    for name in rounded:
        for dtype in ("bf16", "f16"):
            for rounding in ("once", "type"):
                parameters = {"activation": name, "rounding": rounding}
                rows.append((f"{name}_{rounding}_{dtype}", dtype, parameters, {"x": (3, 96)}))
    return rows + ACTIVATION_LAYOUTS


def draw_activations() -> Iterator[Case]:
    for row in activation_rows(("silu", "gelu_tanh")):
        yield draw_activation(*row)
    for activation, layout in (("gelu_tanh", {"gated": "false"}), ("quick_gelu", {}), ("swiglu_oai", {"interleaved": "true"})):
        parameters = {"activation": activation, "rounding": "steps", **layout}
        yield draw_activation(f"{activation}_steps_bf16", "bf16", parameters, {"x": (3, 96)})


def xielu_of(dtype: torch.dtype) -> XIELUActivation:
    """Numbers that no other default has."""
    return XIELUActivation(alpha_p_init=0.7, alpha_n_init=1.3, dtype=dtype)


def draw_rare_activations() -> Iterator[Case]:
    """Bloom's gelu, and the xIELU of Apertus, whose parameters are those of the module as it uses them."""
    yield draw_activation("gelu_fast_steps_bf16", "bf16", {"activation": "gelu_fast", "rounding": "steps", "gated": "false"}, {"x": (3, 96)})
    yield draw_activation("gelu_fast_f32", "f32", {"activation": "gelu_fast", "gated": "false"}, {"x": (3, 96)})
    for dtype, rounding in (("f32", "once"), ("bf16", "once"), ("bf16", "steps"), ("f16", "steps")):
        own = xielu_of(TYPES[dtype])
        alphas = {"alpha_p": torch.nn.functional.softplus(own.alpha_p), "alpha_n": own.beta + torch.nn.functional.softplus(own.alpha_n)}
        parameters = {"activation": "xielu", "rounding": rounding, "gated": "false"}
        parameters |= {key: repr(value.item()) for key, value in alphas.items()}
        yield draw_activation(f"xielu_{rounding}_{dtype}", dtype, parameters, {"x": (3, 96)})


def draw_activation_gradients() -> Iterator[Case]:
    for name, dtype, parameters, shapes in activation_rows(("silu",)):
        metadata = {"op": "act_and_mul_backward", **parameters}
        case = Case("act_and_mul_backward", f"act_and_mul_backward_{name}", metadata, {})
        while not case.inputs or not is_firm_activation_gradient(case):
            inputs = {key: randn(*shape) * 1.5 for key, shape in shapes.items()}
            y_shape = list(next(iter(shapes.values())))
            y_shape[-1] //= 2 if "x" in shapes and parameters.get("gated") != "false" else 1
            inputs["grad_y"] = randn(*y_shape)
            case.inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
        yield case


def gate_and_up(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """As the layout says, and clamped; up is 1 where there is none."""
    inputs, metadata = case.inputs, case.metadata
    if "gate" in inputs:
        gate, up = inputs["gate"], inputs["up"]
    elif metadata.get("gated") == "false":
        return inputs["x"], torch.ones_like(inputs["x"])
    elif "interleaved" in metadata:
        gate, up = inputs["x"][..., ::2], inputs["x"][..., 1::2]
    else:
        halves = inputs["x"].chunk(2, dim=-1)
        gate, up = halves[::-1] if "gate_second" in metadata else halves
    limit = float(metadata.get("limit", "inf"))
    return gate.clamp(max=limit), up.clamp(-limit, limit)


def activated_in_steps(case: Case) -> torch.Tensor:
    """As models' own activations do it, in the type of x."""
    name = case.metadata["activation"]
    if name == "swiglu_oai":
        own = argparse.Namespace(alpha=1.702, limit=7.0)
        return GptOssExperts._apply_gate(own, case.inputs["x"])
    gate, up = gate_and_up(case)
    if name == "gelu_fast":
        return bloom_gelu_forward(gate)
    if name == "xielu":
        return xielu_of(gate.dtype)(gate).detach()
    activated = ACT2FN["gelu_new" if name == "gelu_tanh" else name](gate)
    return activated if case.metadata.get("gated") == "false" else activated * up


def xielu(metadata: Metadata, x: torch.Tensor) -> torch.Tensor:
    """The module in float64, with the numbers of the call."""
    own = XIELUActivation(dtype=torch.float64)
    alpha_p, alpha_n = (torch.tensor(float(metadata[key]), dtype=torch.float64) for key in ("alpha_p", "alpha_n"))
    own.alpha_p.data = torch.log(torch.expm1(alpha_p))
    own.alpha_n.data = torch.log(torch.expm1(alpha_n - own.beta))
    return own(x).detach()


def act_and_mul(case: Case, slip: float = 1.0) -> Tensors:
    """With rounding=type the activation too is rounded, times slip, and y has the type of x."""
    name, rounding = (case.metadata.get(key) for key in ("activation", "rounding"))
    if rounding == "steps":
        return {"y.expected": activated_in_steps(case)}
    if name == "swiglu_oai":
        own = argparse.Namespace(alpha=1.702, limit=float(case.metadata.get("limit", 7)))
        return {"y.expected": GptOssExperts._apply_gate(own, case.inputs["x"].double()).float()}
    gate, up = gate_and_up(case)
    if name == "xielu":
        return {"y.expected": xielu(case.metadata, gate.double()).float()}
    activated = ACT2FN[ACTIVATIONS.get(name or "silu", name)](gate.double()) * slip
    if rounding == "type":
        return {"y.expected": (activated.to(gate.dtype).double() * up.double()).to(gate.dtype)}
    return {"y.expected": (activated * up.double()).float()}


def is_firm_activation(case: Case) -> bool:
    """As is_firm_norm; a model's MLP is the activation and a product in the type of x."""
    if case.metadata.get("rounding") != "type":
        return True
    gate, up = gate_and_up(case)
    found = [act_and_mul(case, slip)["y.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    found.append(ACT2FN[ACTIVATIONS[case.metadata["activation"]]](gate) * up)
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def act_and_mul_backward(case: Case, slip: float = 1.0) -> Tensors:
    """With rounding=type in the type of x, as autograd of a model's MLP there; slip is that of its
    product with the slope."""
    name, grad_y = case.metadata.get("activation", "silu"), case.inputs["grad_y"]
    own = {key: x for key, x in case.inputs.items() if key != "grad_y"}
    if case.metadata.get("rounding") == "type":
        gate, up = (x.detach() for x in gate_and_up(case))
        exact = gate.double().requires_grad_()
        activated = ACT2FN[ACTIVATIONS[name]](exact)
        to_act = (grad_y * up).double() * slip
        (of_gate,) = torch.autograd.grad(activated, exact, to_act)
        of_up = grad_y * (activated * slip).to(gate.dtype)
        return {"grad_x.expected": torch.cat((of_gate.to(gate.dtype), of_up.detach()), -1)}
    leaves = {key: x.double().requires_grad_() for key, x in own.items()}
    of_leaves = dataclasses.replace(case, inputs=leaves)
    if name == "swiglu_oai":
        constants = argparse.Namespace(alpha=1.702, limit=float(case.metadata.get("limit", 7)))
        y = GptOssExperts._apply_gate(constants, leaves["x"])
    else:
        gate, up = gate_and_up(of_leaves)
        y = ACT2FN[ACTIVATIONS[name]](gate) * up
    y.backward(grad_y.double())
    return {f"grad_{key}.expected": x.grad.float() for key, x in leaves.items()}


def is_firm_activation_gradient(case: Case) -> bool:
    """As is_firm_activation, beside autograd in the type of x."""
    if case.metadata.get("rounding") != "type":
        return True
    found = [act_and_mul_backward(case, slip)["grad_x.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    x = case.inputs["x"].clone().requires_grad_()
    gate, up = x.chunk(2, dim=-1)
    (ACT2FN[ACTIVATIONS[case.metadata["activation"]]](gate) * up).backward(case.inputs["grad_y"])
    return all(has_equal_bytes(found[0], other) for other in (*found[1:], x.grad))


OPERATORS = {
    "act_and_mul": act_and_mul,
    "act_and_mul_backward": act_and_mul_backward,
}
