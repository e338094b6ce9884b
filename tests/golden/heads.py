"""Heads that are normalised, and heads that go to a cache."""

from collections.abc import Iterator

import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from case import (
    EPS,
    FP8,
    TOLERANCE,
    TYPES,
    Case,
    Tensors,
    difference,
    fp8_of,
    generator,
    into_fp8,
    randn,
    random_positions,
)
from rotary import cos_sin, positions_of, rotate_tokens, scaled, scaled_parts

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


OPERATORS = {
    "qk_rmsnorm_rope": heads_append,
    "rope_append": heads_append,
    "qk_rmsnorm_rope_append": heads_append,
    "rope_quantize_append": rope_quantize_append,
}
