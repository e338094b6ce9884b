"""Rows of bench_ops as a user of PyTorch would write them, for torch.compile: the same results up to rounding, which
tests/python/test_peers.py checks. A row is compared only if its peer knows each of its parameters."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

TYPES = {
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "mxfp8": torch.float8_e4m3fn}


def value_of(text):
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


class Row:
    """A line of bench_ops --json."""

    def __init__(self, line):
        self.op, self.inputs = line["op"], line["inputs"].split()
        self.dtype = TYPES[line["dtype"]]
        self.params = {name: value_of(value) for name, value in (word.split("=") for word in line["params"].split("&") if word)}
        words = (word.split("=") for word in line["sizes"].split())
        self.sizes = {name: [int(size) for size in text.split(",")] for name, text in words}

    def size(self, name):
        return self.sizes[name][0]


# ------------------------------------------------------------------ norms
def normalised(kind, p, x, weight=None, bias=None, dtype=None):
    """In float32: of rows, or heads, rounded on the way to dtype, the type of x, where the parameters say so."""
    dtype, rounding = dtype or x.dtype, p.get("rounding", "once")
    rows = x.float()
    rows = rows.unflatten(-1, (p["heads"], -1)) if "heads" in p else rows
    if kind == "layer_norm":
        y = F.layer_norm(rows, rows.shape[-1:], eps=1e-5)
    else:
        y = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6)
    y = y.flatten(-2) if "heads" in p else y
    y = y if rounding == "once" else y.to(dtype).float()
    y = y if weight is None else y * weight.float()
    y = y.to(dtype).float() if rounding == "type" else y
    return y if bias is None else y + bias.float()


def summed(p, x, residual, addend=None):
    """What the adding norms normalise, and what they return."""
    is_rounded = p.get("sum_rounding") == "type"

    def step(value):
        return value.to(x.dtype).float() if is_rounded else value

    total = step(x.float() * p["x_scale"]) if "x_scale" in p else x.float()
    total = total if addend is None else step(total + addend.float())
    total = step(total + residual.float())
    return total, total.to(residual.dtype)


def norm(kind):
    def function(p, x, **weights):
        return [normalised(kind, p, x, **weights).to(x.dtype)]

    return function


def add_norm(kind):
    def function(p, x, residual, addend=None, **weights):
        total, returned = summed(p, x, residual, addend)
        return [normalised(kind, p, total, **weights, dtype=x.dtype).to(x.dtype), returned]

    return function


def rmsnorm_quantize(p, x, weight=None):
    return of_norm(p, normalised("rmsnorm", p, x, weight))


def add_rmsnorm_quantize(p, x, residual, weight=None):
    total, returned = summed(p, x, residual)
    y, *scales = of_norm(p, normalised("rmsnorm", p, total, weight, dtype=x.dtype))
    return [y, returned, *scales]


def rmsnorm_add(p, x, residual, weight=None):
    y = normalised("rmsnorm", p, x, weight)
    return [(residual.float() + y.to(x.dtype).float()).to(x.dtype)]


def gated_rmsnorm(p, x, gate, weight=None):
    wide, gate = x.float(), F.silu(gate.float())
    rows = p | ({"heads": x.shape[-1] // p["group_size"]} if "group_size" in p else {})
    if p.get("gate_first"):
        return [normalised("rmsnorm", rows, wide * gate, weight, dtype=x.dtype).to(x.dtype)]
    y = normalised("rmsnorm", rows, wide, weight, dtype=x.dtype)
    return [((y if p.get("rounding", "once") == "once" else y.to(x.dtype).float()) * gate).to(x.dtype)]


# ------------------------------------------------------------------ activations
ACTIVATIONS = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(), "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "sigmoid": torch.sigmoid,
}  # fmt: skip


def activated(p, x=None, gate=None, up=None):
    """In float32."""
    if x is not None and p.get("interleaved"):
        gate, up = x[..., ::2], x[..., 1::2]
    elif x is not None:
        gate, up = x.chunk(2, -1)
    dtype, gate, up = gate.dtype, gate.float(), up.float()
    if p.get("activation") == "swiglu_oai":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        act, up = gate * torch.sigmoid(1.702 * gate), up + 1
    else:
        act = ACTIVATIONS[p.get("activation", "silu")](gate)
    return (act.to(dtype).float() if p.get("rounding") == "type" else act) * up


def act_and_mul(p, **tensors):
    y = activated(p, **tensors)
    return [y.to(next(iter(tensors.values())).dtype)]


def backward(forward):
    """The gradients of all tensors, by torch's own rules."""

    def function(p, grad_y, grad_residual=None, **tensors):
        def first(*values):
            return forward(p, **dict(zip(tensors, values)))[0]

        _, pulled = torch.func.vjp(first, *tensors.values())
        grad_x, *others = pulled(grad_y)
        return [grad_x if grad_residual is None else grad_x + grad_residual, *others]

    return function


def binary_backward(p, grad_output, a, b):
    def reduced(x, like):
        dims = [i for i, size in enumerate(like.shape) if size == 1 and x.shape[i] != 1]
        return (x.sum(dims, keepdim=True) if dims else x).to(like.dtype)

    g, x, y = (tensor.float() for tensor in (grad_output, a, b))
    of_a, of_b = (g / y, -g * (x / y / y)) if p["function"] == "div" else (g * y, g * x)
    return [reduced(of_a, a), reduced(of_b, b)]


# ------------------------------------------------------------------ codes
def e2m1(values):
    """Two codes a byte, to nearest even."""
    m = values.abs()
    code = (m > 0.25).int() + (m >= 0.75) + (m > 1.25) + (m >= 1.75) + (m > 2.5) + (m >= 3.5) + (m > 5)
    code = code + torch.signbit(values) * 8
    return (code[..., ::2] + code[..., 1::2] * 16).to(torch.uint8)


def of_e2m1(code):
    """Without a table, which would be copied to the device in every call."""
    exponent, last = (code >> 1) & 3, (code & 1) / 2
    magnitude = torch.where(exponent > 0, (1 + last) * torch.exp2(exponent - 1.0), last)
    return torch.where(code > 7, -magnitude, magnitude)


def swizzled(scales):
    """Tiles of 128 x 4."""
    n, g = scales.shape
    kind, rows, groups = scales.dtype, -(-n // 128), -(-g // 4)
    padded = F.pad(scales.view(torch.uint8), (0, groups * 4 - g, 0, rows * 128 - n))
    return padded.view(rows, 4, 32, groups, 4).permute(0, 3, 2, 1, 4).reshape(rows * 128, groups * 4).view(kind)


def in_groups(p, y, kind, width):
    """MXFP8, MXFP4, NVFP4."""
    parts = y.unflatten(-1, (-1, width))
    amax = parts.abs().amax(-1)
    if kind == "nvfp4":
        factor = p.get("global_scale", 1)
        scales = (amax / 6 * factor).clamp(max=448.0).to(torch.float8_e4m3fn)
        wide = scales.float()[..., None]
        codes = torch.where(wide > 0, parts * factor / wide, 0)
    else:  # the smallest power of two with which nothing saturates: exponents round up beyond 1.75 * 2^8, or 1.5 * 2^2
        more, most = (0x1FFFFF, 8) if kind == "mxfp8" else (0x3FFFFF, 2)
        scales = (((amax.view(torch.int32) + more) >> 23) - most).clamp(0, 254)
        codes = parts * torch.exp2(127 - scales.float())[..., None]
        scales = scales.to(torch.uint8)
    y = codes.flatten(-2)
    scales = swizzled(scales) if p.get("scale_layout") == "swizzled" else scales
    return [y.clamp(-448.0, 448.0).to(FP8[kind]) if kind in FP8 else e2m1(y), scales]


def rounded(values, kind):
    if kind == "int8":
        return values.round().clamp(-128, 127).to(torch.int8)
    most = torch.finfo(FP8[kind]).max
    return values.clamp(-most, most).to(FP8[kind])


def scale_of(amax, kind):
    if kind == "int8":
        return torch.where(amax > 0, amax / 127, 1.0)
    most = torch.finfo(FP8[kind]).max
    return (amax / most).clamp(min=1 / (512 * most))


def into_codes(p, y, granularity, width=128):
    """Of float32: codes, and scales where these are dynamic."""
    kind = p.get("output_dtype", "e4m3")
    if kind in ("mxfp8", "mxfp4", "nvfp4"):
        return in_groups(p, y, kind, 16 if kind == "nvfp4" else 32)
    if not granularity:
        return [rounded(y / p.get("dequant_scale", 1), kind)]
    if granularity == "block":
        n, h = y.shape
        rows, columns = -(-n // 128), -(-h // 128)
        tiles = F.pad(y, (0, columns * 128 - h, 0, rows * 128 - n)).view(rows, 128, columns, 128)
        scale = scale_of(tiles.abs().amax((1, 3), keepdim=True), kind)
        codes = (tiles / scale).view(rows * 128, columns * 128)[:n, :h]
        return [rounded(codes, kind), scale.view(rows, columns)]
    if granularity == "tensor":
        scale = scale_of(y.abs().amax(), kind)
        return [rounded(y / scale, kind), scale[None]]
    parts = y.unflatten(-1, (-1, width)) if granularity == "group" else y
    scale = scale_of(parts.abs().amax(-1, keepdim=True), kind)
    codes = rounded(parts / scale, kind)
    return [codes.flatten(-2) if granularity == "group" else codes, scale.squeeze(-1)]


def of_norm(p, y):
    granularity = "group" if "group_size" in p else "row"
    return into_codes(p, y, granularity if p.get("dynamic") else "", p.get("group_size"))


def quantize(p, x):
    return into_codes(p, x.float(), p.get("granularity", "row") if p.get("dynamic", True) else "")


def act_and_mul_quantize(p, **tensors):
    return into_codes(p, activated(p, **tensors), p.get("granularity", "row") if p.get("dynamic", True) else "")


def dequantize(p, x, scales=None):
    kind, dtype = p.get("input_dtype", "e4m3"), TYPES[p.get("output_dtype", "f32").upper()]
    if kind in ("mxfp4", "nvfp4"):
        y = of_e2m1(torch.stack((x & 15, x >> 4), -1).flatten(-2).int())
        of_groups = torch.exp2(scales.float() - 127) if kind == "mxfp4" else scales.float()
        return [(y.unflatten(-1, (scales.shape[-1], -1)) * of_groups[..., None]).flatten(-2).to(dtype)]
    y, granularity = x.float(), p.get("granularity", "row")
    if scales is None:
        return [(y * p.get("dequant_scale", 1)).to(dtype)]
    if granularity == "group":
        return [(y.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2).to(dtype)]
    if granularity == "block":
        n, h = y.shape
        return [(y * scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :h]).to(dtype)]
    return [(y * scales[:, None]).to(dtype)]


# ------------------------------------------------------------------ the others
def compare(p, a, b):
    x, y = a.float(), b.float()
    off, size = (x - y).abs(), y.abs()
    beyond, alone = (off > 1e-8 + 1e-5 * size).sum(), (x.isnan() ^ y.isnan()).sum()
    relative = torch.where(off > 0, off / size, 0).amax()
    # floats of one sign are in the order of their bits
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    least = torch.iinfo(kind).min
    bits = [tensor.view(kind).to(torch.int64) for tensor in (a, b)]
    places = [torch.where(code < 0, least - code, code) for code in bits]
    units = (places[0] - places[1]).abs().amax().float()
    cosine = (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
    worst = off.flatten().argmax()
    index = torch.where(off.amax() > 0, worst, -1)
    return [index[None], torch.stack((beyond, alone)), torch.stack((off.amax(), relative, units, cosine))]


def rotation(norms):
    def function(p, q, k, positions, cos, sin, q_weight=None, k_weight=None):
        made = []
        for x, weight in ((q, q_weight), (k, k_weight)):
            y = normalised("rmsnorm", {}, x, weight) if norms else x.float()
            is_neox = p.get("style", "neox") == "neox"
            a, b = y.chunk(2, -1) if is_neox else (y[..., ::2], y[..., 1::2])
            c, s = cos[positions][:, None], sin[positions][:, None]
            turned = a * c - b * s, b * c + a * s
            made.append((torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)).to(x.dtype))
        return made

    return function


# ------------------------------------------------------------------ their tensors
def rows_of(row):
    """Shapes of what the operators of rows take."""
    n, h = row.size("rows"), row.size("h")
    names = ("x", "residual", "addend", "gate", "up", "grad_y", "grad_residual", "a", "b")
    return {name: (n, h) for name in names} | {"weight": (h,), "bias": (h,)}


def halves_of(row):
    return rows_of(row) | {"x": (row.size("rows"), 2 * row.size("h"))}


def heads_of(row):
    n, d = row.size("n"), row.size("d")
    weights = {"q_weight": (d,), "k_weight": (d,)}
    return {"q": (n, row.size("hq"), d), "k": (n, row.size("hk"), d), "positions": (n,)} | weights


def pairs_of(row):
    return {"grad_output": tuple(row.sizes["o"]), "a": tuple(row.sizes["a"]), "b": tuple(row.sizes["b"])}


def codes_of(row):
    n, h, kind = row.size("rows"), row.size("h"), row.params.get("input_dtype", "")
    if kind:
        return {"x": (n, h // 2), "scales": (n, h // (16 if kind == "nvfp4" else 32))}
    granularity = row.params.get("granularity", "row")
    return {"x": (n, h), "scales": {"row": (n,), "group": (n, h // 128), "block": (-(-n // 128), -(-h // 128))}[granularity]}


def type_of(row, name):
    if name == "positions":
        return torch.int64
    if row.op != "dequantize":
        return row.dtype
    if name == "scales":
        return {"mxfp4": torch.uint8, "nvfp4": torch.float8_e4m3fn}.get(row.params.get("input_dtype"), torch.float32)
    return torch.float8_e4m3fn if row.dtype.itemsize > 1 else row.dtype


def made(row, name, shape, device):
    dtype = type_of(row, name)
    if name == "positions":
        return torch.arange(shape[0], device=device) % 8192
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, device=device).to(dtype)
    at = 0x70 if name == "scales" and dtype == torch.uint8 else 0x30  # FP8 without NaN, powers of two near 1
    return torch.randint(at, at + 16, shape, device=device, dtype=torch.uint8).view(dtype)


def tables_of(row, device):
    """Cosines and sines, which a model makes once."""
    d = row.size("d")
    frequencies = 1e4 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.outer(torch.arange(8192, dtype=torch.float64), frequencies)
    return {"cos": angles.cos().float().to(device), "sin": angles.sin().float().to(device)}


class Peer(NamedTuple):
    function: Callable
    knows: str  # parameters; of choices those that are named
    needs: str = "x"  # inputs, besides those that a row names
    shapes: Callable = rows_of


FORMATS = "output_dtype=e4m3|e5m2|int8|mxfp8|mxfp4|nvfp4 dynamic dequant_scale global_scale scale_layout=rows|swizzled"
OF_ACT = "activation=silu|gelu|gelu_tanh|relu|relu2|quick_gelu|sigmoid|swiglu_oai interleaved rounding=once|type"
SUMS = " sum_rounding=once|type x_scale"
PEERS = {
    "rmsnorm": Peer(norm("rmsnorm"), "rounding=once|hf heads"),
    "layer_norm": Peer(norm("layer_norm"), "heads"),
    "add_rmsnorm": Peer(add_norm("rmsnorm"), "rounding=once|hf" + SUMS, "x residual"),
    "add_layer_norm": Peer(add_norm("layer_norm"), SUMS, "x residual"),
    "rmsnorm_add": Peer(rmsnorm_add, "rounding=once|hf", "x residual"),
    "gated_rmsnorm": Peer(gated_rmsnorm, "rounding=once|hf gate_first group_size", "x gate"),
    "rmsnorm_quantize": Peer(rmsnorm_quantize, FORMATS + " rounding=once|hf|type group_size"),
    "add_rmsnorm_quantize": Peer(add_rmsnorm_quantize, FORMATS + " rounding=once|hf|type group_size" + SUMS, "x residual"),
    "rmsnorm_backward": Peer(backward(norm("rmsnorm")), "rounding=once|hf", "grad_y x"),
    "layer_norm_backward": Peer(backward(norm("layer_norm")), "", "grad_y x"),
    "act_and_mul": Peer(act_and_mul, OF_ACT, "", halves_of),
    "act_and_mul_backward": Peer(backward(act_and_mul), OF_ACT, "grad_y", halves_of),
    "act_and_mul_quantize": Peer(act_and_mul_quantize, f"{OF_ACT} {FORMATS} granularity", "", halves_of),
    "quantize": Peer(quantize, FORMATS + " granularity"),
    "dequantize": Peer(dequantize, "input_dtype output_dtype dequant_scale granularity", shapes=codes_of),
    "compare": Peer(compare, "", "a b"),
    "binary_backward": Peer(binary_backward, "function=mul|div", "grad_output", pairs_of),
    "rope": Peer(rotation(False), "style angles", "q", heads_of),
    "qk_rmsnorm_rope": Peer(rotation(True), "style angles", "q", heads_of),
}


def within(words, params):
    """Are all parameters among these, and the choices that are named?"""
    known = {word.partition("=")[0]: word.partition("=")[2] for word in words.split()}
    return all(name in known and (not known[name] or value in known[name].split("|")) for name, value in params.items())


def knows(row):
    """Is there a peer that does all that the row asks for?"""
    return row.op in PEERS and within(PEERS[row.op].knows, row.params)


def names_of(row):
    """The inputs that the row has, as its peer and the operator take them by name."""
    needed = PEERS[row.op].needs.split()
    return needed + [name for name in row.inputs if name not in needed]


def call(row, device):
    """What makes the tensors of a call, of which weights are always the same, and the function that takes them."""
    peer, names = PEERS[row.op], names_of(row)
    shapes, params = peer.shapes(row), row.params
    same = {name: made(row, name, shapes[name], device) for name in names if len(shapes[name]) == 1 and name != "scales"}
    more = tables_of(row, device) if "q" in names else {}

    def new_set():
        return [same.get(name) if name in same else made(row, name, shapes[name], device) for name in names]

    def run(*tensors):
        return peer.function(params, **dict(zip(names, tensors)), **more)

    return new_set, run
