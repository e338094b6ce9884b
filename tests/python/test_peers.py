"""What torch.compile is given beside each row of bench_ops computes what roped does: at small sizes, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from roped import ops  # noqa: E402

BENCH = Path(os.environ["ROPED_TEST_BIN"]).with_name("bench_ops")
if not BENCH.exists():
    pytest.skip("bench_ops is not built", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import libraries  # noqa: E402
import peers  # noqa: E402

SIZES = {"rows": 5, "h": 384, "n": 3, "hq": 4, "hk": 2, "d": 32, "group_size": 128}
# Whose rows have no peer: they write caches, or have FP8 of two parts
WITHOUT = {"rope_append", "qk_rmsnorm_rope_append", "rope_quantize", "rope_quantize_append"}


def small(line):
    """The same call of few rows; the sizes of gradients' sums stay unlike each other."""
    if line["op"] == "binary_backward":
        words = (word.split("=") for word in line["sizes"].split())
        sizes = {name: [min(int(size), 3 + i) for i, size in enumerate(text.split(","))] for name, text in words}
        return line | {"sizes": " ".join(f"{name}={','.join(map(str, size))}" for name, size in sizes.items())}
    sizes = SIZES | ({"h": 2048} if "group_size=1024" in line["params"] else {})
    words = (word.split("=")[0] for word in line["sizes"].split())
    return line | {"sizes": " ".join(f"{name}={sizes.get(name, 2)}" for name in words)}


def lines():
    """Each form of the table, and of what a sweep draws."""
    found = {}
    for flags in ([], ["--sweep", "--seed", "1"], ["--sweep", "--seed", "2"]):
        run = subprocess.run([BENCH, "--list", "--json", "/dev/stderr", *flags], check=True, capture_output=True, text=True)
        for line in map(json.loads, run.stderr.splitlines()):
            line = small(line)
            found.setdefault(tuple(line[key] for key in ("op", "dtype", "sizes", "inputs", "params")), line)
    return list(found.values())


LINES = lines()


def near(actual, expected, is_figures=False):
    """Within rounding of the largest, or figures each by itself; of codes one in a hundred may be another one."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if actual.dtype in (torch.uint8, torch.int8, torch.int64) or actual.dtype.itemsize == 1:
        kind = torch.int64 if actual.dtype == torch.int64 else torch.int8
        a, b = (tensor.contiguous().view(kind) for tensor in (actual, expected))
        assert (a != b).sum() <= a.numel() / 100
        return
    bound = {torch.float32: 2**-18, torch.float16: 2**-9, torch.bfloat16: 2**-6}[actual.dtype]
    if is_figures:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=0)
        return
    most = expected[expected.isfinite()].abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=bound, atol=bound * most)


def ids(line):
    return f"{line['op']}-{line['dtype']}-{line['inputs'].replace(' ', '+')}-{line['params']}"


@pytest.mark.parametrize("line", [line for line in LINES if peers.knows(peers.Row(line))], ids=ids)
def test_a_peer(line):
    torch.manual_seed(5)
    row = peers.Row(line)
    new_set, run = peers.call(row, "cpu")
    tensors = new_set()
    expected = getattr(ops, row.op)(**dict(zip(peers.names_of(row), tensors)), **row.params)
    expected = [part for part in (expected if isinstance(expected, tuple) else (expected,)) if part is not None]
    for one, other in zip(run(*tensors), expected, strict=True):
        near(one, other, row.op == "compare")


def test_every_row_has_a_peer():
    """But those of operators without one, heads in another layout, and scales of FP8 that are powers of two."""
    others = [line for line in LINES if not peers.knows(peers.Row(line)) and line["op"] not in WITHOUT]
    assert {line["params"] for line in others} == {
        "angles=compute&layout=bsd", "style=gptj&angles=compute&layout=bsd", "dynamic=true&scale_rounding=power_of_two",
    }  # fmt: skip


@pytest.mark.parametrize("library, op", libraries.CALLS)
def test_a_library_has_rows(library, op):
    """One whose parameters fit no row would go unnoticed."""
    rows = [peers.Row(line) for line in LINES if line["op"] == op]
    assert any(peers.knows(row) and libraries.knows(library, row) for row in rows)


def test_a_library_lacks_rows():
    row = {"op": "rmsnorm", "dtype": "F32", "sizes": "rows=5 h=64", "inputs": "weight", "params": ""}
    assert libraries.knows("liger", peers.Row(row)) and not libraries.knows("flashinfer", peers.Row(row))
    assert not libraries.knows("liger", peers.Row(row | {"inputs": "weight grad_residual", "op": "rmsnorm_backward"}))
    assert not libraries.knows("liger", peers.Row(row | {"params": "heads=4"}))


def test_a_compiled_gradient():
    """torch.func inside of torch.compile, where no gradients are recorded, as sweep.py has it."""
    row = peers.Row({"op": "rmsnorm_backward", "dtype": "BF16", "sizes": "rows=5 h=64", "inputs": "weight", "params": ""})
    new_set, run = peers.call(row, "cpu")
    tensors = new_set()
    with torch.no_grad():
        compiled = torch.compile(run, dynamic=False, fullgraph=True, backend="aot_eager")(*tensors)
    for one, other in zip(compiled, run(*tensors), strict=True):
        near(one, other)
