#!/usr/bin/env python3
"""Device time of the fused operators beside torch.compile of the same work and
beside a copy of the same bytes, in one run on a GPU: medians of CUDA-graph replays over
sets of tensors that together exceed the L2 cache. err is the distance of both
results: the norm of their difference by that of torch's.

    PYTHONPATH=PACKAGE tests/bench/torch_compile.py [--only TEXT]

PACKAGE is made by `cmake --install BUILD_DIR --component python --prefix PACKAGE`.
"""

import argparse
import statistics

import torch

from roped import ops

HEADS, KV_HEADS, WIDTH, EPS, THETA = 32, 8, 128, 1e-6, 1e4
ROTATED_BYTES, REPLAYS, MOST_LAUNCHES = 400e6, 25, 64
FP8 = torch.float8_e4m3fn


def random(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def of_8_bits(*shape):
    return torch.zeros(shape, dtype=FP8, device="cuda")


def codes(values, scale):
    return (values / scale).clamp(-448.0, 448.0).to(FP8)


def normed(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


class Norm:
    """add_rmsnorm_quantize and rmsnorm_quantize of n rows of h columns."""

    def __init__(self, adds, n, h, group):
        self.adds, self.group = adds, group
        kind = {None: "given scale", 0: "dynamic"}.get(group, f"by {group}")
        self.name = f"{'add_' if adds else ''}rmsnorm_quantize {kind} {n}x{h}"
        self.shape, self.weight, self.scale = (n, h), random(h), 0.05

    def new_set(self):
        n, h = self.shape
        inputs = [random(n, h), random(n, h)] if self.adds else [random(n, h)]
        outputs = {"y": of_8_bits(n, h)}
        if self.adds:
            outputs["residual"] = torch.empty_like(inputs[1])
        if self.group is not None:
            scales = (n, h // self.group) if self.group else (n,)
            outputs["scales"] = torch.empty(scales, dtype=torch.float32, device="cuda")
        return inputs, outputs

    def launch(self, inputs, outputs):
        how = {"dequant_scale": self.scale} if self.group is None else {"dynamic": True, "group_size": self.group}
        operator = ops.add_rmsnorm_quantize if self.adds else ops.rmsnorm_quantize
        operator(*inputs, self.weight, eps=EPS, out=outputs, **how)

    def results(self, first, inputs):
        return [first]

    def theirs(self, x, residual=None):
        total = x.float() if residual is None else x.float() + residual.float()
        y = normed(total) * self.weight.float()
        sums = [] if residual is None else [total.bfloat16()]
        if self.group is None:
            return [codes(y, self.scale), *sums]
        parts = y.unflatten(-1, (-1, self.group or y.shape[-1]))
        scale = parts.abs().amax(-1, keepdim=True) / 448.0
        return [codes(parts, scale).flatten(-2), scale.squeeze(-1), *sums]


class Append:
    """Heads of n tokens into slots of caches, q and k normalised first or not."""

    def __init__(self, norms, n, in_8_bits):
        name = "qk_rmsnorm_rope_append" if norms else "rope_append"
        self.name = f"{name} {'e4m3 caches ' if in_8_bits else ''}{n} tokens"
        self.norms, self.n, self.cache_bytes = norms, n, 1 if in_8_bits else 2
        self.positions = torch.arange(n, device="cuda")
        self.slots = torch.randperm(n, device="cuda")
        self.weights = random(WIDTH), random(WIDTH)
        frequencies = THETA ** (-torch.arange(0, WIDTH, 2, device="cuda") / WIDTH)
        angles = torch.arange(max(n, 4096), device="cuda")[:, None] * frequencies
        self.cos, self.sin = angles.cos(), angles.sin()

    def new_set(self):
        n, new = self.n, of_8_bits if self.cache_bytes == 1 else random
        inputs = random(n, HEADS, WIDTH), random(n, KV_HEADS, WIDTH), random(n, KV_HEADS, WIDTH)
        caches = [new(n, KV_HEADS, WIDTH), new(n, KV_HEADS, WIDTH)]
        return [*inputs, *caches], {"q": torch.empty_like(inputs[0])}

    def launch(self, inputs, outputs):
        operator, norm = ops.rope_append, {}
        if self.norms:
            operator = ops.qk_rmsnorm_rope_append
            norm = {"q_weight": self.weights[0], "k_weight": self.weights[1], "eps": EPS}
        operator(*inputs, self.slots, positions=self.positions, theta=THETA, out=outputs, **norm)

    def results(self, first, inputs):
        return [first, inputs[3], inputs[4]]

    def rotated(self, x, weight):
        x = x.float()
        if self.norms:
            x = normed(x) * weight.float()
        a, b = x.chunk(2, -1)
        cos, sin = (table[self.positions][:, None] for table in (self.cos, self.sin))
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def theirs(self, q, k, v, k_cache, v_cache):
        k_cache[self.slots] = self.rotated(k, self.weights[1]).to(k_cache.dtype)
        v_cache[self.slots] = v.to(v_cache.dtype)
        return [self.rotated(q, self.weights[0]).bfloat16()]


def graph_us(call, n_sets, n_bytes):
    """Median time of call(i), i going round the sets. What calls return lives as long as the graph's round."""
    stream, kept = torch.cuda.Stream(), [None] * n_sets
    launches = max(n_sets, min(MOST_LAUNCHES, int(8e9 // n_bytes) // n_sets * n_sets))
    with torch.cuda.stream(stream):
        for i in range(min(3, n_sets)):
            call(i)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(launches):
                kept[i % n_sets] = call(i % n_sets)
        times = []
        for _ in range(REPLAYS + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times[3:])


def distance(work, compiled, tensors):
    inputs, outputs = tensors
    work.launch(inputs, outputs)
    first = next(iter(outputs.values()))
    ours = [x.float() for x in work.results(first, inputs)]
    theirs = [x.float() for x in work.results(compiled(*inputs)[0], inputs)]
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(ours, theirs))


def measure(work):
    inputs, outputs = work.new_set()
    n_bytes = sum(tensor.nbytes for tensor in (*inputs, *outputs.values()))  # each is read or written once
    n_sets = int(max(2, min(16, ROTATED_BYTES // n_bytes + 1)))
    sets = [(inputs, outputs), *(work.new_set() for _ in range(n_sets - 1))]
    copies = [torch.empty(2, n_bytes // 2, dtype=torch.uint8, device="cuda") for _ in range(n_sets)]
    compiled = torch.compile(work.theirs, dynamic=False, fullgraph=True)
    error = distance(work, compiled, sets[0])
    ours, theirs, copy = (graph_us(call, n_sets, n_bytes) for call in (
        lambda i: work.launch(*sets[i]),
        lambda i: compiled(*sets[i][0]),
        lambda i: copies[i][1].copy_(copies[i][0]),
    ))
    return ours, theirs, copy, error


def works():
    for adds in True, False:
        for n, h in (1, 4096), (64, 4096), (65536, 4096):
            for group in (None, 0, 128) if adds else (0, 128, 32, 16):
                yield Norm(adds, n, h, group)
    for norms in True, False:
        for in_8_bits in False, True:
            for n in 1, 8, 128, 8192, 65536:
                yield Append(norms, n, in_8_bits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 1000
    print(f"{'device time, us':<46}{'roped':>8}{'compile':>8}{'copy':>8}{'ratio':>6}{'share':>6}{'err':>9}")
    for work in works():
        if options.only not in work.name:
            continue
        ours, theirs, copy, error = measure(work)
        times = "".join(f"{us:8.2f}" for us in (ours, theirs, copy))
        print(f"{work.name:<46}{times}{ours / theirs:6.2f}{copy / ours:6.2f}{error:9.1e}", flush=True)


if __name__ == "__main__":
    main()
