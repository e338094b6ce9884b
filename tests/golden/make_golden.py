#!/usr/bin/env python3
"""Makes the golden files from PyTorch, Hugging Face transformers and torchao.

    make_golden.py --check [DIR]   compare the files in DIR with what is computed
    make_golden.py --out DIR       write them

--check looks in this folder unless DIR is given. Versions: requirements.txt.

Inputs are drawn from one generator, seeded once, through all cases in the
order of `draw_cases`: what is drawn, and when, decides the bytes of every file
after it, so new cases go to the end.

Results are computed in float64 from the inputs and rounded once to float32,
or to FP8. Angles are not: cos and sin are the float32 numbers that
transformers gives its models, but for rope_longpos: float64 of the float32
angle.

Bytes are equal on x86-64 with AVX-512. With AVX2 PyTorch rounds one power of
rope_dims_*_48 to its neighbour. Without either it also draws other normal
numbers, in the last place: `--inputs DIR` reads inputs from the files in DIR
instead, and only results are compared.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator

import safetensors
import safetensors.torch
import torch
import torchao
import transformers
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, f32_to_f4_unpacked, pack_uint4, unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked
from transformers import LlamaConfig, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.activations import ACT2FN
from transformers.models.deberta.modeling_deberta import DebertaLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm4.modeling_glm4 import Glm4RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.gptj import modeling_gptj
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, rotate_half
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionRotaryEmbedding
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

HERE = pathlib.Path(__file__).parent
SEED = 20261120
EPS = 1e-6
TOLERANCE = 1e-6  # of the largest magnitude in the row
LARGE = 64_000  # bytes of rows; a file with more keeps the first few

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, str]

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
STYLES = ("neox", "gptj")


@dataclasses.dataclass
class Case:
    """One golden file: `kind` is its row of the table that --check prints."""

    kind: str
    name: str
    metadata: Metadata
    inputs: Tensors
    trig_type: torch.dtype = torch.float32  # cos and sin of the float32 angle are computed in it


# ------------------------------------------------------------------- inputs

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

# type of x and of weight
NORM_TYPES = {
    "f32": ("f32", "f32"),
    "f32_f16w": ("f32", "f16"),
    "f16": ("f16", "f16"),
    "bf16": ("bf16", "bf16"),
}
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

# hidden size, rows, types
NORMS = [(h, 5, tuple(NORM_TYPES)) for h in (1, 7, 64, 128, 100, 1024, 3584, 4096)] + [
    (h, 2, ("bf16",)) for h in (5120, 8192, 16384)
]
NORMS_OF_EVERY_KIND = (64, 3584, 4096)

# name, query heads, key heads, rotary width, other width
QUANTIZED = [
    ("mla", 8, 1, 64, 512),
    ("gqa", 8, 2, 64, 64),
    ("mha", 4, 4, 64, 64),
    ("full", 4, 2, 128, 0),
]
WITH_TABLE = "rope_quantize_gqa_e4m3_bf16_neox"

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

# x + residual as it is rounded, and then the norm of a model's own class: parameters of the same
MODEL_NORMS = {
    "llama": (LlamaRMSNorm, {"eps": "1e-05", "rounding": "hf"}),
    "gemma3": (Gemma3RMSNorm, {"eps": "1e-06", "weight_bias": "1.0"}),
    "glm4": (Glm4RMSNorm, {"eps": "1.5625e-07", "rounding": "hf"}),
}
MODEL_ROWS = [("bf16", 1, 4096), ("bf16", 3, 128), ("f16", 3, 128)]

# Layer norms: name, parameters, tensors that are left out; and widths and rows
LAYER_NORMS = [
    ("weight_bias", {"eps": "1e-05", "weight_bias": "1.0"}, ()),
    ("no_bias", {"eps": "1e-06"}, ("bias",)),
    ("no_weight", {"eps": "1e-05"}, ("weight",)),
    ("plain", {"eps": "1e-12"}, ("weight", "bias")),
]
LAYER_NORM_ROWS = [(1, 3), (7, 3), (1024, 2), (4096, 2)]

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

# Heads that are normalised, and those that go to a cache: operator, name, types of q and of the
# caches, what says where tokens go and its type, parameters (a number is a tensor of the request)
HEADS = [
    ("qk_rmsnorm_rope", "f32", "f32", None, None, torch.int64, {}),
    ("qk_rmsnorm_rope", "bf16_f32w", "bf16", None, None, torch.int32, {}),
    ("qk_rmsnorm_rope", "f16_gemma", "f16", None, None, torch.int64, {
        "weight_bias": "1.0", "style": "gptj", "rotary_dim": "16"}),
    ("qk_rmsnorm_rope", "bf16_hf", "bf16", None, None, torch.int64, {"rounding": "hf"}),
    ("rope_append", "slots_f32", "f32", "f32", "slots", torch.int64, {}),
    ("rope_append", "slots_of_pages_bf16", "bf16", "bf16", "slots_of_pages", torch.int32, {
        "style": "gptj", "rotary_dim": "16"}),
    ("rope_append", "nhd_bf16", "bf16", "bf16", "pages", torch.int32, {"return_k": "true"}),
    ("rope_append", "hnd_f32", "f32", "f32", "pages", torch.int64, {
        "kv_layout": "hnd", "style": "gptj"}),
    ("rope_append", "slots_e4m3", "bf16", "e4m3", "slots", torch.int64, {
        "scale_k": "217.3", "scale_v": 0.3137, "return_k": "true"}),
    ("rope_append", "hnd_u8", "f16", "u8", "pages", torch.int32, {
        "kv_layout": "hnd", "cache_dtype": "e5m2", "scale_k": 0.3137, "scale_v": "31417.0"}),
    ("rope_append", "mla_slots_bf16", "bf16", "bf16", "slots", torch.int64, {}),
    ("rope_append", "mla_pages_e4m3", "f16", "e4m3", "pages", torch.int32, {
        "style": "gptj", "scale_k": "217.3", "scale_v": "0.3137"}),
    ("qk_rmsnorm_rope_append", "slots_f32", "f32", "f32", "slots", torch.int32, {}),
    ("qk_rmsnorm_rope_append", "nhd_bf16", "bf16", "bf16", "pages", torch.int64, {
        "return_k": "true"}),
    ("qk_rmsnorm_rope_append", "slots_e4m3", "bf16", "e4m3", "slots", torch.int64, {
        "scale_k": 0.3137, "scale_v": "217.3"}),
    ("rope_quantize_append", "nhd_e4m3", "bf16", "e4m3", "pages", torch.int32, {
        "style": "gptj", "scale_q": "0.7431", "scale_k": "217.3", "scale_v": "0.3137"}),
    ("rope_quantize_append", "hnd_u8", "f16", "u8", "pages", torch.int64, {
        "kv_layout": "hnd", "output_dtype": "e5m2", "scale_q": 31417.0, "scale_k": "2.97"}),
    ("rope_quantize_append", "mla_e4m3", "bf16", "e4m3", "pages", torch.int32, {
        "scale_q": "217.3", "scale_k": 0.3137}),
]  # fmt: skip
N_SLOTS, N_PAGES, PAGE_SIZE = 11, 5, 3

# shapes of a and b
BROADCASTS = [
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (1, 1, 4, 5)),
    ((2, 3, 4, 5), (2, 3, 4, 1)),
    ((3, 5, 4), (1, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((64, 96), (96,)),
    ((96,), (64, 96)),
    ((4, 1, 8), (1, 6, 8)),
    ((1,), (7, 9)),
    ((), (3,)),
    ((33, 257), (33, 1)),
    ((2, 2, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1)),
]
FUNCTIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}

generator = torch.Generator()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def random_positions(end: int, n: int) -> torch.Tensor:
    return torch.randint(0, end, (n,), generator=generator)


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


def draw_gradients() -> Iterator[Case]:
    for function in FUNCTIONS:
        for i, (a_shape, b_shape) in enumerate(BROADCASTS):
            for dtype in ("f32", "bf16"):
                a = randn(*a_shape).to(TYPES[dtype])
                b = randn(*b_shape).to(TYPES[dtype])
                if function == "div":
                    b = b + 0.5 * torch.sign(b)  # away from zero
                grad_output = randn(*torch.broadcast_shapes(a_shape, b_shape)).to(TYPES[dtype])
                inputs = {"a": a, "b": b, "grad_output": grad_output}
                metadata = {"op": "binary_backward", "function": function}
                name = f"binary_backward_{function}_{i}_{dtype}"
                yield Case(f"binary_backward_{function}", name, metadata, inputs)


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


def draw_places(places: str, index_type: torch.dtype) -> Tensors:
    """Of 7 tokens in no order: a token of none, pages that are full, half full and nobody's."""
    if places == "pages":
        values = {
            "page_indices": torch.randperm(N_PAGES, generator=generator)[:4],
            "page_indptr": torch.tensor([0, 3, 3, 4]),  # three pages, none, one
            "batch_indices": torch.tensor([2, 0, -1, 0, 0, 0, 2]),
            "kv_positions": torch.tensor([1, 3, 99, 2, 4, 5, 0]),
        }
    else:
        n_slots = N_SLOTS if places == "slots" else N_PAGES * PAGE_SIZE
        values = {"slots": torch.randperm(n_slots, generator=generator)[:7]}
        values["slots"][2] = -1
    return {name: value.to(index_type) for name, value in values.items()}


def draw_cache(case: Case, places: str, cell: tuple[int, ...], cache_type: str) -> torch.Tensor:
    """With earlier tokens in all of it; a cell is what it has of a token."""
    shape = (N_SLOTS, *cell) if places == "slots" else (N_PAGES, PAGE_SIZE, *cell)
    cache = randn(*shape)
    if case.metadata.get("kv_layout") == "hnd":
        cache = cache.transpose(1, 2).contiguous()
    if cache_type == "u8":
        return cache.to(fp8_of(case)).view(torch.uint8)
    return cache.to((TYPES | FP8)[cache_type])


def draw_head_parts(case: Case, dtype: torch.dtype, is_mla: bool) -> dict[str, tuple[int, ...]]:
    """Draws q, k and v; returns the cells of their caches."""
    if case.kind == "rope_quantize_append":
        n_k, other = ((), 64) if is_mla else ((2,), 16)
        shapes = {"q_rope": (3, 32), "k_rope": (*n_k, 32)}
        shapes |= {"q_nope": (3, other), "k_nope": (*n_k, other)}
        cells = {"ckv_cache": (64,), "kpe_cache": (32,)} if is_mla else {}
    elif is_mla:
        shapes, cells = {"q": (2, 64), "k": (64,), "v": (512,)}, {"k_cache": (576,)}
    else:
        shapes, cells = {"q": (3, 32), "k": (2, 32)}, {}
    if not cells and case.kind != "qk_rmsnorm_rope":
        shapes["v"] = (2, 48 if "q_rope" in shapes else 32)
        cells = {"k_cache": shapes["v"], "v_cache": shapes["v"]}
    case.inputs |= {name: randn(7, *shape).to(dtype) for name, shape in shapes.items()}
    return cells


def draw_head_case(row: tuple) -> Case:
    """Token 5 has position -1."""
    op, name, dtype, cache_type, places, index_type, parameters = row
    is_mla = name.startswith("mla")
    stated = {key: value for key, value in parameters.items() if isinstance(value, str)}
    metadata = {"op": op, "style": "neox", "theta": "10000.0"}
    metadata["rotary_dim"] = "64" if is_mla and op == "rope_append" else "32"
    case = Case(op, f"{op}_{name}", metadata | stated, {})
    case.inputs["positions"] = random_positions(4096, 7).to(index_type)
    case.inputs["positions"][5] = -1
    cells = draw_head_parts(case, TYPES[dtype], is_mla)
    for cache, cell in cells.items():
        case.inputs[cache] = draw_cache(case, places, cell, cache_type)
    if places:
        case.inputs |= draw_places(places, index_type)
    for part in ("q", "k") if op.startswith("qk_rmsnorm") else ():
        weight_type = torch.float32 if name.endswith("f32w") else TYPES[dtype]
        case.inputs[f"{part}_weight"] = randn(32).to(weight_type)
    scales = {key: value for key, value in parameters.items() if key not in stated}
    case.inputs |= {key: torch.tensor([value]) for key, value in scales.items()}
    return case


def draw_heads() -> Iterator[Case]:
    for row in HEADS:
        case = draw_head_case(row)
        while not is_firm(case):
            case = draw_head_case(row)
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


def draw_activation(name: str, dtype: str, parameters: Metadata, shapes: dict) -> Case:
    """Not below -3, where float32 formulas of gelu lose their digits."""
    metadata = {"op": "act_and_mul", **parameters}
    case = Case("act_and_mul", f"act_and_mul_{name}", metadata, {})
    while not case.inputs or not is_firm_activation(case):
        case.inputs = {key: randn(*shape) * 1.5 for key, shape in shapes.items()}
        case.inputs = {key: x.clamp(min=-3).to(TYPES[dtype]) for key, x in case.inputs.items()}
    return case


def draw_activations() -> Iterator[Case]:
    """rounding=type is stored in the type of x, and compared by its bits."""
    for activation in ACTIVATIONS:
        yield draw_activation(f"{activation}_f32", "f32", {"activation": activation}, {"x": (3, 96)})
    for activation in ("silu", "gelu_tanh"):
        for dtype in ("bf16", "f16"):
            for rounding in ("once", "type"):
                parameters = {"activation": activation, "rounding": rounding}
                name = f"{activation}_{rounding}_{dtype}"
                yield draw_activation(name, dtype, parameters, {"x": (3, 96)})
    for row in ACTIVATION_LAYOUTS:
        yield draw_activation(*row)
    for activation, layout in (("gelu_tanh", {"gated": "false"}), ("quick_gelu", {}), ("swiglu_oai", {"interleaved": "true"})):
        parameters = {"activation": activation, "rounding": "steps", **layout}
        yield draw_activation(f"{activation}_steps_bf16", "bf16", parameters, {"x": (3, 96)})


def draw_activation_gradients() -> Iterator[Case]:
    """rounding=type is stored in the type of x, and compared by its bits."""
    rows = [(f"{name}_f32", "f32", {"activation": name}, {"x": (3, 96)}) for name in ACTIVATIONS]
    for dtype in ("bf16", "f16"):
        for rounding in ("once", "type"):
            parameters = {"activation": "silu", "rounding": rounding}
            rows.append((f"silu_{rounding}_{dtype}", dtype, parameters, {"x": (3, 96)}))
    for name, dtype, parameters, shapes in [*rows, *ACTIVATION_LAYOUTS]:
        metadata = {"op": "act_and_mul_backward", **parameters}
        case = Case("act_and_mul_backward", f"act_and_mul_backward_{name}", metadata, {})
        while not case.inputs or not is_firm_activation_gradient(case):
            inputs = {key: randn(*shape) * 1.5 for key, shape in shapes.items()}
            y_shape = list(next(iter(shapes.values())))
            y_shape[-1] //= 2 if "x" in shapes and parameters.get("gated") != "false" else 1
            inputs["grad_y"] = randn(*y_shape)
            case.inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
        yield case


def draw_norm_gradients() -> Iterator[Case]:
    """Of rmsnorm with and without a weight, of Gemma's, and of add_rmsnorm."""
    for form in ("plain", "weight", "gemma", "residual"):
        for dtype in ("f32", "bf16", "f16"):
            inputs = {"grad_y": randn(5, 96), "x": randn(5, 96)}
            if form != "plain":
                inputs["weight"] = randn(96)
            if form == "residual":
                inputs["grad_residual"] = randn(5, 96)
            metadata = {"op": "rmsnorm_backward", "eps": str(EPS)}
            if form == "gemma":
                metadata["weight_bias"] = "1.0"
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            yield Case("rmsnorm_backward", f"rmsnorm_backward_{form}_{dtype}", metadata, inputs)


def draw_layer_norm_gradients() -> Iterator[Case]:
    """Of layer_norm with and without a weight, with a bias, with 1 + weight, and of add_layer_norm."""
    for form in ("plain", "weight", "bias", "residual"):
        for dtype in ("f32", "bf16", "f16"):
            inputs = {"grad_y": randn(5, 96), "x": 3 + randn(5, 96)}
            if form != "plain":
                inputs["weight"] = randn(96)
            if form in ("bias", "residual"):
                inputs["bias"] = randn(96)
            if form == "residual":
                inputs["grad_residual"] = randn(5, 96)
            metadata = {"op": "layer_norm_backward", "eps": str(EPS)}
            if form == "bias":
                metadata["weight_bias"] = "1.0"
            inputs = {key: x.to(TYPES[dtype]) for key, x in inputs.items()}
            yield Case("layer_norm_backward", f"layer_norm_backward_{form}_{dtype}", metadata, inputs)


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


def draw_compares() -> Iterator[Case]:
    """Of one type; and NaN, Inf and zeros in one or both."""
    for dtype in ("f32", "f16", "bf16"):
        b = randn(5, 100)
        a = b + 0.01 * randn(5, 100)
        metadata = {"op": "compare", "atol": "0.001", "rtol": "0.02"}
        yield Case("compare", f"compare_{dtype}", metadata, {"a": a.to(TYPES[dtype]), "b": b.to(TYPES[dtype])})
    nan, inf = float("nan"), float("inf")
    a = torch.tensor([[1.0, nan, inf, -inf, 0.0, -0.0, nan, 3.0]])
    b = torch.tensor([[1.0, nan, inf, -inf, 1.0, 0.0, 2.0, 3.5]])
    yield Case("compare", "compare_non_finite_f32", metadata, {"a": a, "b": b})


def draw_cases() -> list[Case]:
    generator.manual_seed(SEED)
    cases = [
        *draw_scalings(),
        *draw_widths(),
        *draw_ragged(),
        *draw_long_positions(),
        *draw_norms(),
        *draw_quantized(),
        *draw_gradients(),
    ]
    state = generator.get_state()
    groups = (draw_rows_of_positions, draw_quantized_norms, draw_heads, draw_model_norms)
    groups += (draw_quantized_sums, draw_layer_norms, draw_activations, draw_quantized_rows)
    gradients = (draw_activation_gradients, draw_norm_gradients, draw_layer_norm_gradients)
    codes = (draw_dequantized_rows, draw_micro_rows, draw_dequantized_micro_rows)
    for draw in (*groups, *gradients, draw_compares, *codes):
        generator.set_state(state)  # further groups begin here, so each may change alone
        cases += draw()
    return cases


# ------------------------------------------------------------------ results


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


def fp8_of(case: Case) -> torch.dtype:
    metadata = case.metadata
    return FP8[metadata.get("output_dtype") or metadata.get("cache_dtype", "e4m3")]


def into_fp8(x: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(fp8).max
    return x.clamp(-largest, largest).to(fp8)


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


def norm_input(case: Case) -> torch.Tensor:
    """x, or the float32 sum of x and residual, rounded where the case says so."""
    x = case.inputs["x"].float()
    if "residual" in case.inputs:
        x = x + case.inputs["residual"].float()
    return x.to(case.inputs["x"].dtype).float() if "sum_rounding" in case.metadata else x


def norm_of_model(case: Case, slip: float = 1.0) -> Tensors:
    """In float64, times slip, rounded where the model's class rounds; results in the type of x."""
    z, dtype = norm_input(case), case.inputs["x"].dtype
    weight = case.inputs["weight"].double() + float(case.metadata.get("weight_bias", 0))
    y = z.double() * slip
    y *= torch.rsqrt(z.double().square().mean(dim=-1, keepdim=True) + float(case.metadata["eps"]))
    if "rounding" in case.metadata:
        y = y.to(dtype).double()
    return {"y.expected": (y * weight).to(dtype), "residual.expected": z.to(dtype)}


def is_firm_norm(case: Case) -> bool:
    """Do the last bits of float32 decide no rounding, and does the model's class agree?"""
    module = MODEL_NORMS[case.name.split("_")[2]][0]
    norm = module(case.inputs["x"].shape[-1], float(case.metadata["eps"]))
    norm.weight.data = case.inputs["weight"]
    found = [norm_of_model(case, slip)["y.expected"] for slip in (1 - 3e-7, 1, 1 + 3e-7)]
    found.append(norm(case.inputs["residual"] + case.inputs["x"]).detach())
    return all(has_equal_bytes(found[0], other) for other in found[1:])


def rmsnorm(case: Case) -> Tensors:
    if "sum_rounding" in case.metadata:
        return norm_of_model(case)
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


def quantize_norm(case: Case, slip: float = 1.0) -> Tensors:
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
    if "residual" in case.inputs:
        dtype = case.inputs["x"].dtype
        results["residual.expected"] = norm_input(case).to(dtype).float()
    return results


def has_firm_codes(case: Case) -> bool:
    """Is nothing so near a tie that the last bits of float32 decide how it is rounded?"""
    is_narrow = case.inputs["x"].dtype != torch.float32
    is_rounded = is_narrow and case.metadata.get("rounding") == "type"
    for slip in (1 - 3e-7, 1 + 3e-7):
        expected, found = quantize_norm(case), quantize_norm(case, slip)
        if not has_equal_bytes(expected["y.expected"], found["y.expected"]):
            return False
        if is_rounded and not torch.equal(norm_to_quantize(case), norm_to_quantize(case, slip)):
            return False
    return True


def norm_of_heads(case: Case, name: str, slip: float) -> torch.Tensor:
    """In float64, times slip; a token of position -1 stays as it is."""
    x, weight = case.inputs[name], case.inputs[f"{name}_weight"]
    eps = float(case.metadata.get("eps", EPS))
    if case.metadata.get("rounding") == "hf":
        scale = torch.rsqrt(x.double().square().mean(dim=-1, keepdim=True) + eps) * slip
        y = (x.double() * scale).to(x.dtype).double() * weight.double()
    else:
        weight = weight.double() + float(case.metadata.get("weight_bias", 0))
        y = torch.nn.functional.rms_norm(x.double(), weight.shape, weight, eps) * slip
    return torch.where(case.inputs["positions"][:, None, None] < 0, x.double(), y)


def place_of(case: Case, token: int, page_size: int) -> tuple[int, int] | None:
    """Page and entry of a token in a cache; slots without pages are one page."""
    inputs = case.inputs
    if inputs["positions"][token] < 0:
        return None
    if "slots" in inputs:
        slot = int(inputs["slots"][token])
        return divmod(slot, page_size) if slot >= 0 else None
    request = int(inputs["batch_indices"][token])
    if request < 0:
        return None
    first, end = inputs["page_indptr"][request : request + 2].tolist()
    page, entry = divmod(int(inputs["kv_positions"][token]), page_size)
    return int(inputs["page_indices"][first:end][page]), entry


def fill(case: Case, name: str, rows: torch.Tensor) -> torch.Tensor:
    """The cache after the call, where rows [tokens, ...] go into its cells."""
    before = case.inputs[name]
    is_code = before.element_size() == 1
    rows = into_fp8(rows, fp8_of(case)).view(torch.uint8) if is_code else rows.float()
    after = (before.view(torch.uint8) if is_code else before.float()).clone()
    pages = after if after.dim() > rows.dim() else after[None]
    if case.metadata.get("kv_layout") == "hnd":
        pages = pages.transpose(1, 2)
    for token, row in enumerate(rows):
        place = place_of(case, token, pages.shape[1])
        if place:
            pages[place] = row
    return after.view(before.dtype) if is_code else after


def heads_append(case: Case, slip: float = 1.0) -> Tensors:
    """rope_append and the operators that normalise; without caches qk_rmsnorm_rope."""
    is_normal = case.metadata["op"].startswith("qk_rmsnorm")
    q, k = (
        rotate_tokens(case, norm_of_heads(case, name, slip) if is_normal else case.inputs[name])
        for name in ("q", "k")
    )
    results = {"q.expected": q.float()}
    if "k_cache" not in case.inputs or "return_k" in case.metadata:
        results["k.expected"] = k.float()
    if "k_cache" not in case.inputs:
        return results
    is_code = case.inputs["k_cache"].element_size() == 1
    k = scaled(case, "k", k, slip if is_code else 1.0)
    v = scaled(case, "v", case.inputs["v"].double(), slip if is_code else 1.0)
    if "v_cache" in case.inputs:
        results["k_cache.expected"] = fill(case, "k_cache", k)
        results["v_cache.expected"] = fill(case, "v_cache", v)
    else:
        results["k_cache.expected"] = fill(case, "k_cache", torch.cat([v, k], dim=-1))
    return results


def rope_quantize_append(case: Case, slip: float = 1.0) -> Tensors:
    parts, fp8 = scaled_parts(case, slip), fp8_of(case)
    results = {f"{name}.expected": into_fp8(parts[name], fp8) for name in ("q_rope", "q_nope")}
    if "v" in parts:
        k = torch.cat([parts["k_rope"], parts["k_nope"]], dim=-1)
        rows = {"k_cache": k, "v_cache": parts["v"]}
    else:
        rows = {"kpe_cache": parts["k_rope"], "ckv_cache": parts["k_nope"]}
    return results | {f"{name}.expected": fill(case, name, row) for name, row in rows.items()}


def is_firm(case: Case) -> bool:
    """Do the last bits of float32 decide no rounding on the way?"""
    function = OPERATORS[case.metadata["op"]]
    expected = function(case)
    for slip in (1 - 3e-7, 1 + 3e-7):
        for name, found in function(case, slip).items():
            off = difference(found, expected[name])
            if off.max() > (0 if found.element_size() == 1 else TOLERANCE):
                return False
    return True


def layer_norm(case: Case, slip: float = 1.0) -> Tensors:
    """With rounding=type in the type of x, after each step of a model's class; the norm times slip."""
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
    activated = ACT2FN["gelu_new" if name == "gelu_tanh" else name](gate)
    return activated if case.metadata.get("gated") == "false" else activated * up


def act_and_mul(case: Case, slip: float = 1.0) -> Tensors:
    """With rounding=type the activation too is rounded, times slip, and y has the type of x."""
    name, rounding = (case.metadata.get(key) for key in ("activation", "rounding"))
    if rounding == "steps":
        return {"y.expected": activated_in_steps(case)}
    if name == "swiglu_oai":
        own = argparse.Namespace(alpha=1.702, limit=float(case.metadata.get("limit", 7)))
        return {"y.expected": GptOssExperts._apply_gate(own, case.inputs["x"].double()).float()}
    gate, up = gate_and_up(case)
    activated = ACT2FN[ACTIVATIONS[name or "silu"]](gate.double()) * slip
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


def binary_backward(case: Case) -> Tensors:
    a, b = (case.inputs[name].double().requires_grad_() for name in ("a", "b"))
    FUNCTIONS[case.metadata["function"]](a, b).backward(case.inputs["grad_output"].double())
    return {"grad_a.expected": a.grad.float(), "grad_b.expected": b.grad.float()}


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


def number_of(x: torch.Tensor) -> torch.Tensor:
    """Places of numbers among those of their type; 0 and -0 are one."""
    bits = x.view(torch.int32 if x.dtype == torch.float32 else torch.int16).long()
    least = torch.iinfo(torch.int32 if x.dtype == torch.float32 else torch.int16).min
    return torch.where(bits < 0, least - bits, bits)


def compare(case: Case) -> Tensors:
    """In float32, but for the cosine."""
    dtype = case.inputs["a"].dtype
    atol, rtol = (float(case.metadata[name]) for name in ("atol", "rtol"))
    a, b = (case.inputs[name].float().flatten() for name in "ab")
    alone = a.isnan() != b.isnan()
    same = (a == b) | (a.isnan() & b.isnan())
    skipped = same | alone
    distance = torch.where(skipped, 0.0, (a - b).abs())
    share = torch.where(skipped, 0.0, torch.where(distance.isinf(), distance, distance / b.abs()))
    beyond = ~torch.isclose(a, b, atol=atol, rtol=rtol, equal_nan=True) & ~alone
    steps = (number_of(a.to(dtype)) - number_of(b.to(dtype))).abs().masked_fill(skipped, 0)
    finite = a.isfinite() & b.isfinite()
    cosine = torch.nn.functional.cosine_similarity(a[finite].double(), b[finite].double(), dim=0)
    index = alone.int().argmax() if alone.any() else distance.argmax()
    numbers = [x.max().float() for x in (distance, share, steps)]
    return {
        "index.expected": index.reshape(1),
        "counts.expected": torch.stack([beyond.sum(), alone.sum()]),
        "stats.expected": torch.stack([*numbers, cosine.float()]),
    }


OPERATORS: dict[str, Callable[[Case], Tensors]] = {
    "rope": rope,
    "rope_quantize": rope_quantize,
    "rmsnorm": rmsnorm,
    "add_rmsnorm": rmsnorm,
    "rmsnorm_quantize": quantize_norm,
    "add_rmsnorm_quantize": quantize_norm,
    "rmsnorm_backward": norm_backward,
    "layer_norm_backward": norm_backward,
    "binary_backward": binary_backward,
    "layer_norm": layer_norm,
    "add_layer_norm": layer_norm,
    "act_and_mul": act_and_mul,
    "act_and_mul_backward": act_and_mul_backward,
    "quantize": quantize,
    "dequantize": dequantize,
    "compare": compare,
    "qk_rmsnorm_rope": heads_append,
    "rope_append": heads_append,
    "qk_rmsnorm_rope_append": heads_append,
    "rope_quantize_append": rope_quantize_append,
}
N_ROWS_KEPT = {"rope": 4, "rope_quantize": 4, "rmsnorm": 2, "add_rmsnorm": 2}
HAVE_NO_ROWS = ("weight", "grad_weight.expected", "bias", "grad_bias.expected", "cos_sin_cache", "indptr", "offsets")


def make(case: Case) -> Tensors:
    """All tensors of a file: inputs and results, large ones cut to their first rows."""
    tensors = {**case.inputs, **OPERATORS[case.metadata["op"]](case)}
    by_row = [name for name in tensors if name not in HAVE_NO_ROWS]
    can_be_cut = case.metadata["op"] in N_ROWS_KEPT and "indptr" not in tensors
    if can_be_cut and sum(tensors[name].nbytes for name in by_row) > LARGE:
        for name in by_row:
            tensors[name] = tensors[name][: N_ROWS_KEPT[case.metadata["op"]]]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


# -------------------------------------------------------------------- files


def path_of(folder: pathlib.Path, case: Case) -> pathlib.Path:
    return folder / f"{case.name}.safetensors"


def read(path: pathlib.Path) -> tuple[Metadata, Tensors]:
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def has_equal_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    same_form = a.dtype == b.dtype and a.shape == b.shape
    return same_form and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    )


def difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Of each element, as a share of the largest magnitude in its row."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return torch.tensor(float("inf"))
    found, expected = torch.atleast_1d(found.double()), torch.atleast_1d(expected.double())
    largest = expected.abs().amax(dim=-1, keepdim=True)
    off = torch.where(found == expected, 0.0, (found - expected).abs() / largest)
    return off.nan_to_num(nan=float("inf"))


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


def compare_file(case: Case, path: pathlib.Path) -> tuple[bool, float, list[str]]:
    """Whether the file has equal bytes, its largest difference, what is wrong with it."""
    if not path.exists():
        return False, float("inf"), ["is not there"]
    metadata, stored = read(path)
    made = make(case)
    wrong = []
    if {**metadata, "source": ""} != {**case.metadata, "source": ""}:
        wrong.append(f"has metadata {metadata}, expected {case.metadata}")
    if stored.keys() != made.keys():
        return False, float("inf"), [*wrong, f"has {sorted(stored)}, expected {sorted(made)}"]
    worst, n_equal = 0.0, 0
    for name, tensor in made.items():
        off, equal = difference(stored[name], tensor), has_equal_bytes(stored[name], tensor)
        is_exact = name in case.inputs or tensor.dtype != torch.float32
        if not equal and (is_exact or bool((off > allowed_difference(case, name, made)).any())):
            wrong.append(f"{name} differs by {off.max():.3g} of its row's largest")
        worst, n_equal = max(worst, float(off.max())), n_equal + equal
    return n_equal == len(made) and metadata == case.metadata, worst, wrong


def is_of_qwen3(case: Case) -> bool:
    is_other = {"weight_bias", "rounding"} & case.metadata.keys()
    return case.kind.startswith("qk_rmsnorm") and not is_other


def difference_to_qwen3(case: Case) -> float:
    """Between q here and q of Qwen 3's own modules, which compute in float32."""
    q, weight = case.inputs["q"], case.inputs["q_weight"]
    norm = Qwen3RMSNorm(weight.numel(), EPS)
    norm.weight.data = weight.float()
    q = norm(q.float()).detach().transpose(0, 1)[None]
    angles = cos_sin(case.metadata, positions_of(case.inputs))
    cos, sin = (torch.cat([part, part], dim=-1)[None] for part in angles)
    q = apply_rotary_pos_emb(q, q, cos, sin)[0][0].transpose(0, 1)
    is_known = case.inputs["positions"] >= 0
    expected = heads_append(case)["q.expected"]
    return float(difference(q[is_known], expected[is_known]).max())


def difference_to_module(case: Case) -> float:
    """Between a norm here and that of transformers, which computes in float32."""
    if is_of_qwen3(case):
        return difference_to_qwen3(case)
    module = GemmaRMSNorm if "weight_bias" in case.metadata else LlamaRMSNorm
    norm = module(case.inputs["weight"].numel(), float(case.metadata["eps"]))
    norm.weight.data = case.inputs["weight"].float()
    y = norm(norm_input(case)).detach()
    return float(difference(y, rmsnorm(case)["y.expected"]).max())


def check(cases: list[Case], folder: pathlib.Path) -> bool:
    """Prints the table; false where something is beyond tolerance."""
    rows: dict[str, list[tuple[bool, float]]] = collections.defaultdict(list)
    wrong: list[str] = []
    from_modules = 0.0
    for case in cases:
        path = path_of(folder, case)
        equal, worst, faults = compare_file(case, path)
        rows[case.kind].append((equal, worst))
        wrong += [f"{path.name} {fault}" for fault in faults]
        if case.kind.endswith("rmsnorm") or is_of_qwen3(case):
            off = difference_to_module(case)
            from_modules = max(from_modules, off)
            if off > TOLERANCE:
                wrong.append(f"{path.name} is {off:.3g} from the norm of transformers")
    known = {path_of(folder, case) for case in cases}
    wrong += [
        f"{path.name} is made by no case"
        for path in sorted(set(folder.glob("*.safetensors")) - known)
    ]
    print(f"{'kind':<22} {'files':>5} {'equal bytes':>11} {'largest difference':>18}")
    for kind, results in rows.items():
        n_equal, worst = sum(equal for equal, _ in results), max(worst for _, worst in results)
        print(f"{kind:<22} {len(results):>5} {n_equal:>11} {worst:>18.2g}")
    print(f"The norms of Llama, Gemma and Qwen 3, in float32, differ by {from_modules:.2g}")
    for line in wrong:
        print(f"WRONG {line}")
    return not wrong


def write_file(path: pathlib.Path, metadata: Metadata, tensors: Tensors) -> None:
    """As safetensors does, but with the metadata sorted: it writes them in random order."""
    packed = safetensors.torch.save(tensors)
    data = 8 + int.from_bytes(packed[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(packed[8:data])}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + packed[data:])


def write(cases: list[Case], folder: pathlib.Path) -> None:
    """Leaves files alone that have these tensors and metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if not compare_file(case, path_of(folder, case))[0]:
            write_file(path_of(folder, case), case.metadata, make(case))


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes or checks the golden files.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", nargs="?", const=HERE, type=pathlib.Path, metavar="DIR")
    action.add_argument("--out", type=pathlib.Path, metavar="DIR")
    parser.add_argument(
        "--inputs", type=pathlib.Path, metavar="DIR", help="read inputs from the files there"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = draw_cases()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, torchao {torchao.__version__}"
    print(f"{versions}, {torch.backends.cpu.get_cpu_capability()}, {len(cases)} files")
    if args.inputs:
        for case in cases:
            stored = read(path_of(args.inputs, case))[1]
            case.inputs = {name: stored[name] for name in case.inputs}
    if args.out:
        write(cases, args.out)
        return 0
    return 0 if check(cases, args.check) else 1


if __name__ == "__main__":
    sys.exit(main())
