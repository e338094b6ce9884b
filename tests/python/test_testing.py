"""roped.testing: right results of every operator match, and wrong ones are named."""

import numpy as np
import pytest

import roped
from roped import ops
from roped.testing import assert_matches


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 64), np.float32)


def test_what_operators_make_matches(client, x):
    q, k = x.reshape(4, 1, 64), x.reshape(2, 2, 64)[:, :1].repeat(2, axis=0)
    positions = np.array([5, 0, 700, 2])
    assert_matches(ops.rmsnorm(x, eps=1e-5), "rmsnorm", x, eps=1e-5)
    assert_matches(client.rmsnorm(x, eps=1e-5), "rmsnorm", x, eps=1e-5, client=client)
    assert_matches(ops.rope(q, k, positions=positions), "rope", q, k, positions=positions)
    assert_matches({"k": ops.rope(q, k).k}, "rope", q, k)
    assert_matches(ops.rmsnorm(x.astype(np.float16)), "rmsnorm", x.astype(np.float16))
    assert_matches(ops.rmsnorm_quantize(x), "rmsnorm_quantize", x)
    assert_matches(ops.binary_backward(x, x, x[0], function="mul"), "binary_backward", x, x, x[0], function="mul")
    k_cache, v_cache = np.zeros((8, 1, 64), np.float32), np.zeros((8, 1, 64), np.float32)
    caches, slots = (k_cache.copy(), v_cache.copy()), np.array([1, 2, 3, 7])
    made = ops.rope_append(q, k, k, *caches, slots)
    assert_matches(made, "rope_append", q, k, k, k_cache, v_cache, slots)
    assert not k_cache.any()
    assert_matches(np.empty((0, 64), np.float32), "rmsnorm", x[:0])


def test_bf16_is_within_two_units(x):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = x.astype(ml_dtypes.bfloat16)
    y = ops.rmsnorm(x)
    for units in range(-4, 5):
        moved = y.copy()
        moved.view(np.int16)[2, 9] += units
        if abs(units) <= 2:
            assert_matches(moved, "rmsnorm", x)
        else:
            with pytest.raises(AssertionError, match=r"rmsnorm: y: 1 of 256 elements are off; at \[2, 9\]"):
                assert_matches(moved, "rmsnorm", x)


def test_what_is_wrong_is_named(x):
    y = ops.rmsnorm(x)
    far, nan = y.copy(), y.copy()
    far[1, 3] += 1e-4
    far[3, 3] += 1e-2
    nan[0, 0] = np.nan
    wrong = [
        (far, r"rmsnorm: y: 2 of 256 elements are off; at \[3, 3\] .*, expected .* within .*e-06"),
        (nan, r"1 of 256 elements are off; at \[0, 0\] nan, expected"),
        (y[:2], r"shape \[2, 64\], expected \[4, 64\]"),
        (y.astype(np.float16), "type F16, expected F32"),
    ]
    for actual, words in wrong:
        with pytest.raises(AssertionError, match=words):
            assert_matches(actual, "rmsnorm", x)
    q = x.reshape(4, 1, 64)
    with pytest.raises(AssertionError, match="rope: q: .* elements are off"):
        assert_matches(ops.rope(q, style="gptj"), "rope", q)
    with pytest.raises(AssertionError, match="rope makes no k of these inputs"):
        assert_matches((q, q), "rope", q)
    with pytest.raises(ValueError, match="has no output 'z', expected one of y"):
        assert_matches({"z": y}, "rmsnorm", x)
    with pytest.raises(ValueError, match="nothing to compare: expected one of y"):
        assert_matches({}, "rmsnorm", x)
    with pytest.raises(ValueError, match="no operator 'rms_norm'"):
        assert_matches(y, "rms_norm", x)
    with pytest.raises(roped.Error, match="eps"):
        assert_matches(y, "rmsnorm", x, eps=-1)
    y, *rest = ops.rmsnorm_quantize(x)
    moved = y.copy()
    moved.view(np.uint8)[:, ::8] ^= 1
    with pytest.raises(AssertionError, match="codes are the next one, expected at most 1"):
        assert_matches((moved, *rest), "rmsnorm_quantize", x)


def test_torch_tensors_of_a_training_step(x):
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x).to(torch.bfloat16).requires_grad_()
    assert_matches(ops.rmsnorm(t.detach()), "rmsnorm", t)


def test_notebooks_see_phases(client, x):
    client.rmsnorm(x)
    page = client.timing._repr_html_()
    assert page.startswith("<table><tr><th>wall</th><td>") and "kernel" in page
    assert repr(client).startswith("<Client of http") and "token" not in repr(client)
