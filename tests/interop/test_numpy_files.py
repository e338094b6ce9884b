"""ropectl and numpy read each other's .npy and .npz files; what numpy can write and roped cannot take is refused."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROPECTL = Path(os.environ["ROPED_INTEROP_BUILD"]) / "bin" / "ropectl"


def ropectl(folder, address, *arguments):
    return subprocess.run(
        [ROPECTL, "--server", f"http://{address}", *arguments], cwd=folder, text=True, capture_output=True, check=False
    )


def rmsnorm(x, weight):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_npz_there_and_back(save, kind, tmp_path, address, rng):
    x, weight = rng.standard_normal((64, 128)).astype(kind), np.ones(128, kind)
    x[32:] = 0.5  # so that there is something to deflate
    save(tmp_path / "in.npz", x=x, weight=weight)
    done = ropectl(tmp_path, address, "run", "rmsnorm", "in.npz", "-o", "out.npz", "-o", "y=y.npy")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz", allow_pickle=False) as out:
        assert out.files == ["y"]
        y = out["y"]
    assert y.dtype == kind
    assert np.array_equal(y, np.load(tmp_path / "y.npy"))
    assert np.allclose(y, rmsnorm(x, weight), rtol=1e-3 if kind == np.float16 else 1e-5, atol=1e-6)


def test_bits_of_bf16(tmp_path, address):
    np.savez(tmp_path / "in.npz", x=np.array([[3, 4]], np.float32))
    done = ropectl(tmp_path, address, "run", "rmsnorm_quantize", "in.npz", "-o", "out.npz")
    assert done.returncode == 1
    assert "tensor 'y' is F8_E4M3, and numpy has no such type" in done.stderr
    done = ropectl(tmp_path, address, "run", "rmsnorm_quantize", "in.npz", "--fp8", "u8", "-o", "out.npz")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npz")["y"].dtype == np.uint8


@pytest.mark.parametrize(
    "array, reason",
    [
        (np.asfortranarray(np.ones((2, 4), np.float32)), "Fortran order, expected C order"),
        (np.ones((2, 4), ">f4"), "'>f4' is big-endian, expected little-endian"),
        (np.array([[1, "a"]], object), "'|O' (Python objects), expected a number"),
        (np.ones((2, 4), np.complex64), "'<c8', expected a number"),
        (np.ones((2, 4), [("a", "<f4")]), "header is \"{'descr': [('a', '<f4')]"),
        (np.array([["ab"]]), "'<U2', expected a number"),
    ],
)
def test_what_is_no_tensor_is_refused(array, reason, tmp_path, address):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=array)
    for name, where in [("x.npy", "'x.npy': .npy: "), ("x.npz", "'x.npz': .npz: entry 'x.npy': .npy: ")]:
        done = ropectl(tmp_path, address, "run", "rmsnorm", name)
        assert done.returncode == 1
        assert where in done.stderr and reason in done.stderr
