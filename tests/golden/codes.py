"""quantize, dequantize and act_and_mul_quantize: codes of 8 and of 4 bits, and the order of their scales, beside torchao."""

import dataclasses
from collections.abc import Iterator

import torch
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, f32_to_f4_unpacked, pack_uint4, unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked

import activations
from case import FP8, TYPES, Case, Tensors, into_fp8, randn

# granularity and parameters of quantize
QUANTIZED_ROWS = [
    ("tensor", {}),
    ("row", {}),
    ("row", {"scale_rounding": "power_of_two"}),
    ("group", {"group_size": "32", "scale_layout": "columns_4"}),
    ("block", {"scale_rounding": "power_of_two"}),
]


def draw_quantized_rows() -> Iterator[Case]:
    """A row of zeros, and blocks that are ragged at both edges."""
    for output_dtype in ("e4m3", "e5m2", "int8"):
        for granularity, parameters in QUANTIZED_ROWS:
            rounded = "_power_of_two" if "scale_rounding" in parameters else ""
            for dtype in ("f32", "bf16"):
                x = randn(130, 160) if granularity == "block" else randn(5, 160)
                x[3] = 0
                metadata = {"op": "quantize", "output_dtype": output_dtype, "granularity": granularity}
                name = f"quantize_{output_dtype}_{granularity}{rounded}_{dtype}"
                yield Case("quantize", name, {**metadata, **parameters}, {"x": x.to(TYPES[dtype])})


# granularity, parameters and the type of y
DEQUANTIZED_ROWS = [
    ("tensor", {}, "f32"),
    ("row", {}, "bf16"),
    ("group", {"group_size": "32", "scale_layout": "columns_4"}, "f16"),
    ("block", {}, "f32"),
]


def draw_dequantized_rows() -> Iterator[Case]:
    """Codes and scales of rows; of blocks as U8, as clients without FP8 have them."""
    for input_dtype in ("e4m3", "e5m2", "int8"):
        for granularity, parameters, output_dtype in DEQUANTIZED_ROWS:
            x = randn(130, 160) if granularity == "block" else randn(5, 160)
            parameters = {"granularity": granularity, **parameters}
            made = quantize(Case("", "", {"output_dtype": input_dtype, **parameters}, {"x": x}))
            codes = made["y.expected"]
            dtypes = {"input_dtype": input_dtype, "output_dtype": output_dtype}
            metadata = {"op": "dequantize", **dtypes, **parameters}
            if granularity == "block":
                codes = codes.view(torch.uint8)
            name = f"dequantize_{input_dtype}_{granularity}_{output_dtype}"
            yield Case("dequantize", name, metadata, {"x": codes, "scales": made["scales.expected"]})


# output_dtype, parameters, and what has Inf
MICRO_ROWS = [
    ("mxfp8", "up", {}),
    ("mxfp8", "floor", {"scale_rounding": "floor", "scale_layout": "swizzled"}),
    ("mxfp4", "up", {"scale_layout": "columns_4"}),
    ("mxfp4", "floor", {"scale_rounding": "floor"}),
    ("nvfp4", "one", {"scale_layout": "swizzled"}),
    ("nvfp4", "global", {"global_scale": "12.5"}),
]


def draw_micro_rows() -> Iterator[Case]:
    """Groups that share a scale of 8 bits, some of them of zeros alone."""
    for output_dtype, kind, parameters in MICRO_ROWS:
        for dtype in ("f32", "bf16"):
            x = randn(5, 192) * torch.exp2(torch.arange(-20, 10, 6.0))[:, None]
            x[3, :64] = 0
            metadata = {"op": "quantize", "output_dtype": output_dtype, **parameters}
            name = f"quantize_{output_dtype}_{kind}_{dtype}"
            yield Case("quantize", name, metadata, {"x": x.to(TYPES[dtype])})


def draw_dequantized_micro_rows() -> Iterator[Case]:
    for case in draw_micro_rows():
        if case.inputs["x"].dtype == torch.float32:
            made = quantize(case)
            metadata = {key: value for key, value in case.metadata.items() if key != "scale_rounding"}
            metadata |= {"op": "dequantize", "output_dtype": "bf16", "input_dtype": case.metadata["output_dtype"]}
            inputs = {"x": made["y.expected"], "scales": made["scales.expected"]}
            yield Case("dequantize", f"de{case.name[:-4]}_bf16", metadata, inputs)


def lay_out(scales: torch.Tensor, layout: str) -> torch.Tensor:
    """[n, groups] in the order of scale_layout."""
    n_rows, n_groups = scales.shape
    if layout == "swizzled":
        return to_blocked(scales.view(torch.uint8)).view(scales.dtype).reshape(-(-n_rows // 128) * 128, -1)
    if layout == "rows":
        return scales if n_groups > 1 else scales[:, 0]
    if layout == "columns_4":
        scales = torch.nn.functional.pad(scales, (0, 0, 0, -n_rows % 4))
    return scales.T if layout.startswith("columns") else scales


def tile_of(case: Case) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = case.inputs["x"].shape
    group = int(case.metadata.get("group_size", columns))
    return {"tensor": (rows, columns), "row": (1, columns), "group": (1, group), "block": (128, 128)}[
        case.metadata["granularity"]
    ]


MX = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}


def quantize_micro(case: Case) -> Tensors:
    """MX by torchao's own function; NVFP4 by its conversion to e2m1, as torchao divides by another order
    and has no scale of 0."""
    metadata, x = case.metadata, case.inputs["x"].float()
    if metadata["output_dtype"] in MX:
        mode = ScaleCalculationMode.FLOOR if "scale_rounding" in metadata else ScaleCalculationMode.RCEIL
        scales, codes = to_mx(x, MX[metadata["output_dtype"]], 32, mode)
        scales = scales.view(torch.uint8).reshape(len(x), -1)
        codes = codes if codes.dtype == torch.float8_e4m3fn else codes.view(torch.uint8)
    else:
        factor = torch.tensor(float(metadata.get("global_scale", 1)))
        groups = x.unflatten(1, (-1, 16))
        scales = into_fp8(groups.abs().amax(dim=-1) / 6 * factor, torch.float8_e4m3fn)
        divided = groups * factor / scales.float()[..., None]
        divided = torch.where(scales.float()[..., None] == 0, groups * 0, divided)
        codes = pack_uint4(f32_to_f4_unpacked(divided.flatten(1)))
    return {"y.expected": codes, "scales.expected": lay_out(scales, metadata.get("scale_layout", "rows"))}


def quantize(case: Case) -> Tensors:
    """Scales and quotients in float32, as PyTorch divides them."""
    metadata, x = case.metadata, case.inputs["x"].float()
    if "granularity" not in metadata:
        return quantize_micro(case)
    fp8 = FP8.get(metadata["output_dtype"])
    largest = torch.finfo(fp8).max if fp8 else 127.0
    n_rows, n_columns = tile_of(case)
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, -columns % n_columns, 0, -rows % n_rows))
    tiles = padded.unflatten(1, (-1, n_columns)).unflatten(0, (-1, n_rows))
    scales = tiles.abs().amax(dim=(1, 3)) / largest
    scales = scales.clamp(min=1 / (512 * largest)) if fp8 else torch.where(scales == 0, 1.0, scales)
    if metadata.get("scale_rounding") == "power_of_two":
        mantissa, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), exponent - (mantissa == 0.5).int())
    divided = (tiles / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    codes = into_fp8(divided, fp8) if fp8 else divided.round().clamp(-127, 127).to(torch.int8)
    scales = lay_out(scales, metadata.get("scale_layout", "rows"))
    return {"y.expected": codes, "scales.expected": scales}


def take_out(scales: torch.Tensor, layout: str, n_rows: int) -> torch.Tensor:
    """[n, groups]: the inverse of lay_out."""
    if layout == "swizzled":
        return from_blocked(scales.flatten(), *scales.shape)[:n_rows]
    if layout.startswith("columns"):
        return scales.T[:n_rows]
    return scales if scales.dim() == 2 else scales[:, None]


def dequantize_micro(case: Case) -> Tensors:
    metadata, codes = case.metadata, case.inputs["x"]
    is_nv = metadata["input_dtype"] == "nvfp4"
    values = codes.float() if metadata["input_dtype"] == "mxfp8" else f4_unpacked_to_f32(unpack_uint4(codes))
    scales = take_out(case.inputs["scales"], metadata.get("scale_layout", "rows"), len(codes))
    scales = scales.view(torch.float8_e4m3fn if is_nv else torch.float8_e8m0fnu).float()
    scales = scales / float(metadata.get("global_scale", 1))
    scales = scales.repeat_interleave(16 if is_nv else 32, 1)[:, : values.shape[1]]
    return {"y.expected": (values * scales).to(TYPES[metadata["output_dtype"]])}


def dequantize(case: Case) -> Tensors:
    """Products in float32, rounded once to the type of y."""
    metadata, codes = case.metadata, case.inputs["x"]
    if "granularity" not in metadata:
        return dequantize_micro(case)
    codes = codes.view(FP8.get(metadata["input_dtype"], torch.int8))
    n_rows, n_columns = tile_of(case)
    scales = take_out(case.inputs["scales"], metadata.get("scale_layout", "rows"), len(codes))
    scales = scales.repeat_interleave(n_rows, 0).repeat_interleave(n_columns, 1)
    y = codes.float() * scales[: codes.shape[0], : codes.shape[1]]
    return {"y.expected": y.to(TYPES[metadata["output_dtype"]])}


# activation, type, parameters beside it, and x; values that are rounded to their type, or need no rounding, have the
# same codes whoever computes them
CODED_ACTIVATIONS = [
    ("silu", "bf16", {"rounding": "type", "output_dtype": "e4m3", "granularity": "row"}, (3, 128)),
    ("gelu_tanh", "f16", {
        "rounding": "type", "output_dtype": "int8", "granularity": "group", "group_size": "32"}, (3, 128)),
    ("silu", "bf16", {"rounding": "type", "output_dtype": "mxfp8", "scale_layout": "swizzled"}, (3, 128)),
    ("silu", "bf16", {"rounding": "type", "output_dtype": "nvfp4", "global_scale": "12.5"}, (3, 128)),
    ("swiglu_oai", "bf16", {"rounding": "steps", "interleaved": "true", "output_dtype": "mxfp4"}, (3, 128)),
    ("relu2", "f32", {"gated": "false", "output_dtype": "e5m2", "granularity": "tensor"}, (3, 64)),
]  # fmt: skip


def draw_coded_activations() -> Iterator[Case]:
    for activation, dtype, parameters, shape in CODED_ACTIVATIONS:
        drawn = activations.draw_activation("", dtype, {"activation": activation, **parameters}, {"x": shape})
        name = f"act_and_mul_quantize_{activation}_{parameters['output_dtype']}_{dtype}"
        metadata = {**drawn.metadata, "op": "act_and_mul_quantize"}
        yield Case("act_and_mul_quantize", name, metadata, drawn.inputs)


def act_and_mul_quantize(case: Case) -> Tensors:
    made = activations.act_and_mul(case)
    return quantize(dataclasses.replace(case, inputs={"x": made["y.expected"]}))


OPERATORS = {
    "act_and_mul_quantize": act_and_mul_quantize,
    "quantize": quantize,
    "dequantize": dequantize,
}
