"""Rows of bench_ops as calls of other libraries' kernels, for sweep.py: those that compute what roped does, up to where they
round. Each function makes ready, outside of what is timed, what its library would have at hand (the norm's 1/rms that a
forward call kept, weights in the type that it wants), and returns the call, whose results are those of peers.py. Some write
over their inputs, as the library does unless it is told otherwise."""

import importlib

import peers
import torch

NAMES = {"liger": "liger_kernel.ops", "flashinfer": "flashinfer", "quack": "quack.rmsnorm"}
HALF = (torch.float16, torch.bfloat16)


# ------------------------------------------------------------------ Liger
def casting(p):
    """Where it rounds: after the norm, too, or only at the end."""
    return "llama" if p.get("rounding") == "hf" else "gemma"


def liger_rmsnorm(lib, p, x, weight):
    return lambda: [lib.rms_norm_forward(x, weight, 1e-6, 0.0, casting(p), None)[0]]


def liger_rmsnorm_backward(lib, p, grad_y, x, weight):
    _, _, rstd, block, warps, mode = lib.rms_norm_forward(x, weight, 1e-6, 0.0, casting(p), None)
    return lambda: lib.rms_norm_backward(grad_y, x, weight, rstd, 0.0, mode, block, warps, True, None)


def liger_add_rmsnorm(lib, p, x, residual, weight):
    return lambda: lib.fused_add_rms_norm_forward(x, residual, weight, 1e-6, 0.0, casting(p))[:2]


def liger_layer_norm(lib, p, x, weight, bias):
    return lambda: [lib.layer_norm_forward(x, weight, bias, 1e-5)[0]]


def liger_layer_norm_backward(lib, p, grad_y, x, weight, bias):
    _, _, mean, rstd, _, _ = lib.layer_norm_forward(x, weight, bias, 1e-5)
    return lambda: lib.layer_norm_backward(grad_y, x, weight, bias, mean, rstd)


def liger_act_and_mul(lib, p, x=None, gate=None, up=None):
    if p.get("activation", "silu") == "gelu_tanh":
        a, b = (gate, up) if x is None else (half.contiguous() for half in x.chunk(2, -1))
        return lambda: [lib.geglu_forward(a, b)[2]]
    if x is None:
        return lambda: [lib.swiglu_forward(gate, up)[2]]
    return lambda: [lib.swiglu.swiglu_fused_gate_up_forward(x)[1]]


def liger_act_and_mul_backward(lib, p, grad_y, x=None, gate=None, up=None):
    if x is None:
        return lambda: lib.swiglu_backward(gate, up, grad_y)
    return lambda: [lib.swiglu.swiglu_fused_gate_up_backward(x, grad_y)]


def liger_rope(lib, p, q, k, positions, cos, sin):
    """As Hugging Face's models have it: cosines and sines of the tokens, made once for all layers; here in float32."""
    q, k = (x.transpose(0, 1)[None] for x in (q, k))
    cos, sin = cos[positions], sin[positions]

    def run():
        made = lib.rope_forward(q, k, cos, sin, rotary_dim=q.shape[-1])
        return [x[0].transpose(0, 1) for x in made[:2]]

    return run


# ------------------------------------------------------------------ FlashInfer
def flashinfer_rmsnorm(lib, p, x, weight):
    return lambda: [lib.norm.rmsnorm(x, weight, 1e-6)]


def flashinfer_add_rmsnorm(lib, p, x, residual, weight):
    def run():
        lib.norm.fused_add_rmsnorm(x, residual, weight, 1e-6)
        return [x, residual]

    return run


def flashinfer_layer_norm(lib, p, x, weight, bias):
    weight, bias = weight.float(), bias.float()
    return lambda: [lib.norm.layernorm(x, weight, bias, 1e-5)]


def given(p, x):
    """Codes to be written, and their scale."""
    dtype = torch.float8_e5m2 if p.get("output_dtype") == "e5m2" else torch.float8_e4m3fn
    scale = torch.tensor([p.get("dequant_scale", 1.0)], device=x.device)
    return dtype, scale


def flashinfer_rmsnorm_quantize(lib, p, x, weight):
    dtype, scale = given(p, x)

    def run():
        y = torch.empty_like(x, dtype=dtype)
        lib.norm.rmsnorm_quant(y, x, weight, scale, 1e-6)
        return [y]

    return run


def flashinfer_add_rmsnorm_quantize(lib, p, x, residual, weight):
    dtype, scale = given(p, x)

    def run():
        y = torch.empty_like(x, dtype=dtype)
        lib.norm.fused_add_rmsnorm_quant(y, x, residual, weight, scale, 1e-6)
        return [y, residual]

    return run


def flashinfer_act_and_mul(lib, p, x):
    function = getattr(lib.activation, p.get("activation", "silu") + "_and_mul")
    return lambda: [function(x)]


def flashinfer_rope(lib, p, q, k, positions, cos, sin):
    table, d = torch.cat((cos, sin), -1), q.shape[-1]
    flat, is_neox = [x.flatten(1) for x in (q, k)], p.get("style", "neox") == "neox"

    def run():
        made = lib.rope.apply_rope_with_cos_sin_cache(positions, *flat, d, table, is_neox)
        return [x.unflatten(-1, (-1, d)) for x in made]

    return run


# ------------------------------------------------------------------ QuACK
def quack_rmsnorm(lib, p, x, weight):
    return lambda: [lib.rmsnorm_fwd(x, weight, eps=1e-6)[0]]


def quack_rmsnorm_backward(lib, p, grad_y, x, weight, grad_residual=None):
    rstd = lib.rmsnorm_fwd(x, weight, eps=1e-6, store_rstd=True)[2]
    return lambda: lib.rmsnorm_bwd(x, weight, grad_y, rstd, grad_residual)[:2]


def quack_add_rmsnorm(lib, p, x, residual, weight):
    return lambda: lib.rmsnorm_fwd(x, weight, residual=residual, eps=1e-6)[:2]


def quack_layer_norm(lib, p, x, weight, bias):
    weight, bias = weight.float(), bias.float()
    return lambda: [lib.layernorm_fwd(x, weight, bias, 1e-5)]


def quack_layer_norm_backward(lib, p, grad_y, x, weight, bias):
    _, rstd, mean = lib.layernorm_fwd(x, weight.float(), bias.float(), 1e-5, True, True)
    return lambda: lib.layernorm_bwd(x, weight, grad_y, rstd, mean)


# ------------------------------------------------------------------ which rows
# Of each operator: the inputs that the call takes, and the parameters that it knows, as in peers.py; where it rounds on the
# way is no matter.
ROUNDING = "rounding sum_rounding "
GIVEN = ROUNDING + "output_dtype=e4m3|e5m2 dequant_scale"
CALLS = {
    ("liger", "rmsnorm"): (liger_rmsnorm, "weight", ROUNDING),
    ("liger", "rmsnorm_backward"): (liger_rmsnorm_backward, "weight", ROUNDING),
    ("liger", "add_rmsnorm"): (liger_add_rmsnorm, "weight", ROUNDING),
    ("liger", "layer_norm"): (liger_layer_norm, "weight bias", ""),
    ("liger", "layer_norm_backward"): (liger_layer_norm_backward, "weight bias", ""),
    ("liger", "act_and_mul"): (liger_act_and_mul, "x|gate up", ROUNDING + "activation=silu|gelu_tanh"),
    ("liger", "act_and_mul_backward"): (liger_act_and_mul_backward, "x|gate up", ROUNDING + "activation=silu"),
    ("liger", "rope"): (liger_rope, "k positions", "angles style=neox"),
    ("flashinfer", "rmsnorm"): (flashinfer_rmsnorm, "weight", ROUNDING),
    ("flashinfer", "add_rmsnorm"): (flashinfer_add_rmsnorm, "weight", ROUNDING),
    ("flashinfer", "layer_norm"): (flashinfer_layer_norm, "weight bias", ""),
    ("flashinfer", "rmsnorm_quantize"): (flashinfer_rmsnorm_quantize, "weight", GIVEN),
    ("flashinfer", "add_rmsnorm_quantize"): (flashinfer_add_rmsnorm_quantize, "weight", GIVEN),
    ("flashinfer", "act_and_mul"): (flashinfer_act_and_mul, "x", ROUNDING + "activation=silu|gelu|gelu_tanh"),
    ("flashinfer", "rope"): (flashinfer_rope, "k positions", "angles style"),
    ("quack", "rmsnorm"): (quack_rmsnorm, "weight", ROUNDING),
    ("quack", "rmsnorm_backward"): (quack_rmsnorm_backward, "weight|weight grad_residual", ROUNDING),
    ("quack", "add_rmsnorm"): (quack_add_rmsnorm, "weight", ROUNDING),
    ("quack", "layer_norm"): (quack_layer_norm, "weight bias", ""),
    ("quack", "layer_norm_backward"): (quack_layer_norm_backward, "weight bias", ""),
}


def has(library):
    """Says so if not."""
    try:
        importlib.import_module(NAMES[library])
    except ImportError as error:
        print(f"{library} is not there: {error}")
        return False
    return True


def knows(library, row):
    """Does the library do what the row asks for?"""
    if (library, row.op) not in CALLS or library == "flashinfer" and row.dtype not in HALF:
        return False
    _, inputs, words = CALLS[library, row.op]
    return " ".join(row.inputs) in inputs.split("|") and peers.within(words, row.params)


def call(library, row, device):
    """What makes a call ready for tensors, which peers.call has made."""
    lib, function, names = importlib.import_module(NAMES[library]), CALLS[library, row.op][0], peers.names_of(row)
    more = peers.tables_of(row, device) if "q" in names else {}
    return lambda tensors: function(lib, row.params, **dict(zip(names, tensors)), **more)


def is_same(actual, expected):
    """Up to rounding: of codes and their scales one in a hundred may be another one."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if actual.dtype.itemsize == 1:
        a, b = (tensor.contiguous().view(torch.uint8) for tensor in (actual, expected))
        return bool((a != b).sum() <= a.numel() / 100)
    bound = {torch.float32: 2**-16, torch.float16: 2**-9, torch.bfloat16: 2**-6}[actual.dtype]
    return bool((actual.float() - expected.float()).norm() <= bound * expected.float().norm())


def agrees(ready, function, tensors):
    """Are the call's results those of the function of peers.py?"""
    expected = function(*tensors)  # before the call, which may write over them
    return all(is_same(*pair) for pair in zip(ready(tensors)(), expected, strict=True))
