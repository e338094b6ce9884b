"""RMS norms and layer norms of rows, into FP8 too, and their gradients."""

import dataclasses
from collections.abc import Iterator

import torch
from transformers.models.deberta.modeling_deberta import DebertaLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm4.modeling_glm4 import Glm4RMSNorm
from transformers.models.granite.modeling_granite import GraniteRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextRMSNorm

from case import EPS, FP8, TYPES, Case, Metadata, Tensors, difference, has_equal_bytes, into_fp8, randn
from codes import lay_out, quantize

# type of x and of weight
NORM_TYPES = {
    "f32": ("f32", "f32"),
    "f32_f16w": ("f32", "f16"),
    "f16": ("f16", "f16"),
    "bf16": ("bf16", "bf16"),
}

# hidden size, rows, types
NORMS = [(h, 5, tuple(NORM_TYPES)) for h in (1, 7, 64, 128, 100, 1024, 3584, 4096)] + [
    (h, 2, ("bf16",)) for h in (5120, 8192, 16384)
]
NORMS_OF_EVERY_KIND = (64, 3584, 4096)

# norms into FP8: name, format, parameters
QUANTIZED_NORMS = [
    ("given", "e4m3", {"dequant_scale": "0.0371"}),
    ("given_type", "e5m2", {"dequant_scale": "0.25", "rounding": "type"}),
    ("row", "e5m2", {"dynamic": "true", "scale_ub": "2.5"}),
    ("row_type", "e4m3", {"dynamic": "true", "rounding": "type", "scale_layout": "rows_2d"}),
    ("by_32", "e4m3", {"dynamic": "true", "group_size": "32", "scale_layout": "columns_4"}),
    ("by_16", "e4m3", {"dynamic": "true", "group_size": "16", "scale_layout": "columns"}),
    ("by_128_type", "e4m3", {"dynamic": "true", "group_size": "128", "rounding": "type"}),
]

# The same into other codes, and by scales that are powers of two: name, type of x, parameters. What is rounded to its
# type has the same codes whoever computes it; of f32 cases are drawn until that is so.
CODED_NORMS = [
    ("int8_row", "bf16", {"output_dtype": "int8", "dynamic": "true"}),
    ("int8_by_32", "f16", {
        "output_dtype": "int8", "dynamic": "true", "group_size": "32", "scale_layout": "columns_4"}),
    ("int8_given", "bf16", {"output_dtype": "int8", "dequant_scale": "0.0371"}),
    ("e4m3_power_of_two", "bf16", {
        "output_dtype": "e4m3", "dynamic": "true", "group_size": "128", "scale_rounding": "power_of_two"}),
    ("mxfp8_swizzled", "bf16", {"output_dtype": "mxfp8", "dynamic": "true", "scale_layout": "swizzled"}),
    ("mxfp8", "f32", {"output_dtype": "mxfp8", "dynamic": "true", "scale_layout": "columns"}),
    ("mxfp4_floor", "f16", {"output_dtype": "mxfp4", "dynamic": "true", "scale_rounding": "floor"}),
    ("nvfp4_swizzled", "bf16", {
        "output_dtype": "nvfp4", "dynamic": "true", "global_scale": "12.5", "scale_layout": "swizzled"}),
    ("nvfp4", "f32", {"output_dtype": "nvfp4", "dynamic": "true"}),
]  # fmt: skip

# x + residual as it is rounded, and then the norm of a model's own class: parameters of the same
MODEL_NORMS = {
    "llama": (LlamaRMSNorm, {"eps": "1e-05", "rounding": "hf"}),
    "gemma3": (Gemma3RMSNorm, {"eps": "1e-06", "weight_bias": "1.0"}),
    "glm4": (Glm4RMSNorm, {"eps": "1.5625e-07", "rounding": "hf"}),
    "granite": (GraniteRMSNorm, {"eps": "1e-06", "rounding": "hf", "x_scale": "0.22"}),
}
MODEL_ROWS = [("bf16", 1, 4096), ("bf16", 3, 128), ("f16", 3, 128)]

# What a block adds to the residual: name, operator, parameters, tensors beside x and residual
TERMS = ("x", "residual", "addend")
SUMS = [
    ("scaled", "add_rmsnorm", {"x_scale": "0.22"}, ("weight",)),
    ("scaled_parallel", "add_rmsnorm", {"x_scale": "-1.75"}, ("addend",)),
    ("gptj", "add_layer_norm", {"sum_rounding": "type"}, ("addend", "weight", "bias")),
    ("cohere", "add_layer_norm", {"sum_rounding": "type", "sum_order": "residual_first"}, ("addend", "weight")),
    ("parallel", "add_layer_norm", {"sum_order": "addends_first"}, ("addend", "weight", "bias")),
]

# The same with more scales, and with a residual of float32
ANY_SUMS = [
    ("minimax", "add_rmsnorm", {"sum_rounding": "type", "x_scale": "0.78", "residual_scale": "0.22"}, ("weight",)),
    ("gemma4", "add_rmsnorm", {"sum_rounding": "type", "sum_scale": "0.0703125"}, ("weight",)),
    ("falcon_h1", "add_rmsnorm", {"sum_rounding": "type", "x_scale": "0.36", "addend_scale": "1.7"}, ("addend", "weight")),
    ("mamba", "add_rmsnorm", {"sum_rounding": "type"}, ("weight",)),
    ("every_scale", "add_layer_norm", {"x_scale": "0.5", "residual_scale": "-3", "sum_scale": "0.3"}, ("weight", "bias")),
]

# The same of heads
SUMS_OF_HEADS = [
    ("qwen4_exp", "add_rmsnorm", {"sum_rounding": "type", "weight_bias": "1", "heads": "4"}, ("weight",)),
    ("heads", "add_layer_norm", {"heads": "10"}, ("addend", "weight", "bias")),
]

# Norms of heads, which have weights of their own; and of 1 / rms in the type of x
HEADS = [
    ("rmsnorm_heads", {"heads": "4"}, ("weight",)),
    ("layer_norm_heads", {"heads": "4"}, ("weight", "bias")),
    ("layer_norm_heads_alone", {"heads": "10"}, ("weight",)),
]

# Layer norms: name, parameters, tensors that are left out; and widths and rows
LAYER_NORMS = [
    ("weight_bias", {"eps": "1e-05", "weight_bias": "1.0"}, ()),
    ("no_bias", {"eps": "1e-06"}, ("bias",)),
    ("no_weight", {"eps": "1e-05"}, ("weight",)),
    ("plain", {"eps": "1e-12"}, ("weight", "bias")),
]
LAYER_NORM_ROWS = [(1, 3), (7, 3), (1024, 2), (4096, 2)]

# Gradients: name, tensors beside grad_y and x, parameters
NORM_GRADIENTS = {
    "rmsnorm_backward": [
        ("plain", (), {}),
        ("weight", ("weight",), {}),
        ("gemma", ("weight",), {"weight_bias": "1.0"}),
        ("residual", ("weight", "grad_residual"), {}),
    ],
    "layer_norm_backward": [
        ("plain", (), {}),
        ("weight", ("weight",), {}),
        ("bias", ("weight", "bias"), {"weight_bias": "1.0"}),
        ("residual", ("weight", "bias", "grad_residual"), {}),
    ],
}
NORM_GRADIENT_SHAPES = {"weight": (96,), "bias": (96,), "grad_residual": (5, 96)}


def draw_norms() -> Iterator[Case]:
    for hidden, n_rows, types in NORMS:
        for types_name in types:
            x_type, weight_type = (TYPES[name] for name in NORM_TYPES[types_name])
            inputs = {
                "x": randn(n_rows, hidden).to(x_type) * 3,
                "weight": randn(hidden).to(weight_type),
            }
            metadata = {"op": "rmsnorm", "eps": str(EPS)}
            yield Case("rmsnorm", f"rmsnorm_{types_name}_{hidden}", metadata, inputs)
            if hidden not in NORMS_OF_EVERY_KIND:
                continue
            gemma = {**metadata, "weight_bias": "1.0"}
            yield Case("gemma_rmsnorm", f"gemma_rmsnorm_{types_name}_{hidden}", gemma, inputs)
            inputs = {**inputs, "residual": randn(n_rows, hidden).to(x_type)}
            add = {**metadata, "op": "add_rmsnorm"}
            yield Case("add_rmsnorm", f"add_rmsnorm_{types_name}_{hidden}", add, inputs)


def draw_quantized_norm(name: str, metadata: Metadata, dtype: torch.dtype) -> Case:
    inputs = {"x": randn(5, 256).to(dtype) * 3, "weight": randn(256).to(dtype)}
    if metadata["op"].startswith("add"):
        inputs["residual"] = randn(5, 256).to(dtype)
    return Case(metadata["op"], name, metadata, inputs)


def draw_quantized_norms() -> Iterator[Case]:
    for op in ("rmsnorm_quantize", "add_rmsnorm_quantize"):
        for name, output_dtype, parameters in QUANTIZED_NORMS:
            for dtype in ("f32", "f16", "bf16"):
                metadata = {"op": op, "eps": str(EPS), "output_dtype": output_dtype, **parameters}
                case = draw_quantized_norm(f"{op}_{name}_{dtype}", metadata, TYPES[dtype])
                while not has_firm_codes(case):
                    case = draw_quantized_norm(case.name, metadata, TYPES[dtype])
                yield case


def draw_model_norms() -> Iterator[Case]:
    """Stored in the type of x, and compared by their bits."""
    for model, (_, parameters) in MODEL_NORMS.items():
        for dtype, n_rows, hidden in MODEL_ROWS:
            metadata = {"op": "add_rmsnorm", **parameters, "sum_rounding": "type"}
            name = f"add_rmsnorm_{model}_{dtype}_{hidden}"
            case = Case("add_rmsnorm_of_model", name, metadata, {})
            while not case.inputs or not is_firm_norm(case):
                case.inputs = {key: randn(n_rows, hidden) * 3 for key in ("x", "residual")}
                case.inputs["weight"] = randn(hidden)
                case.inputs = {key: x.to(TYPES[dtype]) for key, x in case.inputs.items()}
            yield case


def draw_layer_norms() -> Iterator[Case]:
    """Far from 0, with weight and bias or one of them; and rounded as a model's class rounds."""
    for name, parameters, left_out in LAYER_NORMS:
        for types in NORM_TYPES if len(left_out) < 2 else ("f32", "f16", "bf16"):
            x_type, weight_type = (TYPES[name] for name in NORM_TYPES[types])
            inputs = {"x": (randn(3, 200) * 3 + 5).to(x_type)}
            inputs |= {key: randn(200).to(weight_type) for key in ("weight", "bias")}
            metadata = {"op": "layer_norm", **parameters}
            inputs = {key: x for key, x in inputs.items() if key not in left_out}
            yield Case("layer_norm", f"layer_norm_{name}_{types}", metadata, inputs)
    for hidden, n_rows in LAYER_NORM_ROWS:
        for dtype in ("f32", "f16", "bf16"):
            inputs = {"x": randn(n_rows, hidden) * 3 - 1, "weight": randn(hidden), "bias": randn(hidden)}
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            metadata = {"op": "layer_norm", "eps": "1e-05"}
            yield Case("layer_norm", f"layer_norm_{dtype}_{hidden}", metadata, inputs)
    for dtype in ("f32", "f16", "bf16"):
        for sum_rounding in ("once", "type") if dtype != "f32" else ("once",):
            inputs = {key: randn(3, 200) * 3 + 1 for key in ("x", "residual")}
            inputs |= {"weight": randn(200), "bias": randn(200)}
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            metadata = {"op": "add_layer_norm", "eps": "1e-06"}
            if sum_rounding == "type":
                metadata |= {"sum_rounding": "type"}
            yield Case("add_layer_norm", f"add_layer_norm_{sum_rounding}_{dtype}", metadata, inputs)
    for dtype in ("bf16", "f16"):
        case = Case("layer_norm_of_model", f"layer_norm_deberta_{dtype}", {}, {})
        case.metadata |= {"op": "layer_norm", "eps": "1e-07", "rounding": "type"}
        while not case.inputs or not is_firm_layer_norm(case):
            inputs = {"x": randn(3, 256) * 3 + 1, "weight": randn(256), "bias": randn(256)}
            case.inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
        yield case


def draw_quantized_sums() -> Iterator[Case]:
    for name, output_dtype, parameters in QUANTIZED_NORMS[1:4:2]:
        for dtype in ("f16", "bf16"):
            metadata = {"op": "add_rmsnorm_quantize", "eps": str(EPS), "output_dtype": output_dtype}
            metadata |= {**parameters, "sum_rounding": "type"}
            name_of_file = f"add_rmsnorm_quantize_{name}_sum_{dtype}"
            case = Case("add_rmsnorm_quantize", name_of_file, metadata, {})
            while not case.inputs or not has_firm_codes(case):
                case.inputs = {key: randn(3, 256).to(TYPES[dtype]) for key in ("x", "residual")}
                case.inputs["weight"] = randn(256).to(TYPES[dtype])
            yield case


def draw_coded_norms() -> Iterator[Case]:
    for op in ("rmsnorm_quantize", "add_rmsnorm_quantize"):
        for name, dtype, parameters in CODED_NORMS:
            metadata = {"op": op, "eps": str(EPS), **parameters}
            if dtype != "f32":
                metadata |= {"rounding": "type"}
            if dtype != "f32" and op.startswith("add"):
                metadata |= {"sum_rounding": "type"}
            case = draw_quantized_norm(f"{op}_{name}_{dtype}", metadata, TYPES[dtype])
            while not has_firm_codes(case):
                case = draw_quantized_norm(case.name, metadata, TYPES[dtype])
            yield case


def draw_sums() -> Iterator[Case]:
    for name, op, parameters, others in SUMS:
        for dtype in ("f32", "f16", "bf16"):
            keys = ("x", "residual", *others)
            inputs = {key: randn(200) if key in ("weight", "bias") else randn(3, 200) * 3 + 1 for key in keys}
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            if op == "add_rmsnorm" and "weight" not in inputs:
                inputs["weight"] = torch.ones(200).to(TYPES[dtype])
            yield Case(op, f"{op}_{name}_{dtype}", {"op": op, "eps": "1e-05", **parameters}, inputs)
    for dtype in ("f16", "bf16"):
        metadata = {"op": "add_rmsnorm_quantize", "eps": "1e-06", "output_dtype": "e4m3", "dynamic": "true"}
        metadata |= {"rounding": "type", "sum_rounding": "type", "x_scale": "0.22"}
        case = Case("add_rmsnorm_quantize", f"add_rmsnorm_quantize_granite_{dtype}", metadata, {})
        while not case.inputs or not has_firm_codes(case):
            case.inputs = {key: randn(3, 256).to(TYPES[dtype]) for key in ("x", "residual")}
            case.inputs["weight"] = randn(256).to(TYPES[dtype])
        yield case


def draw_any_sums(sums: list[tuple] = ANY_SUMS) -> Iterator[Case]:
    for name, op, parameters, others in sums:
        for dtype in ("f32", "f16", "bf16"):
            case = Case(f"{op}_of_any", f"{op}_{name}_{dtype}", {"op": op, "eps": "1e-05", **parameters}, {})
            keys = ("x", "residual", *others)
            while not case.inputs or not is_firm_sum(case):
                inputs = {key: randn(200) if key in ("weight", "bias") else randn(3, 200) * 3 + 1 for key in keys}
                case.inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
                if name == "mamba":
                    case.inputs["residual"] = randn(3, 200) * 3
            yield case


def draw_heads() -> Iterator[Case]:
    for name, parameters, others in HEADS:
        for dtype in ("f32", "f16", "bf16"):
            inputs = {"x": randn(3, 120) * 3 + 1} | {key: randn(120) for key in others}
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            op = name.partition("_heads")[0]
            yield Case(f"{op}_of_heads", f"{name}_{dtype}", {"op": op, "eps": "1e-05", **parameters}, inputs)
    for dtype in ("f16", "bf16"):
        case = Case("rmsnorm_of_scale", f"rmsnorm_deepseek_v4_{dtype}", {"op": "rmsnorm", "eps": "1e-06", "rounding": "scale"}, {})
        while not case.inputs or not is_firm_scale(case):
            case.inputs = {"x": (randn(3, 128) * 3).to(TYPES[dtype]), "weight": randn(128).to(TYPES[dtype])}
        yield case


def draw_norm_gradients(op: str, mean: float) -> Iterator[Case]:
    """Of a norm without a weight, with one, with 1 + weight, and of the norm of a sum."""
    for form, others, parameters in NORM_GRADIENTS[op]:
        for dtype in ("f32", "bf16", "f16"):
            inputs = {"grad_y": randn(5, 96), "x": mean + randn(5, 96)}
            inputs |= {key: randn(*NORM_GRADIENT_SHAPES[key]) for key in others}
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            metadata = {"op": op, "eps": str(EPS), **parameters}
            yield Case(op, f"{op}_{form}_{dtype}", metadata, inputs)


def norm_input(case: Case) -> torch.Tensor:
    """x, or the sum that a model's block makes of it: in float32, or in the type of x where the case says so."""
    x, residual, addend = (case.inputs.get(key) for key in TERMS)
    if "sum_rounding" not in case.metadata:
        x, residual, addend = (None if tensor is None else tensor.float() for tensor in (x, residual, addend))
    scales = [case.metadata.get(f"{name}_scale") for name in (*TERMS, "sum")]
    x, residual, addend = (
        tensor if tensor is None or scale is None else tensor * float(scale)
        for tensor, scale in zip((x, residual, addend), scales)
    )
    if residual is None:
        return x.float()
    if addend is None:
        z = residual + x
    else:
        z = residual + x + addend if case.metadata.get("sum_order") == "residual_first" else x + addend + residual
    return (z if scales[3] is None else z * float(scales[3])).float()


def norm_of_model(case: Case, slip: float = 1.0) -> Tensors:
    """In float64, times slip, rounded where the model's class rounds; results in the type of x."""
    dtype = case.inputs["x"].dtype
    total = norm_input(case)
    z = total.to(dtype).float().unflatten(-1, (int(case.metadata.get("heads", 1)), -1))
    weight = case.inputs["weight"].double() + float(case.metadata.get("weight_bias", 0))
    y = z.double() * slip
    y *= torch.rsqrt(z.double().square().mean(dim=-1, keepdim=True) + float(case.metadata["eps"]))
    y = y.flatten(-2)
    if "rounding" in case.metadata:
        y = y.to(dtype).double()
    return {"y.expected": (y * weight).to(dtype), "residual.expected": total.to(case.inputs["residual"].dtype)}


def is_firm_norm(case: Case) -> bool:
    """Do the last bits of float32 decide no rounding, and does the model's class agree?"""
    module = MODEL_NORMS[case.name.split("_")[2]][0]
    norm = module(case.inputs["x"].shape[-1], float(case.metadata["eps"]))
    norm.weight.data = case.inputs["weight"]
    found = [norm_of_model(case, slip)["y.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    found.append(norm(norm_input(case).to(case.inputs["x"].dtype)).detach())
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def norm_of_scale(case: Case, slip: float = 1.0) -> torch.Tensor:
    """As DeepseekV4UnweightedRMSNorm, times a weight; 1 / rms times slip."""
    x, eps = case.inputs["x"], float(case.metadata["eps"])
    scale = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * slip
    return x * scale.to(x.dtype) * case.inputs["weight"]


def is_firm_scale(case: Case) -> bool:
    found = [norm_of_scale(case, slip) for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def norm_of_heads(case: Case) -> Tensors:
    heads = (int(case.metadata["heads"]), -1)
    tensors = {**case.inputs, "x": norm_input(case)}
    x, *gains = (tensors[key].double().unflatten(-1, heads) for key in ("x", "weight", "bias") if key in tensors)
    shape, eps = x.shape[-1:], float(case.metadata["eps"])
    norm = torch.nn.functional.rms_norm if case.metadata["op"] == "rmsnorm" else torch.nn.functional.layer_norm
    y = norm(x, shape, eps=eps) * gains[0]
    results = {"y.expected": (y + gains[1] if len(gains) > 1 else y).flatten(-2).float()}
    if "residual" in tensors:
        results["residual.expected"] = tensors["x"].to(case.inputs["x"].dtype).float()
    return results


def is_firm_sum(case: Case) -> bool:
    """Where bits are compared, do the last ones of float32 decide no rounding?"""
    if "sum_rounding" not in case.metadata or case.inputs["x"].dtype == torch.float32:
        return True
    found = [norm_of_model(case, slip)["y.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    if "heads" in case.metadata:
        found.append(qwen4_exp_norm(case))
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def qwen4_exp_norm(case: Case) -> torch.Tensor:
    """By the model's class, of the sum in the type of x."""
    hidden = case.inputs["x"].shape[-1]
    norm = Qwen4ExpTextRMSNorm(hidden, hidden // int(case.metadata["heads"]), float(case.metadata["eps"]))
    norm.weight.data = case.inputs["weight"]
    return norm(norm_input(case).to(case.inputs["x"].dtype)).detach()


def rmsnorm(case: Case) -> Tensors:
    if "sum_rounding" in case.metadata:
        return norm_of_model(case)
    if "heads" in case.metadata:
        return norm_of_heads(case)
    if case.metadata.get("rounding") == "scale":
        return {"y.expected": norm_of_scale(case)}
    x = norm_input(case)
    weight = case.inputs["weight"].double() + float(case.metadata.get("weight_bias", 0))
    eps = float(case.metadata["eps"])
    y = torch.nn.functional.rms_norm(x.double(), weight.shape, weight, eps)
    results = {"y.expected": y.float()}
    if "residual" in case.inputs:
        results["residual.expected"] = x.to(case.inputs["x"].dtype).float()
    return results


def norm_to_quantize(case: Case, slip: float = 1.0) -> torch.Tensor:
    """In float64, times slip; rounded as vLLM's kernels do where the case says so."""
    z, weight, eps = norm_input(case), case.inputs["weight"], float(case.metadata["eps"])
    if case.metadata.get("rounding") != "type":
        return torch.nn.functional.rms_norm(z.double(), weight.shape, weight.double(), eps) * slip
    scale = torch.rsqrt(z.double().square().mean(dim=-1, keepdim=True) + eps) * slip
    return ((z.double() * scale).to(weight.dtype) * weight).double()


def is_fp8_norm(case: Case) -> bool:
    return case.metadata["output_dtype"] in FP8 and "scale_rounding" not in case.metadata


def codes_of_norm(case: Case, slip: float) -> Tensors:
    """Those that quantize makes of the norm."""
    metadata, y = case.metadata, norm_to_quantize(case, slip).float()
    if "dequant_scale" in metadata:
        divided = y / torch.tensor(float(metadata["dequant_scale"]))
        return {"y.expected": divided.round().clamp(-128, 127).to(torch.int8)}
    if metadata["output_dtype"] in ("e4m3", "int8"):
        metadata = {**metadata, "granularity": "group" if "group_size" in metadata else "row"}
    return quantize(dataclasses.replace(case, metadata=metadata, inputs={"x": y}))


def quantize_norm(case: Case, slip: float = 1.0) -> Tensors:
    results = fp8_of_norm(case, slip) if is_fp8_norm(case) else codes_of_norm(case, slip)
    if "residual" in case.inputs:
        dtype = case.inputs["x"].dtype
        results["residual.expected"] = norm_input(case).to(dtype).float()
    return results


def fp8_of_norm(case: Case, slip: float) -> Tensors:
    metadata, fp8 = case.metadata, FP8[case.metadata["output_dtype"]]
    largest = torch.finfo(fp8).max
    y = norm_to_quantize(case, slip)
    results = {}
    if "dynamic" in metadata:
        by_group = (-1, int(metadata.get("group_size", y.shape[-1])))
        bound = norm_to_quantize(case).unflatten(-1, by_group).abs().amax(dim=-1)
        bound = bound.clamp(max=float(metadata.get("scale_ub", "inf")))
        scales = (bound / largest).clamp(min=1 / (512 * largest)).float()
        y = (y.unflatten(-1, by_group) / scales.double().unsqueeze(-1)).flatten(-2)
        results["scales.expected"] = lay_out(scales, metadata.get("scale_layout", "rows"))
    else:
        y = y / torch.tensor(float(metadata["dequant_scale"])).double()
    results["y.expected"] = into_fp8(y, fp8)
    return results


def has_firm_codes(case: Case) -> bool:
    """Is nothing so near a tie that the last bits of float32 decide how it is rounded?"""
    is_narrow = case.inputs["x"].dtype != torch.float32
    is_rounded = is_narrow and case.metadata.get("rounding") == "type"
    for slip in (1 - 3e-7, 1 + 3e-7):
        expected, found = quantize_norm(case), quantize_norm(case, slip)
        firm = [name for name, tensor in expected.items() if tensor.dtype != torch.float32]
        if not all(has_equal_bytes(expected[name], found[name]) for name in firm):
            return False
        if is_rounded and not torch.equal(norm_to_quantize(case), norm_to_quantize(case, slip)):
            return False
    return True


def layer_norm(case: Case, slip: float = 1.0) -> Tensors:
    """With rounding=type in the type of x, after each step of a model's class; the norm times slip."""
    if "heads" in case.metadata:
        return norm_of_heads(case)
    x, eps = norm_input(case), float(case.metadata.get("eps", 1e-5))
    weight, bias = (case.inputs[key].double() if key in case.inputs else None for key in ("weight", "bias"))
    if weight is not None:
        weight += float(case.metadata.get("weight_bias", 0))
    if "rounding" in case.metadata:
        dtype = case.inputs["x"].dtype
        y = (torch.nn.functional.layer_norm(x.double(), x.shape[-1:], eps=eps) * slip).to(dtype).double()
        return {"y.expected": ((y * weight).to(dtype).double() + bias).to(dtype)}
    results = {"y.expected": torch.nn.functional.layer_norm(x.double(), x.shape[-1:], weight, bias, eps).float()}
    if "residual" in case.inputs:
        results["residual.expected"] = x.to(case.inputs["x"].dtype).float()
    return results


def is_firm_layer_norm(case: Case) -> bool:
    """As is_firm_norm; the model is DeBERTa."""
    norm = DebertaLayerNorm(case.inputs["x"].shape[-1], float(case.metadata["eps"]))
    norm.weight.data, norm.bias.data = case.inputs["weight"], case.inputs["bias"]
    found = [layer_norm(case, slip)["y.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    found.append(norm(case.inputs["x"]).detach())
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def norm_backward(case: Case) -> Tensors:
    inputs = {key: x.double() for key, x in case.inputs.items()}
    leaves = {key: inputs[key].requires_grad_() for key in ("x", "weight", "bias") if key in inputs}
    gain = leaves["weight"] + float(case.metadata.get("weight_bias", 0)) if "weight" in leaves else None
    x, eps = leaves["x"], float(case.metadata["eps"])
    if case.metadata["op"] == "rmsnorm_backward":
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], gain, eps)
    else:
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], gain, leaves.get("bias"), eps)
    y.backward(inputs["grad_y"])
    made = {f"grad_{key}.expected": leaf.grad for key, leaf in leaves.items()}
    made["grad_x.expected"] = made["grad_x.expected"] + inputs.get("grad_residual", 0)
    return {key: gradient.float() for key, gradient in made.items()}


def difference_to_model(case: Case) -> float:
    """Between a norm here and that of Llama or Gemma, which compute in float32."""
    module = GemmaRMSNorm if "weight_bias" in case.metadata else LlamaRMSNorm
    norm = module(case.inputs["weight"].numel(), float(case.metadata["eps"]))
    norm.weight.data = case.inputs["weight"].float()
    y = norm(norm_input(case)).detach()
    return float(difference(y, rmsnorm(case)["y.expected"]).max())


OPERATORS = {
    "rmsnorm": rmsnorm,
    "add_rmsnorm": rmsnorm,
    "rmsnorm_quantize": quantize_norm,
    "add_rmsnorm_quantize": quantize_norm,
    "rmsnorm_backward": norm_backward,
    "layer_norm": layer_norm,
    "add_layer_norm": layer_norm,
    "layer_norm_backward": norm_backward,
}
