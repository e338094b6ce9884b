#!/usr/bin/env python3
"""Host time of a call in this process, of every operator and beside torch's own:
wall time of calls that are enqueued one after the other, without waiting for the
device, by their number. "library" is the part of it in libroped_kernels.so: checks of
values, the launch, and on the CPU the kernel, which has nothing to do at 0 tokens.

    PYTHONPATH=PACKAGE tests/bench/python_ops.py [--device cuda] [--seconds 10]

PACKAGE is made by `cmake --install BUILD_DIR --component python --prefix PACKAGE`.
Calls take turns, so that other work on the machine is shared by all.
"""

import argparse
import statistics
import time
from array import array

import numpy as np
import torch

from roped import _library, ops

GOAL_US = 10.0
CALLS_OF_A_TURN = 50  # below what a stream holds before it makes the host wait
HEADS, KV_HEADS, WIDTH, SLOTS = 32, 8, 128, 64


def calls(n, device):
    """A call of n tokens of each operator, as Llama 3 8B has them."""

    def random(*shape):
        return torch.randn(shape, dtype=torch.bfloat16).to(device)

    def index(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    q, k, v, x = random(n, HEADS, WIDTH), random(n, KV_HEADS, WIDTH), random(n, KV_HEADS, WIDTH), random(n, 4096)
    codes = x.to(torch.float8_e4m3fn)
    weight, head_weight = random(4096), random(WIDTH)
    positions, slots = torch.arange(n, device=device), torch.arange(n, device=device)
    caches = random(SLOTS, KV_HEADS, WIDTH), random(SLOTS, KV_HEADS, WIDTH)
    pages = [torch.zeros(8, 16, KV_HEADS, WIDTH, dtype=torch.float8_e4m3fn, device=device) for _ in range(2)]
    where = {"page_indices": index(0), "page_indptr": index(0, 1), "batch_indices": index(*[0] * n),
             "kv_positions": index(*range(n))}  # fmt: skip
    return {
        "rope": lambda: ops.rope(q, k, positions, theta=5e5),
        "rope in place": lambda: ops.rope(q, k, positions, theta=5e5, out={"q": q, "k": k}),
        "rope_quantize": lambda: ops.rope_quantize(q, k, positions=positions, theta=5e5),
        "qk_rmsnorm_rope": lambda: ops.qk_rmsnorm_rope(
            q, k, q_weight=head_weight, k_weight=head_weight, positions=positions, eps=1e-5
        ),
        "rope_append": lambda: ops.rope_append(q, k, v, *caches, slots, positions=positions, theta=5e5),
        "qk_rmsnorm_rope_append": lambda: ops.qk_rmsnorm_rope_append(
            q, k, v, *caches, slots, q_weight=head_weight, k_weight=head_weight, positions=positions, theta=5e5
        ),
        "rope_quantize_append": lambda: ops.rope_quantize_append(
            q_rope=q, k_rope=k, v=v, k_cache=pages[0], v_cache=pages[1], positions=positions, theta=5e5, **where
        ),
        "rmsnorm": lambda: ops.rmsnorm(x, weight, eps=1e-5),
        "add_rmsnorm": lambda: ops.add_rmsnorm(x, x, weight, eps=1e-5),
        "rmsnorm_quantize": lambda: ops.rmsnorm_quantize(x, weight, dynamic=True),
        "add_rmsnorm_quantize": lambda: ops.add_rmsnorm_quantize(x, x, weight, dynamic=True),
        "rmsnorm_backward": lambda: ops.rmsnorm_backward(x, x, weight, eps=1e-5),
        "binary_backward": lambda: ops.binary_backward(x, x, weight, function="mul"),
        "layer_norm": lambda: ops.layer_norm(x, weight, weight),
        "layer_norm_backward": lambda: ops.layer_norm_backward(x, x, weight, weight, eps=1e-5),
        "add_layer_norm": lambda: ops.add_layer_norm(x, x, weight, weight),
        "act_and_mul": lambda: ops.act_and_mul(x),
        "act_and_mul_backward": lambda: ops.act_and_mul_backward(x[:, :2048], x),
        "quantize": lambda: ops.quantize(x),
        "dequantize": lambda: ops.dequantize(codes, dequant_scale=0.5, output_dtype="bf16"),
        "compare": lambda: ops.compare(x, x),
        "rmsnorm_add": lambda: ops.rmsnorm_add(x, x, weight, eps=1e-5),
        "gated_rmsnorm": lambda: ops.gated_rmsnorm(x, x, weight, gate_first=True),
    }


def peers(n, device):
    """The same by torch's own operators, and by numpy on the CPU."""
    q, k = (torch.randn(n, heads, WIDTH, dtype=torch.bfloat16).to(device) for heads in (HEADS, KV_HEADS))
    x, weight = (torch.randn(shape, dtype=torch.bfloat16).to(device) for shape in ((n, 4096), (4096,)))
    cos, sin = (torch.randn(n, 1, WIDTH, dtype=torch.bfloat16).to(device) for _ in range(2))

    def rotated(t):
        a, b = t[..., : WIDTH // 2], t[..., WIDTH // 2 :]
        return t * cos + torch.cat((-b, a), dim=-1) * sin

    own = {
        "torch: rms_norm": lambda: torch.nn.functional.rms_norm(x, (4096,), weight, 1e-5),
        "torch: apply_rotary_pos_emb": lambda: (rotated(q), rotated(k)),
    }
    if device == "cuda":
        return own
    rows, head = np.ones((n, 4096), np.float32), np.ones((n, HEADS, WIDTH), np.float32)
    positions = np.arange(n)
    return own | {
        "numpy rope": lambda: ops.rope(head, head, positions, theta=5e5),
        "numpy rmsnorm": lambda: ops.rmsnorm(rows, eps=1e-5),
    }


def library_part(function):
    """What a call spends in the library: of a first call, whose memory is kept, with addresses of its own."""
    kept = function()
    (session,) = _library.sessions.values()
    work, addresses = [*session.calls.values()][-1].work, array("Q")
    addresses.extend(work.addresses)
    handle, _, failure = work.arguments
    arguments = handle, addresses.buffer_info()[0], failure
    return lambda _=(kept, addresses): _library.launch_on(*arguments)


def in_turns(functions, device, seconds):
    """For each function, microseconds of a call in each turn."""
    found = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(found[name]) < 5:
        for name, function in functions.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS_OF_A_TURN):
                function()
            found[name].append((time.perf_counter() - start) / CALLS_OF_A_TURN * 1e6)
    return found


def measured(n, device, seconds):
    """Turns of whole calls and of their parts in the library, by name."""
    own = calls(n, device)
    parts = {f"{name}: library": library_part(function) for name, function in own.items()}
    return in_turns({**own, **peers(n, device), **parts}, device, seconds)


def print_figures(turns):
    whole, least = {name: statistics.median(of) for name, of in turns.items()}, {n: min(of) for n, of in turns.items()}
    for name in whole:
        if name.endswith(": library"):
            continue
        part = f"{name}: library"
        print(f"  {name:<29}{whole[name]:9.1f}{least[name]:9.1f}" + (f"{whole[part]:9.1f}" if part in whole else ""))
    own = {name: whole[name] for name in whole if f"{name}: library" in whole}
    slowest = max(own, key=own.get)
    verdict = "met" if own[slowest] <= GOAL_US else "MISSED"
    print(f"  slowest of roped: {slowest}, {own[slowest]:.1f} us, goal {GOAL_US:g} {verdict}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"host time of a call on {options.device}, us: p50, least, p50 of the library's part")
    for n in [4] if options.device == "cuda" else [0, 4]:
        turns = measured(n, options.device, options.seconds)
        print(f"{n} tokens, {len(next(iter(turns.values())))} turns of {CALLS_OF_A_TURN} calls")
        print_figures(turns)


if __name__ == "__main__":
    main()
