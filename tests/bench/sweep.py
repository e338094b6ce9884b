#!/usr/bin/env python3
"""The rows of `bench_ops --json FILE` beside torch.compile of the same work on the
same device: on a GPU, medians of CUDA-graph replays over sets of tensors that together
exceed the L2 cache; on a CPU, medians of calls over such sets.

    bench_ops --backend cuda --sweep --no-check --json FILE
    tests/bench/sweep.py FILE [FILE ...] [--seconds N] [--out FILE]
    bench_ops --sweep --no-check --threads 2 --json FILE
    tests/bench/sweep.py FILE --device cpu --threads 2

Of several files, which may be turns of one version, a row's best counts. With
--cpu-time here and there, the processor's time on one thread is compared, which
other work on the machine disturbs less.
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F

REPLAYS, MOST_LAUNCHES, EPS, FP8 = 15, 64, 1e-6, torch.float8_e4m3fn
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def rounded(values, scale):
    return (values / scale).clamp(-448.0, 448.0).to(FP8)


def quantized(y, params):
    if "dynamic" not in params:
        return [rounded(y, float(params["dequant_scale"]))]
    parts = y.unflatten(-1, (-1, int(params.get("group_size", y.shape[-1]))))
    scale = parts.abs().amax(-1, keepdim=True) / 448.0
    return [rounded(parts, scale).flatten(-2), scale.squeeze(-1)]


# ------------------------------------------------------------------ operators
# Each: the sizes and parameters of a row, and new(*shape); returns what makes the
# tensors of a call, and the function that takes them.
def rms(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.float()


def layer(x, weight, bias):
    return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), EPS)


def norm(adds, normalise, n_weights, quantizes):
    def make(sizes, params, new):
        n, h = sizes["rows"][0], sizes["h"][0]
        weights = [new(h) for _ in range(n_weights)]

        def run(x, *residual):
            total = x.float() + residual[0].float() if adds else x
            y = normalise(total, *weights)
            sums = [total.to(x.dtype)] if adds else []
            return [*(quantized(y, params) if quantizes else [y.to(x.dtype)]), *sums]

        return lambda: [new(n, h) for _ in range(2 if adds else 1)], run

    return make


def act_and_mul(sizes, params, new):
    n, h = sizes["rows"][0], sizes["h"][0]

    def run(x):
        gate, up = x.float().chunk(2, -1)
        return [(F.silu(gate) * up).to(x.dtype)]

    return lambda: [new(n, 2 * h)], run


def act_and_mul_backward(sizes, params, new):
    n, h = sizes["rows"][0], sizes["h"][0]

    def run(grad_y, x):
        g, (gate, up) = grad_y.float(), x.float().chunk(2, -1)
        s = torch.sigmoid(gate)
        return [torch.cat((g * up * s * (1 + gate * (1 - s)), g * gate * s), -1).to(x.dtype)]

    return lambda: [new(n, h), new(n, 2 * h)], run


def rotation(norms):
    def make(sizes, params, new):
        n, hq, hk, d = (sizes[name][0] for name in ("n", "hq", "hk", "d"))
        weights = new(d), new(d)
        frequencies = 1e4 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(max(n, 8192), dtype=torch.float64), frequencies)
        cos, sin = (new(*angles.shape).float().copy_(table) for table in (angles.cos(), angles.sin()))
        positions = torch.arange(n, device=cos.device)

        def run(q, k):
            made = []
            for x, weight in zip((q, k), weights):
                a, b = (rms(x, weight) if norms else x.float()).chunk(2, -1)
                c, s = cos[positions][:, None], sin[positions][:, None]
                made.append(torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype))
            return made

        return lambda: [new(n, hq, d), new(n, hk, d)], run

    return make


def binary_backward(sizes, params, new):
    def summed(x, shape, dtype):
        dims = [i for i, size in enumerate(shape) if size == 1 and x.shape[i] != 1]
        return (x.sum(dims, keepdim=True) if dims else x).to(dtype)

    def run(grad, a, b):
        g, x, y = (tensor.float() for tensor in (grad, a, b))
        of_a, of_b = (g / y, -g * (x / y / y)) if params["function"] == "div" else (g * y, g * x)
        return [summed(of_a, sizes["a"], a.dtype), summed(of_b, sizes["b"], b.dtype)]

    return lambda: [new(*sizes[name]) for name in "oab"], run


OPERATORS = {
    "rmsnorm": norm(False, rms, 1, False), "add_rmsnorm": norm(True, rms, 1, False),
    "layer_norm": norm(False, layer, 2, False), "add_layer_norm": norm(True, layer, 2, False),
    "rmsnorm_quantize": norm(False, rms, 1, True), "add_rmsnorm_quantize": norm(True, rms, 1, True),
    "act_and_mul": act_and_mul, "act_and_mul_backward": act_and_mul_backward,
    "rope": rotation(False), "qk_rmsnorm_rope": rotation(True), "binary_backward": binary_backward,
}  # fmt: skip


# ------------------------------------------------------------------ measuring
def on_gpu(run, sets, n):
    stream, graph, times = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(stream):
        for i in range(3):
            run(*sets[i % len(sets)])
    stream.synchronize()
    results = [None] * len(sets)  # kept, or every launch would write the same lines of L2
    with torch.cuda.graph(graph, stream=stream):
        for i in range(n):
            results[i % len(sets)] = run(*sets[i % len(sets)])
    for i in range(3 + REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end) * 1e3 / n)
    return statistics.median(times)


def on_cpu(run, sets, n, clock):
    times = []
    for i in range(3 + REPLAYS):
        start = clock()
        for j in range(n):
            run(*sets[j % len(sets)])
        if i >= 3:
            times.append((clock() - start) * 1e6 / n)
    return statistics.median(times)


def microseconds(row, options):
    dtype = TYPES[row["dtype"]]
    params = dict(word.split("=") for word in row["params"].split("&") if word)
    sizes = {name: [int(size) for size in text.split(",")] for name, text in (word.split("=") for word in row["sizes"].split())}
    new_set, function = OPERATORS[row["op"]](sizes, params, lambda *shape: torch.randn(shape, device=options.device).to(dtype))
    n_sets = max(1, min(16, math.ceil(options.cache / row["bytes"])))
    sets = [new_set() for _ in range(n_sets)]
    run = torch.compile(function, dynamic=False, fullgraph=True)
    most = int(options.round_bytes / row["bytes"]) // n_sets * n_sets
    n = max(n_sets, min(MOST_LAUNCHES, most))
    if options.device == "cuda":
        return on_gpu(run, sets, n)
    return on_cpu(run, sets, n, time.process_time if options.cpu_time else time.perf_counter)


def rows_of(paths, only):
    rows = {}
    for path in paths:
        with open(path) as file:
            for row in map(json.loads, file):
                if row["op"] in OPERATORS and only in row["row"]:
                    rows.setdefault(row["row"], []).append(row)
    return rows


def report(found):
    for ratio, name, ours, peer, copy in sorted(found, reverse=True):
        print(f"{ratio:6.3f} {name:50s} {ours:9.2f} us, torch.compile {peer:9.2f}, copy {copy:9.2f}")
    ratios = [row[0] for row in found]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    shares = ", ".join(f"<= {bound:.2f} {sum(r <= bound for r in ratios)}" for bound in (1, 1.03, 1.05, 1.1))
    print(f"{len(ratios)} shapes: {shares}, worst {max(ratios):.2f}, geometric mean {mean:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--seconds", type=float, default=1e9, help="measure no further row after these")
    parser.add_argument("--out", help="torch.compile's times as JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, help="of PyTorch, on a CPU")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--cache", type=float, help="bytes that sets of tensors exceed (200e6 on a GPU, 4e6 on a CPU)")
    options = parser.parse_args()
    options.cache = options.cache or (200e6 if options.device == "cuda" else 4e6)
    options.round_bytes = 1e9 if options.device == "cuda" else 1e8
    if options.threads or options.cpu_time:
        torch.set_num_threads(1 if options.cpu_time else options.threads)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 10000
    found, peers, end = [], {}, time.time() + options.seconds
    for name, turns in rows_of(options.files, options.only).items():
        if time.time() > end:
            break
        best = min(turns, key=lambda row: row["us"])
        peers[name] = peer = microseconds(best, options)
        found.append((best["us"] / peer, name, best["us"], peer, best["copy_us"]))
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    report(found)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(peers, file)


if __name__ == "__main__":
    main()
