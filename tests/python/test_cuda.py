"""torch tensors on a GPU: their device, their stream, graphs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

from conftest import to_numpy  # noqa: E402
from test_torch import CALLS  # noqa: E402

import roped  # noqa: E402
from roped import ops  # noqa: E402


def parts(result):
    return [part for part in (result if isinstance(result, tuple) else (result,)) if part is not None]


@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name):
    tensors, params = CALLS[name]
    own = {key: tensor.clone() for key, tensor in tensors.items()}
    there = {key: tensor.cuda() for key, tensor in tensors.items()}
    here = parts(getattr(ops, name)(**own, **params))
    for one, other in zip(parts(getattr(ops, name)(**there, **params)), here, strict=True):
        assert one.is_cuda and one.dtype == other.dtype
        np.testing.assert_allclose(
            to_numpy(one.cpu()).astype(float), to_numpy(other).astype(float), rtol=1e-4, atol=1e-5
        )


def test_a_graph_follows_its_tensors():
    q, k = (torch.randn(4, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 2))
    positions, stream, graph = torch.arange(4, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        ops.rope(q, k, positions, theta=5e5)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out = ops.rope(q, k, positions, theta=5e5)
    for first in (0, 100, 4000):
        q.normal_()
        positions.copy_(torch.arange(first, first + 4))
        graph.replay()
        torch.cuda.synchronize()
        want = ops.rope(q, k, positions, theta=5e5)
        assert torch.equal(out.q, want.q) and torch.equal(out.k, want.k)


def test_a_capture_without_a_call_before():
    x, stream = torch.randn(3, 96, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with pytest.raises(roped.Error, match="once on this stream before"):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            ops.rmsnorm(x)
    torch.cuda.synchronize()
    assert ops.rmsnorm(x).shape == x.shape


def test_streams():
    x, streams = torch.randn(64, 4096, device="cuda"), [torch.cuda.Stream() for _ in range(3)]
    want = ops.rmsnorm(x)
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            y = ops.rmsnorm(x)
        stream.synchronize()
        assert torch.equal(y, want)


def test_values_that_frequencies_follow_are_read():
    q, positions = torch.randn(2, 1, 64, device="cuda"), torch.tensor([3, 900], device="cuda")
    params = {"scaling": "dynamic", "factor": 2.0, "max_position": 64}
    there, here = ops.rope(q, None, positions, **params).q, ops.rope(q.cpu(), None, positions.cpu(), **params).q
    np.testing.assert_allclose(there.cpu(), here, rtol=1e-4, atol=1e-4)


def test_compile_with_graphs():
    weight = torch.ones(256, device="cuda")
    compiled = torch.compile(lambda x: ops.rmsnorm(x * 2, weight) + 1, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(8, 256, device="cuda")
        torch.testing.assert_close(compiled(x), ops.rmsnorm(x * 2, weight) + 1)


def test_devices_do_not_mix():
    with pytest.raises(ValueError, match="different devices"):
        ops.rmsnorm(torch.randn(2, 8, device="cuda"), torch.ones(8))
