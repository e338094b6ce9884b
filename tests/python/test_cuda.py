"""torch tensors on a GPU: their device, their stream, graphs, the compiler, a model."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

from conftest import to_numpy  # noqa: E402
from test_torch import CALLS, compiled_beside_eager, on, opcheck, parts, tokens_of_a_model  # noqa: E402

import roped  # noqa: E402
from roped import _in_process, ops  # noqa: E402
from roped._operators import OPERATORS  # noqa: E402
from roped._tensors import dtype_name  # noqa: E402

needs_compiler = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")),
                                    reason="no C compiler, which Triton wants")  # fmt: skip


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


def numbers(tensor):
    return to_numpy(tensor.cpu()).astype(float)


CODES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def of_type(name, dtype):
    """The operator's call with values of a type, where its tensors may have that, and codes of theirs."""
    tensors, params = CALLS[name]
    may_be = {tensor["name"]: tensor["dtypes"] for tensor in OPERATORS[name]["inputs"]}

    def as_wanted(tensor, dtypes):
        if tensor.dtype == torch.uint8:
            return tensor.view(CODES[params.get("input_dtype", params.get("output_dtype", "e4m3"))])
        return tensor.to(dtype) if tensor.dtype == torch.float32 and dtype_name(dtype) in dtypes else tensor

    return {key: as_wanted(tensor, may_be[key]) for key, tensor in tensors.items()}, params


STEPS = {  # rtol and atol: one step of the type, which a sum in another order may take
    torch.float32: (1e-4, 1e-5), torch.float16: (2e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5),
    torch.float8_e4m3fn: (0.13, 2e-3), torch.float8_e5m2: (0.26, 2e-5),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name, dtype):
    tensors, params = of_type(name, dtype)
    here = parts(getattr(ops, name)(**on("cpu", tensors), **params))
    there = parts(getattr(ops, name)(**on("cuda", tensors), **params))
    for one, other in zip(there, here, strict=True):
        assert one.is_cuda and one.dtype == other.dtype and one.shape == other.shape
        rtol, atol = STEPS.get(one.dtype, (0, 0))
        np.testing.assert_allclose(numbers(one), numbers(other), rtol=rtol, atol=atol)


@pytest.mark.skipif(_in_process.know_torch() and not _in_process._launch, reason="no extension module, or an old torch")
@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_needs_no_python(name, monkeypatch):
    """On the stream of the first call; on another one it is another call."""
    tensors, params = CALLS[name]

    def made():
        found = parts(getattr(ops, name)(**on("cuda", tensors), **params))
        return [part.contiguous().view(torch.uint8).cpu().numpy().tobytes() for part in found]

    def refuse(*_):
        raise AssertionError("through Python")

    want = made()
    monkeypatch.setattr(_in_process, "_call", refuse)
    assert made() == want
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(AssertionError, match="through Python"):
        made()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [512, 576])
def test_slices_of_a_fused_row(width, dtype):
    """The bits of packed heads."""
    positions, weight = torch.arange(7, device="cuda"), torch.ones(64, dtype=dtype, device="cuda")
    qkv = torch.randn(7, width, device="cuda").to(dtype)
    q, k = qkv[:, :256].view(7, 4, 64), qkv[:, 256:384].view(7, 2, 64)
    want = ops.rope(q.clone(), k.clone(), positions)
    for one, other in zip(ops.rope(q, k, positions), want, strict=True):
        assert torch.equal(one, other)
    normal = ops.rmsnorm(qkv[:, 64:128].clone(), weight)
    assert torch.equal(ops.rmsnorm(qkv[:, 64:128], weight), normal)
    rotated = qkv.clone()
    rotated[:, :256], rotated[:, 256:384] = want.q.view(7, 256), want.k.view(7, 128)
    ops.rope(q, k, positions, out={"q": q, "k": k})
    assert torch.equal(qkv, rotated)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    opcheck(name, "cuda")


@pytest.mark.parametrize("name", CALLS)
def test_compile(name):
    compiled_beside_eager(name, "cuda", "aot_eager")


# ------------------------------------------------------- streams and graphs
def test_a_call_is_part_of_its_stream():
    """On a stream that is busy, a call neither waits nor overtakes."""
    x, stream = torch.zeros(64, 4096, device="cuda"), torch.cuda.Stream()
    full = torch.full_like(x, 3)
    with torch.cuda.stream(stream):
        ops.rmsnorm(x)  # prepares, which waits
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # half a second
        x.copy_(full)
        y = ops.rmsnorm(x)
        is_done = stream.query()
    stream.synchronize()
    assert not is_done, "the call waited for the stream"
    torch.testing.assert_close(y, torch.ones_like(y))


def test_streams():
    x, streams = torch.randn(64, 4096, device="cuda"), [torch.cuda.Stream() for _ in range(3)]
    want = ops.rmsnorm(x)
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            y = ops.rmsnorm(x)
        stream.synchronize()
        assert torch.equal(y, want)


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_of_each_operator(name):
    """Replays on what the tensors hold then: here halved, after a capture."""
    tensors, params = CALLS[name]
    call, own, stream = getattr(ops, name), on("cuda", tensors), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call(**own, **params)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = parts(call(**own, **params))
    floats = [tensor for tensor in own.values() if tensor.dtype == torch.float32]
    for tensor in floats:
        tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    found = [part.clone() for part in captured]
    for one, other in zip(found, parts(call(**own, **params)), strict=True):
        assert torch.equal(one.view(torch.uint8), other.contiguous().view(torch.uint8))


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


def test_values_that_frequencies_follow_are_read():
    q, positions = torch.randn(2, 1, 64, device="cuda"), torch.tensor([3, 900], device="cuda")
    params = {"scaling": "dynamic", "factor": 2.0, "max_position": 64}
    there, here = ops.rope(q, None, positions, **params).q, ops.rope(q.cpu(), None, positions.cpu(), **params).q
    np.testing.assert_allclose(there.cpu(), here, rtol=1e-4, atol=1e-4)


# ------------------------------------------------- the compiler, gradients
@needs_compiler
def test_compile_with_graphs():
    weight = torch.ones(256, device="cuda")
    compiled = torch.compile(lambda x: ops.rmsnorm(x * 2, weight) + 1, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(8, 256, device="cuda")
        torch.testing.assert_close(compiled(x), ops.rmsnorm(x * 2, weight) + 1)


@needs_compiler
@pytest.mark.parametrize("name", ["rope", "add_rmsnorm", "rope_append"])
def test_compile_by_inductor(name):
    compiled_beside_eager(name, "cuda", "inductor")


def test_gradient():
    q, positions = torch.randn(3, 2, 64, device="cuda", requires_grad=True), torch.arange(3, device="cuda") + 5
    ops.rope(q, None, positions).q.square().sum().backward()
    torch.testing.assert_close(q.grad, 2 * q.detach())  # a rotation keeps lengths


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_model(is_compiled, monkeypatch):
    want, tokens, n_calls = tokens_of_a_model("cuda", is_compiled, monkeypatch)
    assert torch.equal(tokens, want) and all(n_calls.values())


# ----------------------------------------------------------------- devices
def test_devices_do_not_mix():
    with pytest.raises(ValueError, match="different devices"):
        ops.rmsnorm(torch.randn(2, 8, device="cuda"), torch.ones(8))
    with pytest.raises(ValueError, match="of the inputs' device"):
        ops.rmsnorm(torch.randn(2, 8, device="cuda"), out=torch.empty(2, 8))


needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU, two are needed")


@needs_two
@pytest.mark.parametrize("name", CALLS)
def test_another_device_than_the_current_one(name):
    """The same bits as on the current device; when it is prepared, and when it is current itself, too."""
    tensors, params = CALLS[name]

    def made(device):
        found = parts(getattr(ops, name)(**on(device, tensors), **params))
        assert all(part.device == torch.device(device) for part in found)
        return [part.contiguous().view(torch.uint8).cpu().numpy().tobytes() for part in found]

    want = made("cuda:0")
    for current in [0, 0, 1, 1, 0]:
        with torch.cuda.device(current):
            assert made("cuda:1") == made("cuda:0") == want
            assert torch.cuda.current_device() == current


@needs_two
def test_two_devices_in_turns_from_two_threads():
    """Each thread has a device of its own as the current one, and calls on both."""
    given = [torch.randn(64, 4096, device=f"cuda:{i}") for i in range(2)]
    wants = [ops.rmsnorm(x) for x in given]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)

    def work(current):
        torch.cuda.set_device(current)
        for i in range(400):
            device = (current + i // 2) % 2
            y = ops.rmsnorm(given[device])
            assert torch.cuda.current_device() == current and torch.equal(y, wants[device])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


class Foreign:
    """An array on a GPU that speaks DLPack and the array API, and is nobody's we know."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self):
        return type("namespace", (), {"from_dlpack": staticmethod(lambda tensor: Foreign(torch.from_dlpack(tensor)))})


def test_arrays_of_other_libraries():
    x = torch.randn(3, 64, device="cuda")
    y = ops.rmsnorm(Foreign(x))
    assert isinstance(y, Foreign) and torch.equal(y.tensor, ops.rmsnorm(x))
