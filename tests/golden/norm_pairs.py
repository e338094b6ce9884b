"""RMS norms beside a residual or a gate, as models' own classes have them."""

from collections.abc import Iterator

import torch
from transformers.models.exaone4.modeling_exaone4 import Exaone4RMSNorm
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated

from case import TYPES, Case, Tensors, has_equal_bytes, randn

WIDTH = 192
# x, residual + class(x): parameters of the same
ADDED = {
    "olmo2": (Olmo2RMSNorm, {"eps": "1e-06"}),
    "exaone4": (Exaone4RMSNorm, {"eps": "1e-05", "rounding": "hf"}),
    "gemma3": (Gemma3RMSNorm, {"eps": "1e-06", "weight_bias": "1.0"}),
}
# class(x, gate): arguments of the class beside width and eps
GATED = {
    "zamba2": (Zamba2RMSNormGated, {"group_size": 64}, {"gate_first": "true", "group_size": "64", "rounding": "hf"}),
    "falcon_h1": (FalconH1RMSNormGated, {"n_groups": 2, "norm_before_gate": False}, {"gate_first": "true", "group_size": "96"}),
    "falcon_h1_after": (FalconH1RMSNormGated, {"n_groups": 1, "norm_before_gate": True}, {}),
    "qwen3_next": (Qwen3NextRMSNormGated, {}, {"rounding": "hf"}),
    "kimi_linear": (KimiLinearRMSNormGated, {}, {"gate_activation": "sigmoid"}),
}  # fmt: skip


def draw_norm_pairs() -> Iterator[Case]:
    """In a narrow type stored in it, and compared by its bits."""
    for op, second, models in (("rmsnorm_add", "residual", ADDED), ("gated_rmsnorm", "gate", GATED)):
        for model, (*_, parameters) in models.items():
            for dtype in ("bf16", "f16", "f32"):
                case = Case(op, f"{op}_{model}_{dtype}", {"op": op, "eps": "1e-06", **parameters}, {})
                while not case.inputs or not is_firm(case, model):
                    inputs = {"x": randn(3, WIDTH) * 3, second: randn(3, WIDTH) * 2, "weight": randn(WIDTH)}
                    case.inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
                yield case


def norm(case: Case, z: torch.Tensor, slip: float) -> torch.Tensor:
    """In float64, times slip; rounded to the type of x where the case says so."""
    metadata, dtype = case.metadata, case.inputs["x"].dtype
    groups = z.unflatten(-1, (-1, int(metadata.get("group_size", z.shape[-1]))))
    groups = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + float(metadata["eps"])) * slip
    y, is_hf = groups.flatten(-2), metadata.get("rounding") == "hf"
    if is_hf:
        y = y.to(dtype).double()
    y = y * (case.inputs["weight"].double() + float(metadata.get("weight_bias", 0)))
    is_rounded = "residual" in case.inputs or (is_hf and "gate_first" not in metadata)
    return y.to(dtype).double() if is_rounded else y


def norm_pair(case: Case, slip: float = 1.0) -> Tensors:
    inputs, metadata = case.inputs, case.metadata
    x, dtype = inputs["x"].double(), inputs["x"].dtype
    if "residual" in inputs:
        return {"residual.expected": (norm(case, x, slip) + inputs["residual"].double()).to(dtype)}
    gate = inputs["gate"].double()
    act = torch.sigmoid(gate) if "gate_activation" in metadata else torch.nn.functional.silu(gate)
    if "gate_first" in metadata:
        return {"y.expected": norm(case, x * act, slip).to(dtype)}
    return {"y.expected": (norm(case, x, slip) * act).to(dtype)}


def result_of_model(case: Case, model: str) -> torch.Tensor:
    inputs, eps = case.inputs, float(case.metadata["eps"])
    if "residual" in inputs:
        module = ADDED[model][0](WIDTH, eps=eps)
        module.weight.data = inputs["weight"]
        return (inputs["residual"] + module(inputs["x"])).detach()
    kind, arguments, _ = GATED[model]
    module = kind(WIDTH, eps=eps, **arguments)
    module.weight.data = inputs["weight"]
    return module(inputs["x"][None], inputs["gate"][None])[0].detach()


def is_firm(case: Case, model: str) -> bool:
    """Do the last bits of float32 decide no rounding, and does the model's class agree?"""
    expected, found = next(iter(norm_pair(case).values())), result_of_model(case, model)
    if expected.dtype == torch.float32:
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
        return True
    slipped = [next(iter(norm_pair(case, slip).values())) for slip in (1 - 5e-7, 1 + 5e-7)]
    return all(has_equal_bytes(expected, other) for other in (found, *slipped))


OPERATORS = {"rmsnorm_add": norm_pair, "gated_rmsnorm": norm_pair}
