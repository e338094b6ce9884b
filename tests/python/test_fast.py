"""Repeated calls, which the extension module makes, beside the same through Python alone."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from test_torch import CALLS, on, parts  # noqa: E402

import roped  # noqa: E402
from roped import _in_process, ops  # noqa: E402

_fast = _in_process._fast
if _fast is None or _in_process.know_torch() and _in_process._launch is None:
    pytest.skip("no extension module, or torch is older than 2.10", allow_module_level=True)


@pytest.fixture
def python_refused(monkeypatch):
    """From here on calls must not need Python."""

    def begin():
        def refuse(op, *_):
            raise AssertionError(f"{op.name} went through Python")

        monkeypatch.setattr(_in_process, "_call", refuse)

    return begin


def bits(result):
    return [part.detach().contiguous().view(torch.uint8).numpy().tobytes() for part in parts(result)]


def outcome(function):
    """What a call comes to: its outputs or its exception."""
    try:
        result = function()
    except Exception as error:
        return type(error), str(error)
    return type(result), bits(result), [part.shape for part in parts(result)], [part.dtype for part in parts(result)]


def by_python(function):
    launch, _in_process._launch = _in_process._launch, None
    try:
        return outcome(function)
    finally:
        _in_process._launch = launch


# ------------------------------------------------------------ what it makes
@pytest.mark.parametrize("name", CALLS)
def test_each_operator(name, python_refused):
    tensors, params = CALLS[name]
    call = getattr(ops, name)
    want = call(**on("cpu", tensors), **params)
    python_refused()
    found = call(**on("cpu", tensors), **params)
    assert type(found) is type(want) and bits(found) == bits(want)
    if isinstance(want, tuple):
        assert found._fields == want._fields and hash(found) == hash(tuple(found))
        assert [part is None for part in found] == [part is None for part in want]


def test_places_and_updated_caches(python_refused):
    def all_of_it(x, k, cache):
        place, turned = torch.empty_like(x), k.clone()
        assert ops.rmsnorm(x, out=place) is place
        result = ops.rope(turned, None, offset=3, out={"q": turned})
        assert result.q is turned and result.k is None
        caches = cache.clone(), cache.clone()
        appended = ops.rope_append(k, k, k, *caches, torch.tensor([3, 1]))
        assert appended.k_cache is caches[0] and appended.v_cache is caches[1]
        return bits((place, turned, *caches))

    x, k, cache = torch.randn(2, 64), torch.randn(2, 1, 64), torch.zeros(8, 1, 64)
    want = all_of_it(x, k, cache)
    python_refused()
    assert all_of_it(x, k, cache) == want
    assert all_of_it(x * 2, k, cache) != want


def test_weights_of_a_model(python_refused):
    """Parameters want gradients, and in inference nobody records them."""
    x, weight = torch.randn(2, 32), torch.nn.Parameter(torch.ones(32))
    with torch.no_grad():
        ops.rmsnorm(x, weight)
        python_refused()
        assert not ops.rmsnorm(x, weight).requires_grad
    with torch.inference_mode():
        assert ops.rmsnorm(x, weight).is_inference()


def test_a_gradient_after_calls_without():
    q = torch.randn(2, 1, 16)
    ops.rope(q, offset=5), ops.rope(q, offset=5)
    q.requires_grad_()
    ops.rope(q, offset=5).q.square().sum().backward()
    torch.testing.assert_close(q.grad, 2 * q.detach())


def test_outputs_are_tensors_as_torch_makes_them():
    x = torch.randn(2, 16)
    y = [ops.rmsnorm(x) for _ in range(2)][1]
    assert type(y) is torch.Tensor and y.is_contiguous() and y._version == 0
    assert y.untyped_storage().resizable() and y.resize_(64, 64).shape == (64, 64)


# ---------------------------------------------------------- odd arguments
class Own(torch.Tensor):
    pass


class OwnDict(dict):
    pass


def odd_calls():
    """Each is near a call that is prepared, and is not that call."""
    x, weight, q, positions = torch.randn(4, 64), torch.randn(64), torch.randn(4, 1, 64), torch.arange(4)
    place = torch.empty(4, 64)
    big = torch.randn(8, 64)
    return {
        "nothing": lambda: ops.rmsnorm(),
        "None": lambda: ops.rmsnorm(None, weight),
        "no weight": lambda: ops.rmsnorm(x, None, eps=1e-5),
        "too many": lambda: ops.rmsnorm(x, weight, x),
        "very many": lambda: ops.rmsnorm(*[x] * 100),
        "twice": lambda: ops.rmsnorm(x, weight, x=x),
        "a number": lambda: ops.rmsnorm(3, weight),
        "text": lambda: ops.rmsnorm("x", weight),
        "a list": lambda: ops.rmsnorm([1.0], weight),
        "numpy beside torch": lambda: ops.rmsnorm(x, np.ones(64, np.float32)),
        "a subclass": lambda: ops.rmsnorm(x.as_subclass(Own), weight),
        "every other row": lambda: ops.rmsnorm(big[::2], weight),
        "a slice of rows": lambda: ops.rmsnorm(torch.arange(512.0).reshape(4, 128)[:, :64], weight),
        "not packed": lambda: ops.rmsnorm(torch.arange(512.0).reshape(4, 128)[:, ::2], weight),
        "not packed, transposed": lambda: ops.rmsnorm(torch.randn(64, 4).fill_(2).T, weight),
        "on meta": lambda: ops.rmsnorm(x.to("meta"), weight.to("meta")).to("cpu"),
        "on two devices": lambda: ops.rmsnorm(x, weight.to("meta")),
        "sparse": lambda: ops.rmsnorm(x.to_sparse(), weight),
        "complex": lambda: ops.rmsnorm(x.to(torch.complex64), weight),
        "quantized": lambda: ops.rmsnorm(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), weight),
        "no rank": lambda: ops.rmsnorm(torch.tensor(1.0), weight),
        "empty": lambda: ops.rmsnorm(x[:0], weight),
        "empty rows": lambda: ops.rmsnorm(x[:, :0]),
        "rank 1": lambda: ops.rmsnorm(x[0], weight),
        "another shape": lambda: ops.rmsnorm(x[:2], weight),
        "another type": lambda: ops.rmsnorm(x.half(), weight.half()),
        "of two types": lambda: ops.rmsnorm(x, weight.half()),
        "a wrong weight": lambda: ops.rmsnorm(x, weight[:3]),
        "unknown": lambda: ops.rmsnorm(x, weight, epsilon=1e-5),
        "eps as a whole number": lambda: ops.rmsnorm(x, weight, eps=1),
        "eps as bool": lambda: ops.rmsnorm(x, weight, eps=True),
        "eps as text": lambda: ops.rmsnorm(x, weight, eps="1e-5"),
        "eps as numpy": lambda: ops.rmsnorm(x, weight, eps=np.float64(1e-5)),
        "eps not a number": lambda: ops.rmsnorm(x, weight, eps=float("nan")),
        "eps as a tensor": lambda: ops.rmsnorm(x, weight, eps=torch.tensor(1e-5)),
        "eps huge": lambda: ops.rmsnorm(x, weight, eps=10**400),
        "eps a list of itself": lambda: ops.rmsnorm(x, weight, eps=[[]]),
        "eps without end": lambda: ops.rmsnorm(x, weight, eps="1" * 5000),
        "text that is not unicode": lambda: ops.rmsnorm(x, weight, rounding="\udc80"),
        "the order of names": lambda: ops.rmsnorm(weight=weight, eps=1e-5, x=x),
        "the other order": lambda: ops.rmsnorm(x=x, eps=1e-5, weight=weight),
        "a section": lambda: ops.rope(q, positions=positions, rotary_dim=32, mrope_section=[8, 8]),
        "an empty out": lambda: ops.rmsnorm(x, weight, out={}),
        "a place": lambda: ops.rmsnorm(x, weight, out=place),
        "a place by name": lambda: ops.rmsnorm(x, weight, out={"y": place}),
        "a place by a wrong name": lambda: ops.rmsnorm(x, weight, out={"z": place}),
        "a place by a number": lambda: ops.rmsnorm(x, weight, out={1: place}),
        "a place that is None": lambda: ops.rmsnorm(x, weight, out={"y": None}),
        "a place in a list": lambda: ops.rmsnorm(x, weight, out=[place]),
        "a place in a dict of another kind": lambda: ops.rmsnorm(x, weight, out=OwnDict(y=place)),
        "a place of numpy": lambda: ops.rmsnorm(x, weight, out=place.numpy()),
        "a place of another type": lambda: ops.rmsnorm(x, weight, out=place.half()),
        "a place that is not packed": lambda: ops.rmsnorm(x, weight, out=torch.empty(4, 128)[:, :64]),
        "a place on meta": lambda: ops.rmsnorm(x, weight, out=place.to("meta")),
        "a place of several": lambda: ops.rope(q, positions=positions, out=place),
        "bad positions": lambda: ops.rope(q, positions=positions - 2),
        "positions of float": lambda: ops.rope(q, positions=positions.float()),
    }  # fmt: skip


ODD = odd_calls()


@pytest.fixture(scope="module")
def prepared():
    x, weight, q, positions = torch.randn(4, 64), torch.randn(64), torch.randn(4, 1, 64), torch.arange(4)
    for named in [{}, {"eps": 1e-5}, {"out": torch.empty(4, 64)}, {"out": {"y": torch.empty(4, 64)}}]:
        ops.rmsnorm(x, weight, **named)
        ops.rmsnorm(x=x, weight=weight, **named)
    ops.rope(q, positions=positions)


@pytest.mark.parametrize("name", ODD)
def test_odd_calls(prepared, name):
    """As Python alone would have it: twice, because the second may be prepared."""
    want = by_python(ODD[name])
    assert outcome(ODD[name]) == want and outcome(ODD[name]) == want


def test_what_is_prepared_is_checked():
    q, positions = torch.randn(4, 1, 64), torch.arange(4)
    for _ in range(2):
        with pytest.raises(roped.Error, match="position -2 at index 0") as caught:
            ops.rope(q, positions=positions - 2)
        assert caught.value.code == "bad_value"
        ops.rope(q, positions=positions)


def test_slices_of_a_fused_row():
    """Of one shape and several strides: each is a form of its own, and launched without Python."""
    positions = torch.arange(5)
    for width in (512, 576, 520):
        qkv = torch.randn(5, width)
        q, k = qkv[:, :256].view(5, 4, 64), qkv[:, 256:384].view(5, 2, 64)
        want = ops.rope(q.clone(), k.clone(), positions)
        for _ in range(3):
            assert bits(ops.rope(q, k, positions)) == bits(want)
            assert _fast.key((q, k, positions), None, {}) in _in_process._forms["rope"]
        rotated = qkv.clone()
        rotated[:, :256], rotated[:, 256:384] = want.q.view(5, 256), want.k.view(5, 128)
        for _ in range(2):
            own = qkv.clone()
            q, k = own[:, :256].view(5, 4, 64), own[:, 256:384].view(5, 2, 64)
            ops.rope(q, k, positions, out={"q": q, "k": k})
            assert torch.equal(own, rotated)


def test_the_functions_themselves():
    """They are private; and yet what is wrong is an exception."""
    x = torch.randn(4, 64)
    assert _fast.launch({}, (x,), None, {}) is NotImplemented
    key = _fast.key((x,), None, {})
    assert key == _fast.key((x + 1,), None, {}) != _fast.key((x[:2],), None, {})
    assert _fast.launch({key: 5}, (x,), None, {}) is NotImplemented
    for wrong in [(), ({},), ([], (x,), None, {}), ({}, [x], None, {}), ({}, (x,), None, None)]:
        with pytest.raises(TypeError):
            _fast.launch(*wrong)
    for wrong in [(), (1, 2, 3), ([x], None, {})]:
        with pytest.raises(TypeError):
            _fast.key(*wrong)
    with pytest.raises((TypeError, ValueError)):
        _fast.know_torch()
    with pytest.raises(TypeError):
        _fast.Form()
    with pytest.raises(AttributeError):
        _fast.Form(object(), 1, [], [], [], None)
    work = next(iter(_in_process.sessions["cpu", 0, 0].calls.values())).work
    for given, made, returned in [
        ([(99, 0)], [], [0]), ([(0, 7)], [], [0]), ([(-1, 0)], [], [0]), ([0], [], [0]), ([("a", 0)], [], [0]),
        ([(0, 0)] * 99, [], [0]), ([], [(99, print, ())], [0]), ([], [(0, print, [])], [0]),
        ([], [(0, print, ())] * 99, [0]), ([], [], [5]), ([], [], [-2]), ([], [], ["a"]), ([], [], []),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError, SystemError)):
            _fast.Form(work, 1, given, made, returned, None)
    with pytest.raises(ValueError, match="another call"):
        _fast.launch({key: _fast.Form(work, 3, [], [], [0], None)}, (x,), None, {})


# -------------------------------------------------------- memory, threads
def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_call_leaks():
    x, weight, q = torch.randn(2, 64), torch.randn(64), torch.randn(2, 1, 64)
    good, bad, eps = torch.arange(2), torch.tensor([0, -1]), 1e-5

    def calls(n):
        for _ in range(n):
            ops.rmsnorm(x, weight, eps=eps)
            ops.rope(q, positions=good, out={"q": q})
            _in_process._launch({}, (x, 3), None, {"a": "b"})  # odd
            try:
                ops.rope(q, positions=bad)
            except roped.Error:
                pass

    def references():
        return [len(gc.get_referrers(tensor)) for tensor in (x, weight, q, good)]

    calls(2000)
    gc.collect()
    before, counts = resident_bytes(), references()
    calls(100_000)
    gc.collect()
    assert resident_bytes() - before < 1 << 20  # 10 bytes a call
    assert references() == counts


def test_places_that_overlap_are_refused(python_refused):
    memory = torch.randn(5 * 64)
    x, behind, apart = memory[: 4 * 64].view(4, 64), memory[64:].view(4, 64), torch.empty(4, 64)
    for _ in range(2):
        ops.rmsnorm(x, out=apart)
    python_refused()
    with pytest.raises(roped.Error, match="output 'y': its memory overlaps that of input 'x', expected a place of its own"):
        ops.rmsnorm(x, out=behind)
    ops.rmsnorm(x, out=x)
    assert torch.equal(x, apart)


def test_threads_that_make_forms_go():
    """More forms than are kept, by several threads: no work is freed under a call of it."""

    def work(first):
        for n in range(first, first + 1200):
            x = torch.full((1, n % 1100 + 1), 3.0)
            for _ in range(2):
                assert torch.allclose(ops.rmsnorm(x), torch.ones(()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 1200, 300)))
