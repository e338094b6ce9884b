"""Functions of vllm._custom_ops on roped's kernels in this process. Differences:

- The CPU too.
- Norms round where vLLM's CUDA kernels do: before the product with the weight
  too, and fused_add_rms_norm takes the norm of the sum as it is stored. Pass
  rounding="once" for one rounding, at the end, and sum_rounding="once" for the
  norm of the float32 sum, as vLLM's own reference has it.
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


def rms_norm(out: Any, input: Any, weight: Any, epsilon: float, rounding: Literal["once", "hf"] = "hf") -> None:
    ops.rmsnorm(input, weight, eps=epsilon, rounding=rounding, out=out)


def fused_add_rms_norm(
    input: Any, residual: Any, weight: Any, epsilon: float, rounding: Literal["once", "hf"] = "hf",
    sum_rounding: Literal["once", "type"] = "type",
) -> None:  # fmt: skip
    """residual += input; input = rmsnorm(residual) * weight."""
    places = {"y": input, "residual": residual}
    ops.add_rmsnorm(input, residual, weight, eps=epsilon, rounding=rounding, sum_rounding=sum_rounding, out=places)
