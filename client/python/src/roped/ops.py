"""Operators in this process, on tensors where they are: numpy's on the CPU,
torch's on their own device and current stream, others through DLPack.

    from roped import ops

    q, k = ops.rope(q, k, positions)              # new tensors
    ops.rope(q, k, positions, out={"q": q, "k": k})  # in place
    y = ops.rmsnorm(x, weight, eps=1e-5)

On a GPU nothing waits, and values of index tensors are trusted, so calls can be
captured into a graph: make each once on that stream before. On the CPU values
are checked. With torch, operators are torch.ops.roped.*: torch.compile goes
through them, and rope has a gradient. Where there is none, a backward raises.
"""

import sys

from roped._in_process import functions, know_torch

globals().update(functions)
__all__ = list(functions)

if "torch" in sys.modules:
    know_torch()
