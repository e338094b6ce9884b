"""Functions of vllm._custom_ops on roped's kernels in this process. Differences:

- The CPU too.
- fused_add_rms_norm normalises the unrounded float32 sum, as vLLM's own
  reference does; its CUDA kernel rounds the sum first.
- Norms round once, after the product with the weight. vLLM's kernels round
  before it too: pass rounding="hf" to have that.
- Writes go to the tensors' own memory: contiguous, or slices of wider rows that are contiguous inside.
- cos_sin_cache may be F32 beside narrower heads.
"""

from typing import Any, Literal

from roped import ops
from roped._in_process import library_of

__all__ = ["fused_add_rms_norm", "rms_norm", "rotary_embedding"]


def rotary_embedding(
    positions: Any, query: Any, key: Any | None, head_size: int, cos_sin_cache: Any, is_neox: bool
) -> None:
    """In place. positions [n] or [batch, n]; query and key [..., heads * head_size] or
    [..., heads, head_size]; cos_sin_cache [longest, rotary_dim], cosines first."""
    flat = positions.reshape(-1)
    given = {"q": query} if key is None else {"q": query, "k": key}
    rows = {name: tensor.reshape(flat.shape[0], -1) for name, tensor in given.items()}
    address = library_of(query).address
    for name, tensor in given.items():
        if address(rows[name]) != address(tensor):  # a copy
            raise ValueError(f"tensor '{name}': not contiguous, and rotated in place")
    ops.rope(rows["q"], rows.get("k"), flat, cos_sin_cache=cos_sin_cache, head_dim=head_size, out=rows,
             rotary_dim=cos_sin_cache.shape[1], style="neox" if is_neox else "gptj")  # fmt: skip


def rms_norm(out: Any, input: Any, weight: Any, epsilon: float, rounding: Literal["once", "hf"] = "once") -> None:
    ops.rmsnorm(input, weight, eps=epsilon, rounding=rounding, out=out)


def fused_add_rms_norm(
    input: Any, residual: Any, weight: Any, epsilon: float, rounding: Literal["once", "hf"] = "once"
) -> None:
    """residual += input; input = rmsnorm(residual) * weight."""
    places = {"y": input, "residual": residual}
    ops.add_rmsnorm(input, residual, weight, eps=epsilon, rounding=rounding, out=places)
