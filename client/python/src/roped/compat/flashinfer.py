"""Rotary and norm functions as flashinfer has them, on roped's kernels in
this process. Differences:

- The CPU too. F32 tensors too. Positions may be int32 or int64.
- Tensors that must be packed are packed first; what is written in place must be contiguous, or a slice of wider rows.
- apply_rope and its kin with indptr: offsets are of the type of indptr.
- rope_scale divides every frequency, as there; its reciprocal is a factor of scaling "linear".
- enable_pdl and backend are accepted and ignored: kernels overlap where the device allows it.
- Not here: attention, sampling, paged caches. For rope with FP8 and caches use roped.ops.
"""

from typing import Any

from roped import ops

__all__ = [
    "apply_llama31_rope", "apply_llama31_rope_inplace", "apply_llama31_rope_pos_ids",
    "apply_llama31_rope_pos_ids_inplace", "apply_rope", "apply_rope_inplace", "apply_rope_pos_ids",
    "apply_rope_pos_ids_inplace", "apply_rope_with_cos_sin_cache", "apply_rope_with_cos_sin_cache_inplace",
    "fused_add_rmsnorm", "gemma_fused_add_rmsnorm", "gemma_rmsnorm", "rmsnorm",
]  # fmt: skip


def _angles(rotary_dim: int | None, interleave: bool, rope_scale: float, rope_theta: float) -> dict[str, Any]:
    params = {"style": "gptj" if interleave else "neox", "theta": rope_theta, "rotary_dim": rotary_dim or 0}
    return params if rope_scale == 1 else params | {"scaling": "linear", "factor": rope_scale}


def _llama31(
    rotary_dim: int | None, interleave: bool, rope_scale: float, rope_theta: float, low: float, high: float, old: int
) -> dict[str, Any]:
    params = _angles(rotary_dim, interleave, 1, rope_theta) | {"scaling": "llama3", "factor": rope_scale}
    return params | {"low_freq_factor": low, "high_freq_factor": high, "original_max_position": old}


def apply_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 1, rope_theta: float = 1e4,
) -> tuple[Any, Any]:  # fmt: skip
    result = ops.rope(q, k, indptr=indptr, offsets=offsets, **_angles(rotary_dim, interleave, rope_scale, rope_theta))
    return result.q, result.k


def apply_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 1, rope_theta: float = 1e4,
) -> None:  # fmt: skip
    params = _angles(rotary_dim, interleave, rope_scale, rope_theta)
    ops.rope(q, k, indptr=indptr, offsets=offsets, out={"q": q, "k": k}, **params)


def apply_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> tuple[Any, Any]:  # fmt: skip
    result = ops.rope(q, k, pos_ids, **_angles(rotary_dim, interleave, rope_scale, rope_theta))
    return result.q, result.k


def apply_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:  # fmt: skip
    ops.rope(q, k, pos_ids, out={"q": q, "k": k}, **_angles(rotary_dim, interleave, rope_scale, rope_theta))


def apply_llama31_rope(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 8, rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> tuple[Any, Any]:  # fmt: skip
    params = _llama31(
        rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    result = ops.rope(q, k, indptr=indptr, offsets=offsets, **params)
    return result.q, result.k


def apply_llama31_rope_inplace(
    q: Any, k: Any, indptr: Any, offsets: Any, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 8, rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:  # fmt: skip
    params = _llama31(
        rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    ops.rope(q, k, indptr=indptr, offsets=offsets, out={"q": q, "k": k}, **params)


def apply_llama31_rope_pos_ids(
    q: Any, k: Any, pos_ids: Any, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> tuple[Any, Any]:  # fmt: skip
    params = _llama31(
        rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    result = ops.rope(q, k, pos_ids, **params)
    return result.q, result.k


def apply_llama31_rope_pos_ids_inplace(
    q: Any, k: Any, pos_ids: Any, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 5e5, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> None:  # fmt: skip
    params = _llama31(
        rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    ops.rope(q, k, pos_ids, out={"q": q, "k": k}, **params)


def apply_rope_with_cos_sin_cache(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True,
    backend: str = "cuda",
) -> tuple[Any, Any]:  # fmt: skip
    """query and key [n, heads * head_size]; cos_sin_cache [longest, rotary_dim], cosines first."""
    result = ops.rope(query, key, positions, cos_sin_cache=cos_sin_cache, head_dim=head_size,
                      rotary_dim=cos_sin_cache.shape[1], style="neox" if is_neox else "gptj")  # fmt: skip
    return result.q, result.k


def apply_rope_with_cos_sin_cache_inplace(
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True,
    backend: str = "cuda",
) -> None:  # fmt: skip
    ops.rope(query, key, positions, cos_sin_cache=cos_sin_cache, head_dim=head_size, out={"q": query, "k": key},
             rotary_dim=cos_sin_cache.shape[1], style="neox" if is_neox else "gptj")  # fmt: skip


def rmsnorm(input: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: bool | None = None) -> Any:
    return ops.rmsnorm(input, weight, eps=eps, out=out)


def gemma_rmsnorm(input: Any, weight: Any, eps: float = 1e-6, out: Any = None, enable_pdl: bool | None = None) -> Any:
    return ops.rmsnorm(input, weight, eps=eps, weight_bias=1.0, out=out)


def fused_add_rmsnorm(
    input: Any, residual: Any, weight: Any, eps: float = 1e-6, enable_pdl: bool | None = None
) -> None:
    """residual += input; input = rmsnorm(residual) * weight."""
    ops.add_rmsnorm(input, residual, weight, eps=eps, out={"y": input, "residual": residual})


def gemma_fused_add_rmsnorm(
    input: Any, residual: Any, weight: Any, eps: float = 1e-6, enable_pdl: bool | None = None
) -> None:
    ops.add_rmsnorm(input, residual, weight, eps=eps, weight_bias=1.0, out={"y": input, "residual": residual})
