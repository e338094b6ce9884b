"""perf_analyzer, the vendor's benchmark, which knows a model by its metadata
and statistics alone."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PERF = Path(os.environ["ROPED_INTEROP_BUILD"]) / "interop" / "perf"
ENVIRONMENT = dict(os.environ, LD_LIBRARY_PATH=str(PERF / "nvidia/cuda_runtime/lib"))


def perf_analyzer(*arguments):
    command = [str(PERF / "bin/perf_analyzer"), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module", autouse=True)
def runs():
    try:
        version = perf_analyzer("--version")
    except OSError as error:
        pytest.skip(f"perf_analyzer is not there: {error}")
    if version.returncode:
        pytest.skip(f"perf_analyzer does not run here: {version.stderr.strip()}")


def measure(address, model, *arguments):
    result = perf_analyzer(
        "-m", model, "-u", address, "-i", "http", "--shared-memory", "none",
        "--measurement-mode", "count_windows", "--measurement-request-count", "100",
        "--stability-percentage", "999", "--max-trials", "3", *arguments,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    client = re.search(r"Throughput: ([0-9.]+) infer/sec", result.stdout)
    server = re.search(r"Inference count: ([0-9]+)", result.stdout)
    assert float(client[1]) > 0 and int(server[1]) >= 100, result.stdout
    return result.stdout


# It sends every input and asks for every output that the metadata has: a model
# with the inputs named behind ':' has no others.
MODELS = [
    ("rope:q", ["--shape", "q:16,8,64"]),
    ("rope:q,k", ["--shape", "q:16,8,64", "--shape", "k:16,2,64"]),
    ("rmsnorm", ["--shape", "x:16,1024", "--shape", "weight:1024"]),
    ("rmsnorm:x", ["--shape", "x:16,1024"]),
    ("rope_quantize:q_rope,k_rope", ["--shape", "q_rope:16,8,64", "--shape", "k_rope:16,1,64"]),
]


@pytest.mark.parametrize("model, shapes", MODELS)
def test_sync(address, model, shapes):
    measure(address, model, *shapes, "--sync", "--concurrency-range", "4")


@pytest.mark.parametrize("model, shapes", MODELS[:2])
def test_async(address, model, shapes):
    measure(address, model, *shapes, "--async", "--concurrency-range", "4")


def test_json(address):
    """As JSON this client sends one value of the first dim, as if of a batch."""
    measure(address, "rmsnorm:x", "--shape", "x:1,64", "--input-tensor-format", "json", "--output-tensor-format", "json")


def test_metrics_are_looked_for(address):
    measure(
        address, "rmsnorm:x", "--shape", "x:4,16", "--collect-metrics",
        "--metrics-url", f"{address}/metrics", "--metrics-interval", "100",
    )  # fmt: skip


@pytest.mark.parametrize("mode", [["--sync"], ["--async"]])
def test_simple(demo_address, mode):
    measure(demo_address, "simple", *mode, "--concurrency-range", "2", "-b", "8")
