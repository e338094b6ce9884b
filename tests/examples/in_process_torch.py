#!/usr/bin/env python3
"""libroped_kernels.so on PyTorch's tensors and stream, inside its CUDA graphs.

    in_process_torch.py [--library FILE] [--tokens N]          one GPU, torch
    in_process_torch.py [--library FILE] [--tokens N] --cpu    numpy alone

rope and rmsnorm of the library beside PyTorch's own expressions, eager and
compiled, in one process: every result checked against float64, every time the
median of graph replays over buffers that rotate past the L2, and a copy of the
same bytes as the limit (share = copy / ours). With --cpu, the CPU backend
beside numpy. Exit 0: right. 1: wrong. 77: something needed is not installed.
"""

import argparse
import ctypes
import glob
import os
import statistics
import sys
import time

HEADS, KV_HEADS, HEAD, HIDDEN = 32, 8, 128, 4096  # Llama 3.1 8B
THETA, EPS = 500000.0, 1e-5
REPLAYS, LAUNCHES, MAX_SETS = 31, 32, 16
ROTATED_BYTES = 192 << 20  # three times and more the L2 of today's GPUs


# ------------------------------------------------------------- the library
class Error(ctypes.Structure):
    """struct roped_error of roped/status.h."""

    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 512)]


class Library:
    """roped/session.h: every function that returns a status raises."""

    SIGNATURES = {
        "session_open": [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p],
        "session_wait": [ctypes.c_void_p],
        "work_new": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        "work_param": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p],
        "work_input": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
                       ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p],
        "work_move_input": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        "work_prepare": [ctypes.c_void_p],
        "work_output": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        "work_launch": [ctypes.c_void_p],
    }

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name, arguments in self.SIGNATURES.items():
            function = getattr(self.library, "roped_" + name)
            function.argtypes = arguments + [ctypes.POINTER(Error)]
            function.restype = ctypes.c_int
        for name in ("session_close", "work_free"):
            function = getattr(self.library, "roped_" + name)
            function.argtypes, function.restype = [ctypes.c_void_p], None

    def __call__(self, name, *arguments):
        error = Error()
        if getattr(self.library, "roped_" + name)(*arguments, ctypes.byref(error)):
            raise RuntimeError(error.text.decode())


class Session:
    """A device, and one stream of it. Outlives its works and their graphs."""

    def __init__(self, library, backend, device=0, stream=None):
        self.library, self.handle = library, ctypes.c_void_p()
        library("session_open", backend.encode(), device, stream, ctypes.byref(self.handle))

    def wait(self):
        self.library("session_wait", self.handle)

    def close(self):
        self.library.library.roped_session_close(self.handle)


class Work:
    """One prepared call. Tensors are numpy's or torch's, contiguous; those of the
    constructor stay alive with it, those of a launch are the caller's to keep."""

    def __init__(self, session, op, parameters, **inputs):
        self.library, self.handle, self.kept = session.library, ctypes.c_void_p(), inputs
        self.library("work_new", session.handle, op.encode(), ctypes.byref(self.handle))
        for name, value in parameters.items():
            self.library("work_param", self.handle, name.encode(), str(value).encode())
        for name, tensor in inputs.items():
            dims = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
            self.library("work_input", self.handle, name.encode(), dtype_of(tensor),
                         len(tensor.shape), dims, address_of(tensor))
        self.library("work_prepare", self.handle)

    def __call__(self, inputs, outputs):
        """Enqueues the call with these tensors in the place of the first ones."""
        for name, tensor in inputs.items():
            self.library("work_move_input", self.handle, name.encode(), address_of(tensor))
        for name, tensor in outputs.items():
            self.library("work_output", self.handle, name.encode(), address_of(tensor))
        self.library("work_launch", self.handle)

    def free(self):
        self.library.library.roped_work_free(self.handle)


def dtype_of(tensor):
    names = {"float32": b"F32", "float16": b"F16", "bfloat16": b"BF16",
             "int32": b"I32", "int64": b"I64"}
    return names[str(tensor.dtype).removeprefix("torch.")]


def address_of(tensor):
    if hasattr(tensor, "data_ptr"):
        assert tensor.is_contiguous()
        return tensor.data_ptr()
    assert tensor.flags.c_contiguous
    return tensor.ctypes.data


def new_works(session, q, k, positions, x, weight):
    rope = Work(session, "rope", {"theta": THETA}, q=q, k=k, positions=positions)
    rmsnorm = Work(session, "rmsnorm", {"eps": EPS}, x=x, weight=weight)
    return rope, rmsnorm


# ------------------------------------------------- the same in other words
def cos_and_sin(math, positions):
    """[n, 1, HEAD], both halves alike; positions are float64."""
    frequency = THETA ** (-math.arange(0, HEAD, 2) / HEAD)
    angle = positions[:, None] * frequency[None, :]
    return [f(math.concatenate([angle, angle], 1))[:, None, :] for f in (math.cos, math.sin)]


def rotate(concatenate, x, cos, sin):
    half = HEAD // 2
    return x * cos + concatenate([-x[..., half:], x[..., :half]], -1) * sin


def must_be_near(what, found, expected, tolerance):
    """Within tolerance of the largest magnitude, everything in float64."""
    off = float(abs(found - expected).max()) / float(abs(expected).max())
    print(f"{what:<8} off by {off:.1e} of the largest, allowed {tolerance:.1e}")
    if not off <= tolerance:
        sys.exit(f"{what}: wrong")


# ------------------------------------------------------------------ numpy
def median_seconds(function, repeats=REPLAYS):
    def once():
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(repeats))


def on_cpu(library, numpy, n_tokens):
    random = numpy.random.default_rng(1)
    q, k, x, weight = (random.standard_normal(shape, dtype=numpy.float32) for shape in (
        (n_tokens, HEADS, HEAD), (n_tokens, KV_HEADS, HEAD), (n_tokens, HIDDEN), (HIDDEN,)))
    positions = numpy.arange(n_tokens, dtype=numpy.int64) * 3
    q_out, k_out, y = (numpy.empty_like(tensor) for tensor in (q, k, x))
    session = Session(library, "cpu")
    rope, rmsnorm = new_works(session, q, k, positions, x, weight)

    def ours_rope():
        rope({}, {"q": q_out, "k": k_out})

    def ours_rmsnorm():
        rmsnorm({}, {"y": y})

    ours_rope()
    ours_rmsnorm()
    session.wait()
    exact = cos_and_sin(numpy, positions.astype(numpy.float64))
    # frequencies are float32: off by 2^-24 of the angle, and rounded results
    slack = 2**-24 * float(positions[-1]) + 1e-6
    must_be_near("rope q", q_out, rotate(numpy.concatenate, q, *exact), slack)
    must_be_near("rope k", k_out, rotate(numpy.concatenate, k, *exact), slack)
    x64 = x.astype(numpy.float64)
    norm = x64 / numpy.sqrt((x64 * x64).mean(-1, keepdims=True) + EPS) * weight
    must_be_near("rmsnorm", y, norm, 1e-6)

    cos, sin = (table.astype(numpy.float32) for table in exact)

    def numpy_rope():
        return [rotate(numpy.concatenate, t, cos, sin) for t in (q, k)]

    def numpy_rmsnorm():
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + numpy.float32(EPS)) * weight

    def copy():
        q_out[:], k_out[:] = q, k

    print(f"{'us':<22}{'ours':>10}{'numpy':>10}{'copy':>10}{'share':>8}")
    rows = (("rope", ours_rope, numpy_rope, copy),
            ("rmsnorm", ours_rmsnorm, numpy_rmsnorm, lambda: numpy.copyto(y, x)))
    for name, ours, theirs, limit in rows:
        t = [median_seconds(f) for f in (ours, theirs, limit)]
        print(f"{name + ' f32 x ' + str(n_tokens):<22}"
              + "".join(f"{s * 1e6:10.1f}" for s in t) + f"{t[2] / t[0]:8.2f}")
    rope.free()
    rmsnorm.free()
    session.close()


# ------------------------------------------------------------------ torch
def graph_seconds(torch, stream, function, n_sets):
    """Seconds of one function(set), captured LAUNCHES times into a graph."""
    torch.cuda.synchronize()  # tensors were made on another stream
    with torch.cuda.stream(stream):
        for i in range(n_sets):  # loads kernels, compiles: not while capturing
            function(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(LAUNCHES):
            function(i % n_sets)
    seconds = []
    with torch.cuda.stream(stream):
        for _ in range(3 + REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) * 1e-3 / LAUNCHES)
    return statistics.median(seconds[3:])


def expressions(torch):
    """Hugging Face's apply_rotary_pos_emb and LlamaRMSNorm. Gathering cos and
    sin is left out, since a model does it once for all of its layers."""

    def rope(q, k, cos, sin):
        return rotate(torch.cat, q, cos, sin), rotate(torch.cat, k, cos, sin)

    def rmsnorm(x, weight):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return weight * wide.to(x.dtype)

    return rope, rmsnorm


def compiled_seconds(torch, stream, function, arguments, n_sets):
    fast = torch.compile(function, dynamic=False)
    try:
        return graph_seconds(torch, stream, lambda i: fast(*arguments(i)), n_sets)
    except Exception as error:  # no compiler, no Triton: the rest is worth having
        print(f"torch.compile: {error}", file=sys.stderr)
        return float("nan")


def print_row(torch, stream, name, n_sets, ours, theirs, arguments, copy):
    """ours and copy are functions of a set number; theirs is one of tensors,
    which arguments makes from the number."""
    t = [graph_seconds(torch, stream, ours, n_sets),
         graph_seconds(torch, stream, lambda i: theirs(*arguments(i)), n_sets),
         compiled_seconds(torch, stream, theirs, arguments, n_sets),
         graph_seconds(torch, stream, copy, n_sets)]
    print(f"{name:<22}" + "".join(f"{s * 1e6:10.2f}" for s in t) + f"{t[3] / t[0]:8.2f}")


def on_cuda(library, torch, n_tokens):
    torch.manual_seed(1)
    set_bytes = 2 * (HEADS + KV_HEADS) * HEAD * 2 * n_tokens  # in and out
    n_sets = max(2, min(MAX_SETS, ROTATED_BYTES // set_bytes + 1))

    def tensors(*shape):
        return [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(n_sets)]

    def split(heads):  # one buffer, so that its copy is one copy
        return heads[:n_tokens * HEADS].view(n_tokens, HEADS, HEAD), heads[
            n_tokens * HEADS:].view(n_tokens, KV_HEADS, HEAD)

    heads, x = tensors(n_tokens * (HEADS + KV_HEADS), HEAD), tensors(n_tokens, HIDDEN)
    heads_out, y = ([torch.empty_like(t) for t in group] for group in (heads, x))
    (q, k), (q_out, k_out) = (zip(*map(split, group)) for group in (heads, heads_out))
    weight = torch.randn(HIDDEN, dtype=torch.bfloat16, device="cuda")
    positions = torch.arange(n_tokens, device="cuda") * 3
    torch.cuda.synchronize()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        session = Session(library, "cuda", torch.cuda.current_device(),
                          torch.cuda.current_stream().cuda_stream)
    rope, rmsnorm = new_works(session, q[0], k[0], positions, x[0], weight)

    def ours_rope(i):
        rope({"q": q[i], "k": k[i]}, {"q": q_out[i], "k": k_out[i]})

    def ours_rmsnorm(i):
        rmsnorm({"x": x[i]}, {"y": y[i]})

    ours_rope(0)
    ours_rmsnorm(0)
    session.wait()
    frequency = THETA ** (-torch.arange(0, HEAD, 2, device="cuda").double() / HEAD)
    angle = positions.double()[:, None] * frequency[None, :]
    exact = [f(torch.cat([angle, angle], 1))[:, None, :] for f in (torch.cos, torch.sin)]
    # bf16 has 8 bits: half a unit is up to 2^-8; frequencies as on the CPU
    half_unit = 2**-8 + 1e-6
    slack = half_unit + 2**-24 * 3 * n_tokens
    must_be_near("rope q", q_out[0].double(), rotate(torch.cat, q[0].double(), *exact), slack)
    must_be_near("rope k", k_out[0].double(), rotate(torch.cat, k[0].double(), *exact), slack)
    x64 = x[0].double()
    norm = x64 * torch.rsqrt(x64.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()
    must_be_near("rmsnorm", y[0].double(), norm, half_unit)

    cos, sin = (table.to(torch.bfloat16) for table in exact)

    torch_rope, torch_rmsnorm = expressions(torch)
    print(f"{'us, graph replays':<22}"
          + "".join(f"{w:>10}" for w in ("ours", "eager", "compiled", "copy")) + "   share")
    print_row(torch, stream, f"rope bf16 x {n_tokens}", n_sets, ours_rope, torch_rope,
              lambda i: (q[i], k[i], cos, sin), lambda i: heads_out[i].copy_(heads[i]))
    print_row(torch, stream, f"rmsnorm bf16 x {n_tokens}", n_sets, ours_rmsnorm, torch_rmsnorm,
              lambda i: (x[i], weight), lambda i: y[i].copy_(x[i]))
    torch.cuda.synchronize()
    rope.free()
    rmsnorm.free()
    session.close()


# ------------------------------------------------------------------- main
def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def default_library():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    built = sorted(glob.glob(os.path.join(root, "build", "*", "lib", "libroped_kernels.so")))
    return built[0] if built else "libroped_kernels.so"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default=default_library())
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        try:
            import numpy
        except ImportError:
            skip("numpy is not installed")
        on_cpu(Library(options.library), numpy, options.tokens or 64)
        return
    try:
        import torch
    except ImportError:
        skip("torch is not installed")
    if not torch.cuda.is_available():
        skip("torch finds no GPU")
    on_cuda(Library(options.library), torch, options.tokens or 4096)


if __name__ == "__main__":
    main()
