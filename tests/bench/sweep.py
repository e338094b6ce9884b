#!/usr/bin/env python3
"""The rows of `bench_ops --json FILE` beside torch.compile of the same work (peers.py), or
beside another library's call (libraries.py), on the same device: on a GPU, medians of
CUDA-graph replays over sets of tensors that together exceed the L2 cache; on a CPU, medians
of calls over as many sets as bench_ops had, so that both find rows in the same cache or memory.

    bench_ops --backend cuda --sweep --no-check --json FILE
    tests/bench/sweep.py FILE [FILE ...] [--peer liger] [--seconds N] [--out FILE]
    bench_ops --sweep --no-check --threads 2 --json FILE
    tests/bench/sweep.py FILE --device cpu --threads 2

Of several files, which may be turns of one version, a row's best counts. With
--cpu-time here and there, the processor's time on one thread is compared, which
other work on the machine disturbs less. With --workers N, as many processes compile what
torch.compile will be asked for before anything is timed; what they tuned is not used, since
they disturb each other.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import statistics
import time

import libraries
import peers
import torch
import torch._inductor.config

REPLAYS, MOST_LAUNCHES = 15, 64
COMPILED = "torch.compile"


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
    results = [None] * len(sets)  # kept as well: what is freed is the next result's memory, still in the caches
    for i in range(3 + REPLAYS):
        start = clock()
        for j in range(n):
            results[j % len(sets)] = run(*sets[j % len(sets)])
        if i >= 3:
            times.append((clock() - start) * 1e6 / n)
    return statistics.median(times)


def prepared(row, options, n_sets):
    """The function to time, and what it is given in each call; None if a library computes something else."""
    new_set, function = peers.call(peers.Row(row), options.device)
    if options.peer == COMPILED:
        return torch.compile(function, dynamic=False, fullgraph=True), [new_set() for _ in range(n_sets)]
    ready = libraries.call(options.peer, peers.Row(row), options.device)
    if not libraries.agrees(ready, function, new_set()):
        return None
    return (lambda launch: launch()), [[ready(new_set())] for _ in range(n_sets)]


def microseconds(row, options):
    n_sets = row["sets"] if options.device == "cpu" else max(1, min(16, math.ceil(options.cache / row["bytes"])))
    made = prepared(row, options, n_sets)
    if not made:
        return None
    run, sets = made
    most = int(options.round_bytes / row["bytes"]) // n_sets * n_sets
    n = max(n_sets, min(MOST_LAUNCHES, most))
    if options.device == "cuda":
        return on_gpu(run, sets, n)
    return on_cpu(run, sets, n, time.process_time if options.cpu_time else time.perf_counter)


def prepare_torch(options):
    if options.threads or options.cpu_time:
        torch.set_num_threads(1 if options.cpu_time else options.threads)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 10000
    torch._inductor.config.autotune_local_cache = False


def compile_row(row, options):
    run, sets = prepared(row, options, 1)
    run(*sets[0])
    torch._dynamo.reset()


def compile_ahead(rows, options):
    """Fills PyTorch's cache of compiled code; a row that fails here is compiled when it is timed."""
    new_processes = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        options.workers, new_processes, initializer=prepare_torch, initargs=(options,)
    ) as pool:
        for row in rows:
            pool.submit(compile_row, row, options)


def rows_of(paths, only, peer):
    """The turns of each row; rows that no peer knows, or that are slices, are counted alone."""

    def has_peer(row):
        return peers.knows(row) and (peer == COMPILED or libraries.knows(peer, row))

    rows, others = {}, set()
    for path in paths:
        with open(path) as file:
            for row in map(json.loads, file):
                if only not in row["row"]:
                    continue
                if has_peer(peers.Row(row)) and not row["of"]:
                    rows.setdefault(row["row"], []).append(row)
                else:
                    others.add(row["row"])
    print(f"{len(rows)} rows; {len(others)} others have no peer")
    return rows


def report(found, name_of_peer):
    for ratio, name, ours, peer, copy in sorted(found, reverse=True):
        print(f"{ratio:6.3f} {name:50s} {ours:9.2f} us, {name_of_peer} {peer:9.2f}, copy {copy:9.2f}")
    if not found:
        return
    ratios = [row[0] for row in found]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    shares = ", ".join(f"<= {bound:.2f} {sum(r <= bound for r in ratios)}" for bound in (1, 1.03, 1.05, 1.1))
    print(f"{len(ratios)} shapes: {shares}, worst {max(ratios):.2f}, geometric mean {mean:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer", choices=(COMPILED, *libraries.NAMES), default=COMPILED)
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--seconds", type=float, default=1e9, help="measure no further row after these")
    parser.add_argument("--out", help="the peer's times as JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, help="of PyTorch, on a CPU")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile ahead")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--cache", type=float, default=200e6, help="bytes that sets of tensors exceed on a GPU")
    options = parser.parse_args()
    if options.peer != COMPILED and not libraries.has(options.peer):
        return
    options.round_bytes = 1e9 if options.device == "cuda" else 1e8
    prepare_torch(options)
    found, times, end = [], {}, time.time() + options.seconds
    best = {
        name: min(turns, key=lambda row: row["us"])
        for name, turns in rows_of(options.files, options.only, options.peer).items()
    }
    if options.workers and options.peer == COMPILED:
        compile_ahead(best.values(), options)
    for name, row in best.items():
        if time.time() > end:
            break
        peer = microseconds(row, options)
        if peer is None:
            print(f"{name}: {options.peer} computes something else")
            continue
        times[name] = peer
        found.append((row["us"] / peer, name, row["us"], peer, row["copy_us"]))
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    report(found, options.peer)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(times, file)


if __name__ == "__main__":
    main()
