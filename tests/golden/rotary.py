"""Rotary embeddings: rope and rope_quantize, beside the rotary modules of transformers."""

import json
from collections.abc import Iterator

import torch
import transformers
from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.gptj import modeling_gptj
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from case import FP8, TOLERANCE, TYPES, Case, Metadata, Tensors, fp8_of, into_fp8, randn, random_positions

STYLES = ("neox", "gptj")

# name, head_dim, theta, max_position, one more than the largest position, scaling as in config.json
SCALINGS = [
    ("default", 128, 10000.0, 8192, 8192, {}),
    ("llama3", 128, 500000.0, 131072, 8192, {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}),
    ("linear", 64, 10000.0, 16384, 8192, {"rope_type": "linear", "factor": 4.0}),
    ("dynamic", 128, 10000.0, 4096, 8192, {"rope_type": "dynamic", "factor": 2.0}),
    ("yarn", 128, 1000000.0, 131072, 8192, {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    ("yarn_dsv3", 64, 10000.0, 163840, 8192, {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    ("longrope", 96, 10000.0, 131072, 16384, {
        "rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096,
        "short_factor": [1.0 + 0.01 * i for i in range(48)],
        "long_factor": [1.0 + 0.35 * i for i in range(48)]}),
]  # fmt: skip

# head_dim, rotary_dim
WIDTHS = [
    (32, 32), (48, 48), (80, 80), (96, 96), (112, 112), (192, 64), (256, 128), (128, 32),
    (64, 48), (100, 40), (6, 2), (512, 512), (1024, 1024),
]  # fmt: skip

# Positions of several rows: configuration, its module, head width, scaling, other parameters
MODULES = {
    "rope_mrope_blocks": (Qwen2VLTextConfig, Qwen2VLRotaryEmbedding, 128, "default", {
        "mrope_section": "16,24,24"}),
    "rope_mrope_turns": (Qwen3VLTextConfig, Qwen3VLTextRotaryEmbedding, 128, "default", {
        "mrope_section": "24,20,20", "mrope_interleaved": "true"}),
    "rope_axial_blocks": (Qwen2_5_VLVisionConfig, Qwen2_5_VLVisionRotaryEmbedding, 80, "axial", {
        "mrope_section": "20,20"}),
    "rope_axial_turns": (Kimi_K25VisionConfig, Kimi_K25VisionRotaryEmbedding, 72, "axial", {
        "mrope_section": "18,18", "mrope_interleaved": "true", "mrope_axes": "1,0"}),
    "rope_axial_dealt": (PixtralVisionConfig, PixtralVisionRotaryEmbedding, 64, "axial_dealt", {
        "mrope_section": "16,16"}),
}  # fmt: skip

# name, query heads, key heads, rotary width, other width
QUANTIZED = [
    ("mla", 8, 1, 64, 512),
    ("gqa", 8, 2, 64, 64),
    ("mha", 4, 4, 64, 64),
    ("full", 4, 2, 128, 0),
]
WITH_TABLE = "rope_quantize_gqa_e4m3_bf16_neox"


def rope_metadata(
    style: str, head_dim: int, rotary_dim: int, theta: float, scaling: dict
) -> Metadata:
    return {
        "op": "rope",
        "style": style,
        "head_dim": str(head_dim),
        "rotary_dim": str(rotary_dim),
        "theta": str(theta),
        "scaling": json.dumps(scaling),
    }


def draw_scalings() -> Iterator[Case]:
    """Every scaling, with the cos and sin of transformers beside the positions."""
    for scaling, width, theta, max_position, end, parameters in SCALINGS:
        for dtype in TYPES:
            positions = random_positions(end, 13)
            positions[:3] = torch.tensor([0, 1, end - 1])
            q = randn(13, 4, width).to(TYPES[dtype])
            k = randn(13, 2, width).to(TYPES[dtype])
            for style in STYLES:
                metadata = rope_metadata(style, width, width, theta, parameters)
                metadata["max_position"] = str(max_position)
                metadata["source"] = f"transformers {transformers.__version__}"
                index = positions if style == "neox" else positions.int()
                inputs = {"positions": index, "q": q, "k": k}
                yield Case(f"rope_{scaling}", f"rope_{scaling}_{dtype}_{style}", metadata, inputs)


def draw_widths() -> Iterator[Case]:
    for head_dim, rotary_dim in WIDTHS:
        positions = random_positions(4096, 7)
        for dtype in ("bf16", "f32"):
            for style in STYLES:
                q = randn(7, 3, head_dim).to(TYPES[dtype])
                k = randn(7, 1, head_dim).to(TYPES[dtype])
                metadata = rope_metadata(style, head_dim, rotary_dim, 10000.0, {})
                name = f"rope_dims_{head_dim}_{rotary_dim}_{dtype}_{style}"
                yield Case("rope_dims", name, metadata, {"positions": positions, "q": q, "k": k})


def draw_ragged() -> Iterator[Case]:
    inputs = {
        "indptr": torch.tensor([0, 3, 3, 10, 17], dtype=torch.int32),
        "offsets": torch.tensor([5, 100, 0, 4000], dtype=torch.int32),
        "q": randn(17, 4, 128).bfloat16(),
        "k": randn(17, 2, 128).bfloat16(),
    }
    metadata = rope_metadata("neox", 128, 128, 10000.0, {})
    yield Case("rope_ragged", "rope_ragged_bf16", metadata, inputs)


def draw_long_positions() -> Iterator[Case]:
    positions = torch.tensor([131071, 1048575, 524288, 999983])
    metadata = rope_metadata("neox", 128, 128, 500000.0, {})
    metadata["max_position"] = "1048576"
    inputs = {"positions": positions, "q": randn(4, 2, 128)}
    yield Case("rope_longpos", "rope_longpos_f32", metadata, inputs, torch.float64)


def draw_quantized() -> Iterator[Case]:
    for kind, n_q, n_k, rotary, other in QUANTIZED:
        for output_dtype in FP8:
            for style in STYLES:
                positions = random_positions(4096, 9)
                for dtype in ("bf16", "f16"):
                    inputs = {"positions": positions}
                    inputs["q_rope"] = randn(9, n_q, rotary).to(TYPES[dtype])
                    inputs["k_rope"] = randn(9, n_k, rotary).to(TYPES[dtype])
                    if other:
                        inputs["q_nope"] = randn(9, n_q, other).to(TYPES[dtype]) * 40
                        inputs["k_nope"] = randn(9, n_k, other).to(TYPES[dtype])
                    metadata = {
                        "op": "rope_quantize",
                        "style": style,
                        "rotary_dim": str(rotary),
                        "theta": "10000.0",
                        "output_dtype": output_dtype,
                        "scale_q": "0.75",
                        "scale_k": "3.0",
                    }
                    name = f"rope_quantize_{kind}_{output_dtype}_{dtype}_{style}"
                    if name == WITH_TABLE:
                        inputs["cos_sin_cache"] = torch.cat(
                            cos_sin(metadata, torch.arange(4096)), dim=-1
                        )
                    yield Case(f"rope_quantize_{kind}", name, metadata, inputs)


def draw_rows_of_positions() -> Iterator[Case]:
    """Each form from parameters, and from a table in the request as vLLM holds it."""
    for kind, (_, _, width, scaling, parameters) in MODULES.items():
        n_rows = parameters["mrope_section"].count(",") + 1
        for dtype in ("f32", "bf16"):
            positions = random_positions(96, 7 * n_rows).reshape(n_rows, 7)
            q = randn(7, 2, width).to(TYPES[dtype])
            inputs = {"positions": positions, "q": q, "k": randn(7, 1, width).to(TYPES[dtype])}
            is_axial = scaling != "default"
            stated = {"rope_type": scaling} if is_axial else {}
            metadata = rope_metadata("neox", width, width, 10000.0, stated) | parameters
            yield Case(kind, f"{kind}_{dtype}", metadata, inputs)
            if is_axial:
                continue
            table = torch.cat(cos_sin(metadata, torch.arange(96)), dim=-1)
            cached = {**inputs, "cos_sin_cache": table}
            yield Case(kind, f"{kind}_cache_{dtype}", metadata, cached)


def cos_sin(
    metadata: Metadata, positions: torch.Tensor, trig_type: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, rotary_dim / 2] each, attention factor included."""
    width = int(metadata["rotary_dim"])
    scaling = json.loads(metadata.get("scaling", "{}")) or {"rope_type": "default"}
    config = LlamaConfig(
        head_dim=width,
        max_position_embeddings=int(metadata.get("max_position", 8192)),
        rope_parameters={**scaling, "rope_theta": float(metadata["theta"])},
    )
    embedding = LlamaRotaryEmbedding(config)
    if trig_type == torch.float64:
        angle = (positions.float()[:, None] * embedding.inv_freq).double()
        return angle.cos(), angle.sin()
    cos, sin = embedding(torch.zeros(1), positions[None])
    return cos[0, :, : width // 2], sin[0, :, : width // 2]


def cos_sin_of_module(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from a model's own module, positions of several rows."""
    config_class, module, width, scaling, parameters = MODULES[case.kind]
    is_axial = scaling != "default"
    rope = {"rope_type": "axial" if is_axial else "default"}
    rope["rope_theta"] = float(case.metadata["theta"])
    if not is_axial:
        rope["mrope_section"] = [int(n) for n in parameters["mrope_section"].split(",")]
    config = config_class(rope_parameters=rope)
    config.head_dim = width
    positions = case.inputs["positions"]
    index = positions.T if is_axial else positions[:, None]
    cos, sin = (part.reshape(-1, width) for part in module(config)(torch.zeros(1), index))
    return cos[:, : width // 2], sin[:, : width // 2]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: str) -> torch.Tensor:
    """x [tokens, heads, width] in float64; what is beyond the rotary width stays."""
    width = 2 * cos.shape[-1]
    head, tail = x[..., :width].double(), x[..., width:].double()
    cos, sin = cos.double(), sin.double()
    if style == "gptj":
        head = modeling_gptj.apply_rotary_pos_emb(head[None], sin[None], cos[None])[0]
    else:
        cos, sin = (torch.cat([part, part], dim=-1)[:, None] for part in (cos, sin))
        head = head * cos + rotate_half(head) * sin
    return torch.cat([head, tail], dim=-1)


def positions_of(inputs: Tensors) -> torch.Tensor:
    """Of several rows the largest."""
    if "positions" in inputs:
        positions = inputs["positions"].long()
        return positions if positions.dim() == 1 else positions.amax(dim=0)
    starts, offsets = inputs["indptr"].long(), inputs["offsets"].long()
    lengths = starts.diff()
    return torch.arange(int(starts[-1])) + torch.repeat_interleave(offsets - starts[:-1], lengths)


def rope(case: Case) -> Tensors:
    if case.kind in MODULES:
        cos, sin = cos_sin_of_module(case)
    else:
        cos, sin = cos_sin(case.metadata, positions_of(case.inputs), case.trig_type)
    results = {"cos": cos, "sin": sin} if "source" in case.metadata else {}
    for name in {"q", "k"} & case.inputs.keys():
        results[f"{name}.expected"] = rotate(
            case.inputs[name], cos, sin, case.metadata["style"]
        ).float()
    return results


def rotate_tokens(case: Case, x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, width], or [tokens, width] of one head; as it is at position -1."""
    positions = positions_of(case.inputs)
    heads = x.double() if x.dim() == 3 else x.double()[:, None]
    turned = rotate(heads, *cos_sin(case.metadata, positions), case.metadata["style"])
    return torch.where(positions[:, None, None] < 0, heads, turned).reshape(x.shape)


def scaled(case: Case, name: str, x: torch.Tensor, slip: float = 1.0) -> torch.Tensor:
    """x times the scale of q, k or v, which is a parameter or a tensor."""
    parameter = float(case.metadata.get(f"scale_{name[0]}", 1))
    return x * case.inputs.get(f"scale_{name[0]}", torch.tensor(parameter)).double() * slip


def scaled_parts(case: Case, slip: float = 1.0) -> Tensors:
    """In float64."""
    parts = {}
    for name in ("q_rope", "k_rope", "q_nope", "k_nope", "v"):
        if name in case.inputs:
            x = case.inputs[name].double()
            x = rotate_tokens(case, x) if name.endswith("_rope") else x
            parts[name] = scaled(case, name, x, slip)
    return parts


def rope_quantize(case: Case) -> Tensors:
    fp8 = fp8_of(case)
    return {f"{name}.expected": into_fp8(x, fp8) for name, x in scaled_parts(case).items()}


def allowed_difference(case: Case, name: str, made: Tensors) -> torch.Tensor | float:
    """Of a float32 result: TOLERANCE, and what an angle is off when a power of theta is rounded
    to its neighbour."""
    if case.metadata["op"] != "rope":
        return TOLERANCE
    width, theta = int(case.metadata["rotary_dim"]), float(case.metadata["theta"])
    frequency = theta ** -(torch.arange(0, width, 2).double() / width)
    slack = positions_of(made)[:, None] * frequency * 2.0**-23
    if name in ("cos", "sin"):
        return TOLERANCE + slack
    by_pair = case.metadata["style"] == "gptj"
    slack = slack.repeat_interleave(2, dim=-1) if by_pair else torch.cat([slack, slack], dim=-1)
    rest = int(case.metadata["head_dim"]) - width
    return TOLERANCE + torch.nn.functional.pad(slack, (0, rest))[:, None]


OPERATORS = {
    "rope": rope,
    "rope_quantize": rope_quantize,
}
