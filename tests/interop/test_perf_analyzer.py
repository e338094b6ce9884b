"""perf_analyzer, the vendor's benchmark, which knows a model by its metadata
and statistics alone."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import requests
import tritonclient.http as triton

PERF = Path(os.environ["ROPED_INTEROP_BUILD"]) / "interop" / "perf"
N_REQUESTS = 200  # of which it sends some before it reads the statistics
ENVIRONMENT = dict(os.environ, LD_LIBRARY_PATH=str(PERF / "nvidia/cuda_runtime/lib"))


def perf_analyzer(*arguments):
    command = [str(PERF / "bin/perf_analyzer"), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30)


def run_to_its_end(address, *arguments):
    """Once in several hundred runs its main thread sleeps on though its workers
    have all answers and have ended: then once more, if nothing is left here."""
    for _ in range(3):
        try:
            return perf_analyzer(*arguments)
        except subprocess.TimeoutExpired:
            assert "\nroped_inflight_requests 0\n" in requests.get(f"http://{address}/metrics").text
    pytest.fail("perf_analyzer does not come to an end")


@pytest.fixture(scope="module", autouse=True)
def runs():
    try:
        version = perf_analyzer("--version")
    except OSError as error:
        pytest.skip(f"perf_analyzer is not there: {error}")
    if version.returncode:
        pytest.skip(f"perf_analyzer does not run here: {version.stderr.strip()}")


def measure(address, model, *arguments):
    result = run_to_its_end(
        address, "-m", model, "-u", address, "-i", "http", "--request-count", str(N_REQUESTS), *arguments,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    client = re.search(r"Throughput: ([0-9.]+) infer/sec", result.stdout)
    server = re.search(r"Inference count: ([0-9]+)", result.stdout)
    assert float(client[1]) > 0 and 0 < int(server[1]) <= N_REQUESTS, result.stdout
    return result.stdout


# operators that want one of two inputs, or an input in place of a parameter
ALSO = {"binary_backward": ["a", "b"], "act_and_mul_backward": ["x"]}

# operators whose index values must fit each other: no generator makes those
INDEXED = {"rope_append", "qk_rmsnorm_rope_append", "rope_quantize_append"}

# one token: all values are 0, and two tokens must not have one cache slot
SIZES = {"n": "1"}


def size_of(dim):
    """Of 2h, twice as many as of h."""
    times, symbol = re.fullmatch(r"(\d*)(.*)", dim).groups()
    return times if not symbol else str(int(times or 1) * int(SIZES.get(symbol, "16")))


def required_part(address, op):
    """The name of the model with the inputs that op must have, and a shape for
    each. perf_analyzer sends every input that the metadata has, with random
    values, and asks for every output."""
    with triton.InferenceServerClient(address) as client:
        config, metadata = client.get_model_config(op), client.get_model_metadata(op)
    optional = {tensor["name"]: tensor["optional"] for tensor in config["input"]}
    needed = [t for t in metadata["inputs"] if not optional[t["name"]] or t["name"] in ALSO.get(op, [])]
    needed = needed or metadata["inputs"][:1]  # none is, and others may be in place of the first
    shapes = []
    for tensor in needed:
        dims = re.sub(r"\[.*?\]", "", tensor["parameters"]["shape"].split("|")[0]).split()  # no conditions
        sizes = ",".join(size_of(dim) for dim in dims)
        shapes += ["--shape", f"{tensor['name']}:{sizes}"]
    return ",".join([f"{op}:required", *ALSO.get(op, [])]), shapes


def operators():
    with triton.InferenceServerClient(os.environ["ROPED_INTEROP_ADDRESS"]) as client:
        return [model["name"] for model in client.get_model_repository_index() if model["name"] not in INDEXED]


@pytest.mark.parametrize("op", operators())
@pytest.mark.parametrize("mode", ["--sync", "--async"])
def test_every_operator(address, op, mode):
    model, shapes = required_part(address, op)
    measure(address, model, *shapes, mode, "--concurrency-range", "4", "--input-data", "zero")


@pytest.mark.parametrize(
    "model, shapes",
    [
        ("rope:q,k", ["--shape", "q:16,32,128", "--shape", "k:16,8,128"]),
        ("rmsnorm", ["--shape", "x:16,1024", "--shape", "weight:1024"]),
    ],
)
def test_random_values(address, model, shapes):
    measure(address, model, *shapes)


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


@pytest.mark.parametrize("model", [["simple"], ["rmsnorm:x", "--shape", "x:16,16", "--output-shared-memory-size", "1024"]])
def test_shared_memory(demo_address, model):
    measure(demo_address, *model, "--shared-memory", "system")
