"""Heads that are normalised, rotated and put into KV caches as FlashInfer, vLLM and SGLang describe
theirs, in float32 numpy, at the tolerances of their tests. Where they take q, k and v as slices of a
fused row and write there, so do these calls."""

import numpy as np
import pytest
from fused_rows import fuse, fused
from test_mrope import cache, rotated
from test_peer_norms import BF16, E4M3, E5M2, NAMES, into_fp8
from test_safetensors import call, load

N_ROWS = 512  # of the table; its positions stay below
STYLES = ["neox", "gptj"]
DEFAULT = {BF16: {"rtol": 1.6e-2, "atol": 1e-3}, np.float16: {"rtol": 1e-3, "atol": 1e-3}}  # vLLM's


def heads(rng, n, *shape, dtype):
    return rng.standard_normal((n, *shape), np.float32).astype(dtype)


def turn(x, table, positions, style):
    """[n, heads, d], the first of d as the table is wide."""
    return rotated(x.astype(np.float32), *np.split(table[positions], 2, axis=-1), style)


def norm(x, weight, eps):
    y = x.astype(np.float32)
    y *= 1 / np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + np.float32(eps))
    return y * weight.astype(np.float32)


def assert_near(found, expected, **tolerance):
    assert found.shape == expected.shape
    assert np.allclose(found.astype(np.float32), expected.astype(np.float32), **tolerance)


def assert_codes(found, expected):
    """The same, or the neighbour where theirs rounded to the type before: 1 of 10."""
    assert found.dtype == expected.dtype
    assert_near(found, expected, rtol=0.26, atol=2**-9)
    assert (found.astype(np.float32) != expected.astype(np.float32)).mean() < 0.1


def assert_kept(after, before, slots):
    """Of [slots, ...], everything but these."""
    kept = np.delete(np.arange(len(before)), slots)
    assert (after[kept].view(np.uint8) == before[kept].view(np.uint8)).all()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("n", [1, 17, 129])
@pytest.mark.parametrize("hq, hk, d", [(1, 1, 64), (8, 2, 128), (8, 8, 256), (32, 8, 128)])
def test_sglang_rope_with_kv_buffer(address, rng, n, hq, hk, d, index, style):
    """apply_rope_inplace_with_kvcache: q in place, k rotated into its slot and left as it was, v as it
    is. Their test: 1e-2, v to the bit."""
    q, k, v = (heads(rng, n, h, d, dtype=BF16) for h in (hq, hk, hk))
    table, positions = cache(d), rng.integers(0, N_ROWS, n).astype(index)
    slots = rng.permutation(2 * n)[:n].astype(index)
    k_cache, v_cache = (heads(rng, 2 * n, hk, d, dtype=BF16) for _ in range(2))
    tensors = {"k_cache": k_cache, "v_cache": v_cache, "slots": slots}
    tensors |= {"positions": positions, "cos_sin_cache": table}
    slices = fuse(address, ["q"], q=q, k=k, v=v)
    out = load(call(address, "rope_append", tensors, style=style, **slices))
    new_q, same_k, same_v = fused(address, q, k, v)
    assert_near(new_q, turn(q, table, positions, style), rtol=1e-2, atol=1e-2)
    assert (same_k == k).all() and (same_v == v).all()
    assert_near(out["k_cache"][slots], turn(k, table, positions, style), rtol=1e-2, atol=1e-2)
    assert (out["v_cache"][slots] == v).all()
    assert_kept(out["k_cache"], k_cache, slots)
    assert_kept(out["v_cache"], v_cache, slots)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
@pytest.mark.parametrize("share", [1, 2, 4])
@pytest.mark.parametrize("n", [4, 513])
def test_vllm_fused_qk_norm_rope(address, rng, n, share, eps, dtype, style):
    """fused_qk_norm_rope on packed qkv, in place, v untouched; a share of 128 rotates. Float32
    throughout. Their test: 1e-2 for bfloat16, 2e-3 for float16."""
    q, k, v = (heads(rng, n, h, 128, dtype=dtype) for h in (16, 4, 4))
    weights = {name: rng.normal(1, 0.1, 128).astype(dtype) for name in ("q_weight", "k_weight")}
    table, positions = cache(128 // share), rng.integers(0, N_ROWS, n)
    tensors = {**weights, "positions": positions, "cos_sin_cache": table}
    slices = fuse(address, ["q", "k"], q=q, k=k, _v=v)
    call(
        address, "qk_rmsnorm_rope", tensors, eps=eps, style=style, rotary_dim=128 // share, **slices
    )
    bound = 1e-2 if dtype == BF16 else 2e-3
    new_q, new_k, same_v = fused(address, q, k, v)
    assert (same_v == v).all()
    for found, x, weight in zip((new_q, new_k), (q, k), weights.values()):
        expected = turn(norm(x, weight, eps), table, positions, style)
        assert_near(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fp8", [E4M3, None])
@pytest.mark.parametrize("n, hq, hk", [(1, 16, 4), (33, 8, 8), (129, 32, 4)])
def test_vllm_fused_qknorm_rope_cache(address, rng, n, hq, hk, fp8, style):
    """fused_qknorm_rope_cache: the same, and k and v into blocks of 16 slots; slot -1 is padding. FP8
    is divided by k_scale and v_scale, so their reciprocals are sent."""
    q, k, v = (heads(rng, n, h, 128, dtype=BF16) for h in (hq, hk, hk))
    weights = {name: rng.normal(1, 0.1, 128).astype(BF16) for name in ("q_weight", "k_weight")}
    table, positions = cache(128), rng.integers(0, N_ROWS, n)
    n_blocks = n // 16 + 2
    slots = rng.permutation(16 * n_blocks)[:n]
    slots[1 : n // 2] = -1
    caches = [heads(rng, n_blocks, 16, hk, 128, dtype=fp8 or BF16) for _ in range(2)]
    scale_k, scale_v = (0.0625, 0.37) if fp8 else (1, 1)
    tensors = {**weights, "k_cache": caches[0], "v_cache": caches[1], "slots": slots}
    tensors |= {"positions": positions, "cos_sin_cache": table}
    if fp8:
        tensors["scale_k"] = np.array([1 / scale_k], np.float32)
        tensors["scale_v"] = np.array([1 / scale_v], np.float32)
    slices = fuse(address, ["q"], q=q, k=k, v=v)
    out = load(call(address, "qk_rmsnorm_rope_append", tensors, style=style, **slices))
    new_q, new_k = (
        turn(norm(x, weight, 1e-6), table, positions, style)
        for x, weight in zip((q, k), weights.values())
    )
    assert_near(fused(address, q, k, v)[0], new_q, rtol=1e-2, atol=1e-2)
    has_slot = slots >= 0
    for name, before, x, scale in [
        ("k_cache", caches[0], new_k, scale_k),
        ("v_cache", caches[1], v.astype(np.float32), scale_v),
    ]:
        cells, x = out[name].reshape(-1, hk, 128), x[has_slot]
        if fp8:
            x = x.astype(BF16).astype(np.float32) / np.float32(scale)
            assert_codes(cells[slots[has_slot]], into_fp8(x, fp8))
        else:
            assert_near(cells[slots[has_slot]], x, rtol=1e-2, atol=1e-2 if name[0] == "k" else 0)
        assert_kept(cells, before.reshape(cells.shape), slots[has_slot])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("n", [4, 11, 131])
def test_vllm_rotary_and_mla_cache(address, rng, n, is_fp8, dtype, style):
    """concat_and_cache_mla_rope_fused: kv_c and the rotated k_pe into one cell of 576, in blocks of
    16. kv_c and k_pe are one row, of the down projection."""
    q = heads(rng, n, 16, 64, dtype=dtype)
    v, k = (heads(rng, n, d, dtype=dtype) for d in (512, 64))
    table, positions, n_blocks = cache(64), rng.integers(0, N_ROWS, n), n // 16 + 2
    slots = rng.permutation(16 * n_blocks)[:n]
    before = heads(rng, n_blocks, 16, 576, dtype=E4M3 if is_fp8 else dtype)
    scale = np.float32(0.1)
    tensors = {"q": q, "k_cache": before, "slots": slots, "positions": positions}
    tensors["cos_sin_cache"] = table
    scales = {"scale_k": float(1 / scale), "scale_v": float(1 / scale)} if is_fp8 else {}
    slices = fuse(address, [], v=v, k=k)
    out = load(call(address, "rope_append", tensors, style=style, **scales, **slices))
    turned = turn(k[:, None], table, positions, style)[:, 0].astype(dtype)
    cells, expected = out["k_cache"].reshape(-1, 576), np.concatenate([v, turned], axis=1)
    assert_near(out["q"], turn(q, table, positions, style), **DEFAULT[dtype])
    if is_fp8:
        assert_codes(cells[slots], into_fp8(expected.astype(np.float32) / scale, E4M3))
    else:
        assert (cells[slots, :512] == v).all()
        assert_near(cells[slots], expected, **DEFAULT[dtype])
    assert_kept(cells, before.reshape(cells.shape), slots)


def pages_of(rng, lengths, page_size, n_padding):
    """FlashInfer's tables of requests whose last tokens are appended, and of padding."""
    kept = [length // 3 for length in lengths]
    n_pages = [-(-length // page_size) for length in lengths]
    new = [np.arange(first, end) for first, end in zip(kept, lengths)]
    batch = np.repeat(np.arange(len(lengths)), [len(part) for part in new])
    return {
        "page_indices": rng.permutation(sum(n_pages)).astype(np.int32),
        "page_indptr": np.cumsum([0, *n_pages]).astype(np.int32),
        "batch_indices": np.concatenate([batch, np.full(n_padding, -1)]).astype(np.int32),
        "kv_positions": np.concatenate([*new, np.zeros(n_padding)]).astype(np.int32),
    }


def entries_of(pages, page_size, tokens):
    """page * page_size + entry."""
    at = pages["page_indptr"][pages["batch_indices"][tokens]] * page_size
    at += pages["kv_positions"][tokens]
    return pages["page_indices"][at // page_size] * page_size + at % page_size


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fp8", [E4M3, E5M2])
@pytest.mark.parametrize("layout, page_size", [("nhd", 16), ("hnd", 32)])
@pytest.mark.parametrize(
    "hq, hk, r, p",
    [(32, 1, 64, 512), (32, 1, 32, 96), (32, 8, 64, 64), (32, 8, 128, 0), (8, 8, 32, 96)],
)
@pytest.mark.parametrize("lengths, n_padding", [([1], 0), ([10, 1, 60], 0), ([19, 33, 5], 2)])
def test_flashinfer_rope_quantize_append(
    address, rng, lengths, n_padding, hq, hk, r, p, layout, page_size, fp8, style
):
    """rope_quantize_fp8_append_paged_kv_cache: MLA where hk is 1, scales multiplied, rotary part first.
    Their test: q 2e-1 and 1e-2, caches 0.25 and 0.5 or 1, entries of others to the bit."""
    pages = pages_of(rng, lengths, page_size, n_padding)
    n, n_pages, is_mla = len(pages["batch_indices"]), len(pages["page_indices"]), hk == 1
    k_heads = () if is_mla else (hk,)
    parts = {"q_rope": heads(rng, n, hq, r, dtype=BF16)}
    parts["k_rope"] = heads(rng, n, *k_heads, r, dtype=BF16)
    if p:
        parts["q_nope"] = heads(rng, n, hq, p, dtype=BF16)
        parts["k_nope"] = heads(rng, n, *k_heads, p, dtype=BF16)
    if not is_mla:
        parts["v"] = heads(rng, n, hk, r + p, dtype=BF16)
    names = ["kpe_cache", "ckv_cache"] if is_mla else ["k_cache", "v_cache"]
    widths = [r, p] if is_mla else [r + p, r + p]
    caches = {
        name: heads(rng, n_pages * page_size, *k_heads, width, dtype=fp8)
        for name, width in zip(names, widths)
    }
    is_hnd = layout == "hnd" and not is_mla

    def paged(cells):
        split = cells.reshape(n_pages, page_size, *cells.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)) if is_hnd else split

    def unpaged(cache):
        split = cache.swapaxes(1, 2) if is_hnd else cache
        return np.ascontiguousarray(split).reshape(n_pages * page_size, *split.shape[2:])

    table, positions = cache(r), rng.integers(0, N_ROWS, n)
    tensors = {name: paged(cells) for name, cells in caches.items()} | pages
    tensors |= {"positions": positions, "cos_sin_cache": table}
    scales = {"scale_q": 1.5, "scale_k": 0.7, "scale_v": 0.7}
    slices = fuse(address, [], **parts)
    out = load(
        call(address, "rope_quantize_append", tensors, style=style, kv_layout=layout,
             output_dtype=NAMES[fp8], **scales, **slices)
    )  # fmt: skip
    expected = {}
    for name, x in parts.items():
        x = x.astype(np.float32)
        if name.endswith("_rope"):
            x = turn(x.reshape(n, -1, r), table, positions, style).reshape(x.shape)
        expected[name] = into_fp8(x * np.float32(scales[f"scale_{name[0]}"]), fp8)
    k = [expected["k_rope"], expected["k_nope"]] if p else [expected["k_rope"]]
    rows = k if is_mla else [np.concatenate(k, axis=-1), expected["v"]]
    for name in {"q_rope", "q_nope"} & expected.keys():
        assert_near(out[name], expected[name], rtol=2e-1, atol=1e-2)
        assert_codes(out[name], expected[name])
    is_real = pages["batch_indices"] >= 0
    entries = entries_of(pages, page_size, is_real)
    for name, row in zip(names, rows):
        cells = unpaged(out[name])
        assert_near(cells[entries], row[is_real], rtol=0.25, atol=0.5 if fp8 == E4M3 else 1.0)
        assert_codes(cells[entries], row[is_real])
        assert_kept(cells, caches[name], entries)
