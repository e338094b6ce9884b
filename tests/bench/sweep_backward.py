#!/usr/bin/env python3
"""The rows of `bench_ops --sweep --json FILE` that are gradients, beside
torch.compile of the same work on the same GPU: medians of CUDA-graph replays
over sets of tensors that together exceed the L2 cache.

    bench_ops --backend cuda --sweep --filter backward --no-check --json FILE
    tests/bench/sweep_backward.py FILE [FILE ...] [--seconds N] [--out FILE]

Of several files, which may be turns of one version, a row's best counts.
"""

import argparse
import json
import math
import re
import statistics
import time

import torch

ROTATED_BYTES, REPLAYS, MOST_LAUNCHES = 200e6, 15, 64
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAME = re.compile(r"(mul|div) backward (f32|bf16|f16) ([\dx]+) / ([\dx]+)$")


def summed(x, shape, dtype):
    dims = [i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1]
    return (x.sum(dims, keepdim=True) if dims else x).to(dtype)


def mul(g, a, b):
    g, a, b = (x.float() for x in (g, a, b))
    return g * b, g * a


def div(g, a, b):
    g, a, b = (x.float() for x in (g, a, b))
    return g / b, -g * (a / b / b)


def gradients(function, a_shape, b_shape, dtype):
    def both(g, a, b):
        of_a, of_b = function(g, a, b)
        return summed(of_a, a_shape, dtype), summed(of_b, b_shape, dtype)

    return torch.compile(both, dynamic=False)


def microseconds(name):
    function, dtype, *shapes = NAME.match(name).groups()
    dtype = TYPES[dtype]
    a, b = ([int(size) for size in shape.split("x")] for shape in shapes)
    g = [max(sizes) for sizes in zip(a, b)]
    n_bytes = 2 * math.prod(g) * dtype.itemsize
    n_sets = max(1, min(16, math.ceil(ROTATED_BYTES / n_bytes)))
    sets = [[torch.randn(s, device="cuda").to(dtype) for s in (g, a, b)] for _ in range(n_sets)]
    run = gradients({"mul": mul, "div": div}[function], a, b, dtype)
    n = max(n_sets, min(MOST_LAUNCHES, int(1e9 / n_bytes) // n_sets * n_sets))
    stream, graph, times = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(stream):
        for i in range(3):
            run(*sets[i % n_sets])
    stream.synchronize()
    results = [None] * n_sets  # kept, or every launch would write the same lines of L2
    with torch.cuda.graph(graph, stream=stream):
        for i in range(n):
            results[i % n_sets] = run(*sets[i % n_sets])
    for i in range(3 + REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end) * 1e3 / n)
    return statistics.median(times)


def rows_of(paths):
    rows = {}
    for path in paths:
        with open(path) as file:
            for row in map(json.loads, file):
                if NAME.match(row["row"]):
                    rows.setdefault(row["row"], []).append(row)
    return rows


def report(found):
    for ratio, name, ours, peer, copy in sorted(found, reverse=True):
        print(f"{ratio:6.3f} {name:50s} {ours:9.2f} us, torch.compile {peer:9.2f}, copy {copy:9.2f}")
    ratios = [row[0] for row in found]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    shares = ", ".join(f"<= {bound:.2f} {sum(r <= bound for r in ratios)}" for bound in (1, 1.03, 1.05))
    print(f"{len(ratios)} shapes: {shares}, worst {max(ratios):.2f}, geometric mean {mean:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--seconds", type=float, default=1e9, help="measure no further row after these")
    parser.add_argument("--out", help="torch.compile's times as JSON")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 10000
    found, peers, end = [], {}, time.time() + options.seconds
    for name, turns in rows_of(options.files).items():
        if time.time() > end:
            break
        peers[name] = peer = microseconds(name)
        best = min(turns, key=lambda row: row["us"])
        found.append((best["us"] / peer, name, best["us"], peer, best["copy_us"]))
        torch.cuda.empty_cache()
    report(found)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(peers, file)


if __name__ == "__main__":
    main()
