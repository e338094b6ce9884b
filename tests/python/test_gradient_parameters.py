"""Every parameter of every operator that has a gradient, from the descriptors: with it the gradient is that of what is
computed, which differences say. One that an operator is given later fails here until its gradient is written."""

import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from test_torch import parts, random  # noqa: E402

import roped  # noqa: E402
from roped import _gradients, ops  # noqa: E402
from roped._functions import TABLE  # noqa: E402

SHAPES = {
    "q": (3, 2, 8), "k": (3, 1, 8), "q_weight": (8,), "k_weight": (8,), "weight": (16,), "bias": (16,),
    "grad_output": (3, 16), "a": (3, 1), "b": (16,),
}  # fmt: skip
POSITIONS = torch.tensor([2, 5, 9])
OF_AXES = {"positions": POSITIONS * torch.tensor([[1], [2], [3]])}
FACTORS = {"short_factor": torch.rand(4) + 1, "long_factor": torch.rand(4) + 3}
YARN = {"factor": 4.0, "original_max_position": 4096}
# What a call has besides a parameter, for that to count; the first of these will do
ROTARY = [
    {}, {"positions": None}, {"scaling": "linear", "factor": 4.0}, {"scaling": "ntk", "factor": 4.0},
    {"scaling": "dynamic", "factor": 2.0, "max_position": 4}, {"scaling": "yarn", **YARN},
    {"scaling": "yarn", "mscale": 2.0, "mscale_all_dim": 0.5, **YARN}, {"scaling": "deepseek_yarn", **YARN},
    {"scaling": "proportional", "factor": 2.0, "rotary_dim": 4},
    {"scaling": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8},
    *({"scaling": "longrope", "original_max_position": n, "max_position": 32, **FACTORS} for n in (8, 16)),
    *({"mrope_section": sections, **OF_AXES} for sections in ([2, 1, 1], [1, 1, 2])),
    {"rotary_dim": 4}, {"mrope_section": [2, 2], "positions": OF_AXES["positions"][:2]},
]  # fmt: skip
ACTIVATIONS = [
    {}, {"activation": "swiglu_oai"}, {"gate": (3, 16), "up": (3, 16), "x": None}, {"x": (3, 16)}, {"gated": False},
    {"activation": "xielu", "gated": False},
]  # fmt: skip
BESIDE = {
    "rope": ROTARY, "qk_rmsnorm_rope": ROTARY, "act_and_mul": ACTIVATIONS,
    "binary_backward": [{}, {"a": None, "b": None, "a_shape": [3, 1], "b_shape": [16]}],
    "gated_rmsnorm": [{}, {"gate_first": True}],
}  # fmt: skip
VALUES = {
    "head_dim": [8], "rotary_dim": [4], "rotary_offset": [2], "offset": [3], "max_position": [64],
    "original_max_position": [16], "high_freq_factor": [2.0], "beta_fast": [4.0], "beta_slow": [16.0],
    "mrope_section": [[1, 2, 1]], "mrope_axes": [[2, 0, 1]], "mrope_turns": [2], "heads": [4], "group_size": [4],
    "a_shape": [[3, 16]], "b_shape": [[3, 16]],
}  # fmt: skip
# What no result of these calls shows: where angles come from, and the last digits of float32
UNSEEN = {"layout", "head_dim", "angles", "angle_precision"}
WEIGHTS = {"weight", "bias", "q_weight", "k_weight"}


def values_of(param):
    if param["kind"] == "choice":
        return [choice for choice in param["choices"] if choice != param["default"]]
    if param["kind"] == "bool":
        return [not param["default"]]
    if param["name"] == "eps" and param["default"] < 0:  # of xielu, which bounds x
        return [-0.5]
    return VALUES.get(param["name"]) or [1.5 * param.get("default", 0) or 0.5]


def tensors_of(name, **others):
    """Of all inputs but those of angles: others may have another shape, or are left out."""
    angles = {"indptr", "offsets", "cos_sin_cache", "cos", "sin", "short_factor", "long_factor"}
    shapes = {tensor: SHAPES.get(tensor, (3, 16)) for tensor in TABLE[name].tensors if tensor not in angles}
    if name == "act_and_mul":
        shapes = {"x": (3, 32)}
    shapes |= {tensor: shape for tensor, shape in others.items() if tensor in TABLE[name].tensors}
    made = {tensor: random(*shape) if isinstance(shape, tuple) else shape for tensor, shape in shapes.items()}
    return made | ({"positions": POSITIONS} if shapes.get("positions") == (3, 16) else {})


def result(name, tensors, params):
    try:
        return parts(getattr(ops, name)(**{tensor: value for tensor, value in tensors.items() if value is not None}, **params))
    except roped.Error:
        return None


def counts(name, tensors, params, param):
    """Is there such a call, and does it differ from that without the parameter, in float32 or in bfloat16?"""
    for dtype in (torch.float32, torch.bfloat16):
        given = {n: t.to(dtype) if torch.is_tensor(t) and t.is_floating_point() else t for n, t in tensors.items()}
        y = result(name, given, params)
        if y is None:
            return False
        without = result(name, given, {n: value for n, value in params.items() if n != param})
        if param in UNSEEN or without is None or any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(y, without)):
            return True
    return False


def call_of(name, param, value):
    """Tensors and parameters, with which the parameter counts."""
    torch.manual_seed(3)
    for beside in BESIDE.get(name, [{}]):
        tensors = tensors_of(name, **beside)
        params = {n: v for n, v in beside.items() if n in TABLE[name].params and n not in tensors} | {param: value}
        if param == "layout":
            tensors |= {n: random(1, 3, 8) for n in "qk"}
        if counts(name, tensors, params, param):
            return tensors, params
    raise AssertionError(f"no call is known in which {param}={value} of {name} counts: BESIDE says what it needs")


def floats(tensors):
    return [n for n, t in tensors.items() if torch.is_tensor(t) and t.is_floating_point() and not n.endswith("_factor")]


def differences(name, tensors, params, tensor, step=2e-3):
    """Of the results' product with what is drawn: its gradient of the tensor in a direction, and what differences of a
    step say, within 0.5 % of the gradient's length."""
    of, direction = [random(*part.shape) for part in result(name, tensors, params)], random(*tensors[tensor].shape)
    x = tensors[tensor].clone().requires_grad_()
    torch.autograd.backward(result(name, tensors | {tensor: x}, params), of)

    def at(distance):
        moved = result(name, tensors | {tensor: tensors[tensor] + distance * direction}, params)
        return sum((part.double() * weight).sum().item() for part, weight in zip(moved, of))

    found, expected = (x.grad * direction).sum().item(), (at(step) - at(-step)) / (2 * step)
    assert abs(found - expected) <= 5e-3 * max(1.0, x.grad.norm().item()), (tensor, found, expected)


def gradients(name, tensors, params, of):
    own = {n: tensors[n].clone().requires_grad_() for n in floats(tensors)}
    y = result(name, tensors | own, params)
    if y is None:
        return None
    torch.autograd.backward(y, [weight.to(part.dtype) for part, weight in zip(y, of)])
    return {n: x.grad for n, x in own.items()}


def narrow(name, tensors, params):
    """Gradients of bfloat16, and beside float32, are those of float32 but for roundings: within 2^-6 of the largest."""
    n_types = 0
    for of_float32 in (set(), WEIGHTS, set(tensors) - WEIGHTS, {"residual"}):
        types = {n: torch.float32 if n in of_float32 else torch.bfloat16 for n in floats(tensors)}
        given = tensors | {n: tensors[n].to(dtype) for n, dtype in types.items()}
        wide = tensors | {n: given[n].float() for n in types}
        of = [random(*part.shape).bfloat16() for part in result(name, wide, params)]
        found, expected = gradients(name, given, params, of), gradients(name, wide, params, of)
        n_types += found is not None
        for n, gradient in (found or {}).items():
            worst = (gradient.float() - expected[n]).abs().max().item()
            assert gradient.dtype == types[n] and worst <= expected[n].abs().max().item() / 64, (types, n, worst)
    assert n_types


CALLS = [
    pytest.param(name, param, value, id=f"{name}-{param['name']}={value}")
    for name in _gradients.FORMULAS
    for param in TABLE[name].params.values()
    for value in values_of(param)
]


@pytest.mark.parametrize("name, param, value", CALLS)
def test_a_parameter(name, param, value):
    tensors, params = call_of(name, param["name"], value)
    for tensor in floats(tensors):
        differences(name, tensors, params, tensor)
    narrow(name, tensors, params)


@pytest.mark.parametrize("name, param, value", CALLS)
def test_a_parameter_that_no_gradient_knows(name, param, value, monkeypatch):
    """As one would be that an operator is given later, or a choice."""
    tensors, params = call_of(name, param["name"], value)
    words = [word for word in _gradients.FORMULAS[name].knows.split() if word.partition("=")[0] != param["name"]]
    others = [choice for choice in param.get("choices", []) if choice != value]
    for knows in (words, [*words, f"{param['name']}={'|'.join(others)}"]) if others else (words,):
        formula = _gradients.FORMULAS[name]._replace(knows=" ".join(knows))
        monkeypatch.setitem(_gradients.FORMULAS, name, formula)
        for n in floats(tensors):
            y = result(name, tensors | {n: tensors[n].clone().requires_grad_()}, params)
            with pytest.raises(roped.Error, match=rf"^roped\.ops\.{name} has no gradient with .*no_grad.*detach") as error:
                torch.autograd.backward(y, [torch.ones_like(part) for part in y])
            assert f" with {param['name']}=" in str(error.value)
