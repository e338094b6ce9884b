"""roped.compat beside the same in torch's own operators."""

import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from roped import ops  # noqa: E402
from roped.compat import flashinfer, vllm  # noqa: E402

N, HEAD = 5, 16
POSITIONS = torch.tensor([7, 0, 3, 30, 12])


@pytest.fixture
def qk():
    torch.manual_seed(1)
    return torch.randn(N, 4, HEAD), torch.randn(N, 2, HEAD)


def cache(rotary_dim, theta=1e4, rows=32, scale=1.0):
    frequency = theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim) / scale
    angle = torch.arange(rows).double()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1).float()


def rotated(x, table, positions, is_neox):
    cos, sin = table[positions].chunk(2, dim=-1)
    width = table.shape[1]
    part = x[..., :width]
    if is_neox:
        a, b = part.chunk(2, dim=-1)
    else:
        a, b = part[..., ::2], part[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    pairs = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.cat(pairs, -1) if is_neox else torch.stack(pairs, -1).flatten(-2)
    return torch.cat([turned, x[..., width:]], -1)


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("function", ["flashinfer", "flashinfer_inplace", "vllm"])
def test_rope_with_a_cache(qk, is_neox, function):
    table = cache(8)
    want = [rotated(x, table, POSITIONS, is_neox) for x in qk]
    q, k = (x.reshape(N, -1).clone() for x in qk)
    if function == "flashinfer":
        q, k = flashinfer.apply_rope_with_cos_sin_cache(POSITIONS, q, k, HEAD, table, is_neox, "cuda")
    elif function == "vllm":
        vllm.rotary_embedding(POSITIONS, q, k, HEAD, table, is_neox)
    else:
        flashinfer.apply_rope_with_cos_sin_cache_inplace(POSITIONS, q, k, HEAD, table, is_neox, backend="cuda")
    torch.testing.assert_close([q, k], [x.reshape(N, -1) for x in want])


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_rope_by_position(qk, interleave, scale):
    table = cache(HEAD, 5e5, scale=scale)
    want = [rotated(x, table, POSITIONS, not interleave) for x in qk]
    named = {"interleave": interleave, "rope_scale": scale, "rope_theta": 5e5}
    torch.testing.assert_close(list(flashinfer.apply_rope_pos_ids(*qk, POSITIONS, **named)), want)
    indptr, offsets = torch.tensor([0, 2, 5]), torch.tensor([9, 1])
    ragged = torch.tensor([9, 10, 1, 2, 3])
    want = [rotated(x, table, ragged, not interleave) for x in qk]
    torch.testing.assert_close(list(flashinfer.apply_rope(*qk, indptr, offsets, **named)), want)
    own = [x.clone() for x in qk]
    flashinfer.apply_rope_inplace(*own, indptr, offsets, **named)
    torch.testing.assert_close(own, want)
    own = [x.clone() for x in qk]
    flashinfer.apply_rope_pos_ids_inplace(*own, ragged, **named)
    torch.testing.assert_close(own, want)


def test_llama31(qk):
    params = {"scaling": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    want = ops.rope(*qk, POSITIONS, theta=5e5, original_max_position=8192, **params)
    torch.testing.assert_close(flashinfer.apply_llama31_rope_pos_ids(*qk, POSITIONS), (want.q, want.k))
    assert not torch.equal(want.q, ops.rope(*qk, POSITIONS, theta=5e5).q)
    own, indptr, offsets = [x.clone() for x in qk], torch.tensor([0, N]), torch.tensor([3])
    flashinfer.apply_llama31_rope_inplace(*own, indptr, offsets)
    torch.testing.assert_close(tuple(own), flashinfer.apply_llama31_rope(*qk, indptr, offsets))
    flashinfer.apply_llama31_rope_pos_ids_inplace(*qk, POSITIONS)
    torch.testing.assert_close(qk, (want.q, want.k))


def test_vllm_batches_and_query_alone(qk):
    table, q = cache(HEAD), qk[0]
    want = rotated(q, table, POSITIONS, True)
    own = q.clone()[None]
    vllm.rotary_embedding(POSITIONS[None], own, None, HEAD, table, True)
    torch.testing.assert_close(own[0], want)
    with pytest.raises(ValueError, match="'q': not contiguous"):
        vllm.rotary_embedding(POSITIONS, q.transpose(0, 1).contiguous().transpose(0, 1), None, HEAD, table, True)


def test_vllm_rotates_slices_of_a_fused_row(qk):
    table, (q, k) = cache(HEAD), qk
    n, q_width, k_width = q.shape[0], q[0].numel(), k[0].numel()
    qkv = torch.cat([q.reshape(n, -1), k.reshape(n, -1), torch.ones(n, k_width)], -1)
    rows = qkv.split([q_width, k_width, k_width], -1)
    vllm.rotary_embedding(POSITIONS, rows[0], rows[1], HEAD, table, True)
    vllm.rotary_embedding(POSITIONS, q, k, HEAD, table, True)
    torch.testing.assert_close(rows[0], q.reshape(n, -1), rtol=0, atol=0)
    torch.testing.assert_close(rows[1], k.reshape(n, -1), rtol=0, atol=0)
    assert bool((rows[2] == 1).all())


def norm(x, weight, eps, bias=0.0):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (weight + bias)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_norms(bias):
    x, residual, weight = torch.randn(3, 32), torch.randn(3, 32), torch.randn(32)
    plain, fused = (
        (flashinfer.gemma_rmsnorm, flashinfer.gemma_fused_add_rmsnorm) if bias else
        (flashinfer.rmsnorm, flashinfer.fused_add_rmsnorm)
    )  # fmt: skip
    torch.testing.assert_close(plain(x, weight, 1e-5), norm(x, weight, 1e-5, bias))
    place = torch.empty_like(x)
    assert plain(x, weight, 1e-5, out=place) is place
    own = x.clone(), residual.clone()
    fused(*own, weight, 1e-5)
    torch.testing.assert_close(own, (norm(x + residual, weight, 1e-5, bias), x + residual))


def test_vllm_norms():
    x, residual, weight = torch.randn(3, 32), torch.randn(3, 32), torch.randn(32)
    out = torch.empty_like(x)
    vllm.rms_norm(out, x, weight, 1e-5)
    torch.testing.assert_close(out, norm(x, weight, 1e-5))
    own = x.clone(), residual.clone()
    vllm.fused_add_rms_norm(*own, weight, 1e-5)
    torch.testing.assert_close(own, (norm(x + residual, weight, 1e-5), x + residual))


def vllm_norm(z, weight, eps):
    """As vLLM's CUDA kernels round."""
    scale = torch.rsqrt(z.float().square().mean(-1, keepdim=True) + eps)
    return (z.float() * scale).to(weight.dtype) * weight


def assert_same_bits(found, expected):
    """But for ties that the order of a float32 sum decides."""
    assert found.dtype == expected.dtype
    assert int((found != expected).sum()) <= max(1, 40e-6 * found.numel())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_vllm_norms_have_the_bits_of_its_kernels(dtype):
    torch.manual_seed(5)
    x, residual, weight = (torch.randn(*shape).to(dtype) for shape in ((64, 1024), (64, 1024), (1024,)))
    out = torch.empty_like(x)
    vllm.rms_norm(out, x, weight, 1e-5)
    assert_same_bits(out, vllm_norm(x, weight, 1e-5))
    own = x.clone(), residual.clone()
    vllm.fused_add_rms_norm(*own, weight, 1e-5)
    assert torch.equal(own[1], x + residual)
    assert_same_bits(own[0], vllm_norm(x + residual, weight, 1e-5))
    once = x.clone(), residual.clone()
    vllm.fused_add_rms_norm(*once, weight, 1e-5, rounding="once", sum_rounding="once")
    want = norm(x.float() + residual.float(), weight.float(), 1e-5).to(dtype)
    assert_same_bits(once[0], want)
    assert not torch.equal(once[0], own[0])
