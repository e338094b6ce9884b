"""Calls in this process beside their results: places, memory, errors, threads."""

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import roped
from roped import ops


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 64), np.float32)


def test_the_same_bits_as_the_server(client, x, rng):
    q, positions = rng.standard_normal((4, 2, 64), np.float32), np.array([9, 5, 70000, 0])
    np.testing.assert_array_equal(ops.rmsnorm(x), client.rmsnorm(x))
    remote, own = (owner.rope(q, positions=positions, angles="compute") for owner in (client, ops))
    np.testing.assert_array_equal(remote.q, own.q)


THREADS = """
import os
import numpy as np
from roped import ops
before = len(os.listdir("/proc/self/task"))
ops.rmsnorm(np.ones((4, 8), np.float32))
print(1 + len(os.listdir("/proc/self/task")) - before)
"""


def test_as_many_threads_as_openmp_would_have():
    cores = len(os.sched_getaffinity(0))
    for wanted, n in {"1": 1, "3": 3, "5,2": 5, "0": cores, "many": cores, "": cores}.items():
        environment = os.environ | {"OMP_NUM_THREADS": wanted}
        assert int(subprocess.check_output([sys.executable, "-c", THREADS], env=environment)) == n, wanted


def test_ray_is_not_needed():
    """Neither by roped nor by its operators; roped.ray says what it wants."""
    hidden = "import sys; sys.modules['ray'] = sys.modules['pyarrow'] = None; "
    command = [sys.executable, "-c", hidden + "import roped, roped.ops; import roped.ray"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: roped.ray wants ray: pip install 'roped[ray]'" in done.stderr, done.stderr


def test_places(x):
    want, place = ops.rmsnorm(x), np.empty_like(x)
    assert ops.rmsnorm(x, out=place) is place
    np.testing.assert_array_equal(place, want)
    own = x.copy()
    ops.rmsnorm(own, out=own)
    np.testing.assert_array_equal(own, want)
    refused = [(place[:2], "expected F32 of"), (place.astype(np.float16), "F16"), (place.T, "not contiguous")]
    for wrong, words in refused:
        with pytest.raises(ValueError, match=words):
            ops.rmsnorm(x, out=wrong)
    with pytest.raises(ValueError, match="contiguous"):
        ops.rmsnorm(x, out=np.empty((4, 128), np.float32)[:, ::2])


def test_places_that_overlap_are_refused(rng):
    """Each twice: what is prepared asks again. An output may be in the very place of its input, or beside it in its rows."""
    memory = rng.standard_normal(5 * 64, np.float32)
    x, behind = memory[: 4 * 64].reshape(4, 64), memory[64:].reshape(4, 64)
    before, want = memory.copy(), ops.rmsnorm(x)
    for _ in range(2):
        with pytest.raises(roped.Error, match="output 'y': its memory overlaps that of input 'x', expected a place of") as caught:
            ops.rmsnorm(x, out=behind)
        assert caught.value.code == "invalid"
    with pytest.raises(roped.Error, match="overlaps that of input 'weight'"):
        ops.rmsnorm(want, behind[3], out=behind)
    with pytest.raises(roped.Error, match="output 'residual': its memory overlaps that of output 'y'"):
        ops.add_rmsnorm(want, want, out={"y": behind, "residual": x})
    with pytest.raises(roped.Error, match="its memory overlaps that of input 'gate'"):  # not in the place of gate
        ops.act_and_mul(gate=x, up=want, out=x)
    np.testing.assert_array_equal(memory, before)
    rows = rng.standard_normal((4, 3, 64), np.float32)
    q, k = rows[:, :1], rows[:, 1:2]
    turned = ops.rope(q.copy(), k.copy(), offset=3)
    ops.rope(q, k, offset=3, out={"q": q, "k": k})
    np.testing.assert_array_equal(q, turned.q)
    np.testing.assert_array_equal(k, turned.k)
    with pytest.raises(roped.Error, match="output 'q': its memory overlaps that of input 'k'"):
        ops.rope(q, k, offset=3, out={"q": k, "k": q})
    ops.rmsnorm(x, out=x)
    np.testing.assert_array_equal(x, want)


def test_what_is_read_only_is_not_written(x, tmp_path):
    """What a call wrote there once it would write again, so each is asked twice; a file's would be a SIGSEGV."""
    k = x.reshape(4, 1, 64)
    np.save(tmp_path / "zeros.npy", np.zeros((4, 1, 64), np.float32))
    file = np.load(tmp_path / "zeros.npy", mmap_mode="r")
    own = np.zeros_like(file)
    view = own.view()
    view.flags.writeable = False
    ops.rmsnorm(k, out=own.copy())
    ops.rope_append(k, k, k, own.copy(), own.copy(), np.arange(4))
    for wrong in (file, view, view, np.frombuffer(bytes(own.nbytes), np.float32).reshape(own.shape)):
        with pytest.raises(ValueError, match="output 'y': read-only, and written in place"):
            ops.rmsnorm(k, out=wrong)
        with pytest.raises(ValueError, match="tensor 'v_cache': read-only, and written in place"):
            ops.rope_append(k, k, k, own.copy(), wrong, slots=np.arange(4))
        assert not wrong.any()


def test_results_can_be_pickled(x):
    """As they are on their way to another process."""
    result = ops.add_rmsnorm(x, x)
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    np.testing.assert_array_equal(again.residual, result.residual)


def test_updated_caches_stay_where_they_are(x):
    k = x.reshape(4, 1, 64)
    k_cache, v_cache = np.zeros((8, 1, 64), np.float32), np.zeros((8, 1, 64), np.float32)
    result = ops.rope_append(k, k, k, k_cache, v_cache, np.array([1, 2, 3, 7]))
    assert result.k_cache is k_cache
    np.testing.assert_array_equal(v_cache[[1, 2, 3, 7]], k)
    with pytest.raises(ValueError, match="'k_cache': not contiguous"):
        ops.rope_append(k, k, k, np.zeros((8, 1, 128), np.float32)[..., :64], v_cache, np.arange(4))


def test_what_is_prepared_serves_other_values(x):
    q = x.reshape(4, 1, 64)
    for first in range(5):
        positions = np.arange(first, first + 4)
        np.testing.assert_array_equal(ops.rope(q, positions=positions).q, ops.rope(q, offset=first).q)
    with pytest.raises(roped.Error, match="position -2 at index 3") as caught:
        ops.rope(q, positions=np.array([0, 1, 2, -2]))
    assert caught.value.code == "bad_value"
    for theta in [1e4, 5e5, 1e4]:
        np.testing.assert_array_equal(ops.rope(q, theta=theta).q, ops.rope(q.copy(), theta=theta).q)


def test_errors(x):
    with pytest.raises(roped.Error, match="dim 0 is 3, expected h = 64"):
        ops.rmsnorm(x, x[0, :3].copy())
    with pytest.raises(roped.Error, match="parameter 'theta'"):
        ops.rope(x.reshape(4, 1, 64), theta=-1)
    with pytest.raises(TypeError, match="a tensor has type <U8"):
        ops.rmsnorm(x.astype("U8"))
    with pytest.raises(roped.Error, match="F64"):
        ops.rmsnorm(x.astype(np.float64))


def test_a_form_is_what_a_call_depends_on(x):
    """Calls that look like one that was prepared, and are not."""
    want = ops.rmsnorm(x)
    np.testing.assert_array_equal(ops.rmsnorm(x.T.copy().T), want)
    assert ops.rmsnorm(x.astype(np.float16)).dtype == np.float16
    assert ops.rmsnorm(x[:2].copy()).shape == (2, 64)
    q, k = x[:, None], x[:, None].copy()
    place = np.empty_like(k)
    assert ops.rope(q, k=k).k is not None
    with pytest.raises(ValueError, match="output 'k': not made by this call, expected q"):
        ops.rope(q, out={"k": place})
    with pytest.raises(TypeError, match="parameter 'theta': ndarray, expected a number"):
        ops.rope(q, theta=np.array(5e5))
    np.testing.assert_array_equal(ops.rope(q, offset=3, theta=np.float32(5e5)).q, ops.rope(q, offset=3, theta=5e5).q)


class Foreign:
    """An array that speaks DLPack and the array API, and is nobody's we know."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return type("namespace", (), {"from_dlpack": staticmethod(lambda array: Foreign(np.from_dlpack(array)))})


def test_arrays_of_other_libraries(x):
    y = ops.rmsnorm(Foreign(x))
    assert isinstance(y, Foreign)
    np.testing.assert_array_equal(y.array, ops.rmsnorm(x))


def test_views_are_packed(x):
    np.testing.assert_array_equal(ops.rmsnorm(x[:, ::2]), ops.rmsnorm(x[:, ::2].copy()))


def test_slices_of_rows_are_used_where_they_are(rng):
    rows = rng.standard_normal((4, 128), np.float32)
    wide, before = rows.copy(), rows.copy()
    want = ops.rmsnorm(rows[:, 16:80].copy())
    for _ in range(2):  # prepared, and again
        np.testing.assert_array_equal(ops.rmsnorm(rows[:, 16:80]), want)
        np.testing.assert_array_equal(ops.rmsnorm(rows.reshape(2, 2, 128)[:, :, 16:80]), want.reshape(2, 2, 64))
    view = wide[:, 16:80]
    assert ops.rmsnorm(view, out=view) is view
    before[:, 16:80] = want
    np.testing.assert_array_equal(wide, before)
    place = np.full((4, 70), 7, np.float32)
    ops.rmsnorm(rows[:, 16:80], out=place[:, :64])
    np.testing.assert_array_equal(place[:, :64], want)
    assert (place[:, 64:] == 7).all()
    np.testing.assert_array_equal(ops.rmsnorm(rows[:1, 16:80]), want[:1])
    np.testing.assert_array_equal(ops.rmsnorm(rows[::2, 16:80]), want[::2])


def test_heads_of_a_fused_row_are_rotated_in_place(rng):
    qkv = rng.standard_normal((5, 8 * 64), np.float32)
    positions, want = np.arange(5), qkv.copy()
    q, k = qkv[:, :256].reshape(5, 4, 64), qkv[:, 256:384].reshape(5, 2, 64)
    assert q.base is not None
    packed = ops.rope(q.copy(), k.copy(), positions)
    want[:, :256], want[:, 256:384] = packed.q.reshape(5, 256), packed.k.reshape(5, 128)
    apart = ops.rope(q, k, positions)
    np.testing.assert_array_equal(apart.q, packed.q)
    ops.rope(q, k, positions, out={"q": q, "k": k})
    np.testing.assert_array_equal(qkv, want)


def test_threads(x):
    want, failures = ops.rmsnorm(x), []

    def work():
        for _ in range(200):
            if not np.array_equal(ops.rmsnorm(x), want):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_many_shapes(rng):
    for n in range(1, 1100):
        assert ops.rmsnorm(np.ones((n, 1), np.float32))[n - 1, 0] == pytest.approx(1)


def test_the_module_has_it_without_an_import():
    """As the page says, roped.ops: and a program that only calls servers does not load the kernels."""
    program = """
import sys, roped
assert "roped._in_process" not in sys.modules
assert "ops" in dir(roped)
assert roped.ops is sys.modules["roped.ops"] and roped.ops.rmsnorm
try:
    roped.oops
except AttributeError as error:
    assert str(error) == "module 'roped' has no attribute 'oops'"
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
