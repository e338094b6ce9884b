"""Gradients that torch asks for: right, or refused where a backward reaches them, in words. Never silently none."""

import asyncio
import functools
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from test_torch import CALLS, opcheck, parts, random  # noqa: E402

import roped  # noqa: E402
from roped import ops  # noqa: E402

HAVE = [
    "rope", "qk_rmsnorm_rope", "binary_backward", "act_and_mul", "rmsnorm", "add_rmsnorm", "rmsnorm_add", "gated_rmsnorm",
    "layer_norm", "add_layer_norm",
]  # fmt: skip
HAVE_NONE = sorted(set(CALLS) - set(HAVE))
POSITIONS = torch.tensor([0, 3, 11])


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()


def floats(name):
    """Copies of the tensors of a call whose gradients can be asked for."""
    tensors = {n: t.clone() for n, t in CALLS[name][0].items()}
    return tensors, {n: t for n, t in tensors.items() if t.is_floating_point() and not n.endswith("_cache")}


def total(result):
    return sum(part.float().sum() for part in parts(result) if part.requires_grad)


def near(actual, expected):
    """Within 1e-6 of the largest magnitude."""
    worst = (actual.double() - expected).abs().max().item()
    assert worst <= 1e-6 * expected.abs().max().item(), worst


# ---------------------------------------------------------------- formulas
def rotated(x, cos, sin, style):
    """In float64: pairs of the first elements turn by the angles of their token."""
    half, x = cos.shape[-1], x.double()
    cos, sin, rest = cos[:, None], sin[:, None], x[..., 2 * half :]
    first, second = (x[..., :half], x[..., half : 2 * half]) if style == "neox" else (
        x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2])  # fmt: skip
    one, other = first * cos - second * sin, second * cos + first * sin
    turned = torch.cat([one, other], -1) if style == "neox" else torch.stack([one, other], -1).flatten(-2)
    return torch.cat([turned, rest], -1)


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("width", [8, 6])
def test_rope_beside_float64(style, inverse, width):
    q, k = random(3, 2, 8).requires_grad_(), random(3, 1, 8).requires_grad_()
    angles = torch.rand(3, width // 2, dtype=torch.float64) * 6
    scale = 1.25  # as YaRN has it: not the length is kept, but the direction
    cos, sin = (scale * f(angles.float()) for f in (torch.cos, torch.sin))
    weight = {"q": random(3, 2, 8), "k": random(3, 1, 8)}
    out = ops.rope(q, k, cos=cos, sin=sin, style=style, inverse=inverse, rotary_dim=width)
    (out.q * weight["q"]).sum().add((out.k * weight["k"]).sum()).backward()
    for name, x in {"q": q, "k": k}.items():
        own = x.detach().double().requires_grad_()
        turn = -sin if inverse else sin
        (rotated(own, cos.double(), turn.double(), style) * weight[name]).sum().backward()
        near(x.grad, own.grad)


@pytest.mark.parametrize(
    "params",
    [{"theta": 5e5}, {"scaling": "yarn", "factor": 4.0, "original_max_position": 64}, {"offset": 9, "inverse": True},
     {"scaling": "linear", "factor": 2.0, "rotary_dim": 4}],
    ids=str,
)  # fmt: skip
def test_rope_is_adjoint(params):
    """<rope(x), g> = <x, gradient>, whatever the angles are: rope is linear. The product is taken in float64."""
    x, g = random(3, 2, 8).requires_grad_(), random(3, 2, 8)
    y = ops.rope(x, **params).q
    y.backward(g)
    left, right = ((a.detach().double() * b.double()).sum().item() for a, b in ((y, g), (x, x.grad)))
    assert left == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rope_of_narrow_types(dtype):
    x, g = (random(3, 2, 8).to(dtype) for _ in range(2))
    x.requires_grad_()
    ops.rope(x, positions=POSITIONS).q.backward(g)
    assert x.grad.dtype == dtype
    assert torch.equal(x.grad, ops.rope(g, positions=POSITIONS, inverse=True).q)


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
def test_gradcheck_of_rope(style):
    """float32, as no kernel has float64: a rotation is linear, so differences over a step of 0.5 are exact but for
    rounding, within 1e-4. Twice: the gradient has a gradient."""
    q, k = random(3, 2, 8).requires_grad_(), random(3, 1, 8).requires_grad_()

    def turned(q, k):
        return tuple(ops.rope(q, k, POSITIONS, style=style, rotary_dim=4))

    tolerance = {"eps": 0.5, "atol": 1e-4, "rtol": 1e-4}
    assert torch.autograd.gradcheck(turned, (q, k), **tolerance)
    assert torch.autograd.gradcheck(lambda q: turned(q, None)[0], q, **tolerance)
    assert torch.autograd.gradgradcheck(turned, (q, k), **tolerance)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3))], ids=str)
@pytest.mark.parametrize("function", ["add", "sub", "mul", "div"])
def test_binary_backward_beside_float64(function, shapes):
    """Its gradient is torch's own second derivative of the forward function, in float64."""
    shape = torch.broadcast_shapes(*shapes)
    tensors = {"grad_output": random(*shape), "a": random(*shapes[0]), "b": 1 + torch.rand(shapes[1])}
    of = [random(*shapes[0]), random(*shapes[1])]
    mine = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    torch.autograd.backward([*ops.binary_backward(**mine, function=function)], of)
    own = {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}
    y = getattr(torch, function)(own["a"], own["b"])
    first = torch.autograd.grad(y, (own["a"], own["b"]), own["grad_output"], create_graph=True)
    torch.autograd.backward(first, [tensor.double() for tensor in of])
    for name, tensor in mine.items():
        expected = own[name].grad
        near(tensor.grad, torch.zeros(tensor.shape).double() if expected is None else expected)


def test_binary_backward_of_shapes_alone():
    g = random(3, 4).requires_grad_()
    a, b = ops.binary_backward(g, a_shape=[3, 1], b_shape=[4], function="sub")
    (2 * a.sum() + b.sum()).backward()
    assert torch.equal(g.grad, torch.ones(3, 4))


def beside_float64(call, forward, tensors):
    """Gradients of all tensors beside those of the same in float64, weighted alike."""
    mine = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    own = {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}
    y, expected = parts(call(**mine)), parts(forward(**own))
    of = [random(*part.shape) for part in expected]
    torch.autograd.backward(y, of)
    torch.autograd.backward(expected, [weight.double() for weight in of])
    for name, tensor in mine.items():
        near(tensor.grad, own[name].grad)


ACTIVATIONS = {
    "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.relu, "sigmoid": torch.sigmoid,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "relu2": lambda x: torch.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_fast": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_act_and_mul_beside_float64(name):
    act = ACTIVATIONS[name]
    beside_float64(
        lambda x: ops.act_and_mul(x, activation=name),
        lambda x: act(x[..., :16]) * x[..., 16:],
        {"x": random(3, 2, 32)},
    )
    two = {"gate": random(3, 16), "up": random(3, 16)}
    beside_float64(
        lambda gate, up: ops.act_and_mul(None, gate, up, activation=name), lambda gate, up: act(gate) * up, two
    )


def test_steps_have_the_gradients_of_type():
    of_x = random(3, 32).bfloat16()
    gradients = []
    for rounding in ("steps", "type"):
        x = of_x.clone().requires_grad_()
        ops.act_and_mul(x, activation="gelu_tanh", rounding=rounding).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_norms_beside_float64(bias):
    def norm(x, weight=None):
        gain = None if weight is None else weight + bias
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, 1e-5)

    params = {"eps": 1e-5, "weight_bias": bias}
    tensors = {"x": random(5, 48), "weight": random(48)}
    beside_float64(lambda x, weight: ops.rmsnorm(x, weight, **params), norm, tensors)
    beside_float64(lambda x: ops.rmsnorm(x, eps=1e-5), norm, {"x": random(5, 48)})
    beside_float64(
        lambda x, residual, weight: tuple(ops.add_rmsnorm(x, residual, weight, **params)),
        lambda x, residual, weight: (norm(x + residual, weight), x + residual),
        {"x": random(5, 48), "residual": random(5, 48), "weight": random(48)},
    )


def by_heads(norm, heads, x, weight=None, shift=None):
    """Each of the heads, with its part of the weights."""
    rows = norm(x.unflatten(-1, (heads, -1)), (x.shape[-1] // heads,), None, eps=1e-5).flatten(-2)
    return rows * (1 if weight is None else weight) + (0 if shift is None else shift)


def test_norms_of_heads_beside_float64():
    rms, layer = torch.nn.functional.rms_norm, torch.nn.functional.layer_norm
    rows = {"x": 2 + random(5, 3, 48)}
    for tensors in (rows, rows | {"weight": random(48)}):
        beside_float64(
            lambda x, weight=None: ops.rmsnorm(x, weight, heads=4, eps=1e-5, weight_bias=1.0),
            lambda x, weight=None: by_heads(rms, 4, x, None if weight is None else weight + 1),
            tensors,
        )
    for tensors in (rows, rows | {"shift": random(48)}, rows | {"weight": random(48), "shift": random(48)}):
        beside_float64(
            lambda x, weight=None, shift=None: ops.layer_norm(x, weight, shift, heads=6),
            lambda x, weight=None, shift=None: by_heads(layer, 6, x, weight, shift),
            tensors,
        )


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("gate_first", [False, True])
def test_gated_norms_beside_float64(activation, groups, gate_first):
    act, rms = ACTIVATIONS[activation], torch.nn.functional.rms_norm
    params = {"gate_activation": activation, "gate_first": gate_first, "eps": 1e-5, "group_size": 48 // groups}

    def forward(x, gate, weight=None):
        y = by_heads(rms, groups, x * act(gate) if gate_first else x, weight)
        return y if gate_first else y * act(gate)

    rows = {"x": random(5, 48), "gate": random(5, 48)}
    for tensors in (rows, rows | {"weight": random(48)}):
        beside_float64(lambda x, gate, weight=None: ops.gated_rmsnorm(x, gate, weight, **params), forward, tensors)


def test_rmsnorm_add_beside_float64():
    def forward(x, residual, weight=None):
        return residual + torch.nn.functional.rms_norm(x, (48,), None if weight is None else weight + 1, 1e-5)

    rows = {"x": random(5, 48), "residual": random(5, 48)}
    for tensors in (rows, rows | {"weight": random(48)}):
        beside_float64(
            lambda x, residual, weight=None: ops.rmsnorm_add(x, residual, weight, eps=1e-5, weight_bias=1.0), forward, tensors
        )


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("shape", ["heads", "rows"])
def test_qk_rmsnorm_rope_beside_float64(style, shape):
    angles = torch.outer(POSITIONS.double(), 1e4 ** (-torch.arange(3, dtype=torch.float64) / 3))
    cos, sin = (f(angles).float() for f in (torch.cos, torch.sin))

    def forward(q, k=None, q_weight=None, k_weight=None):
        def one(x, weight):
            heads = x.unflatten(-1, (-1, 8)) if shape == "rows" else x
            turned = rotated(torch.nn.functional.rms_norm(heads, (8,), weight, 1e-5), cos.double(), sin.double(), style)
            return turned.flatten(1) if shape == "rows" else turned

        return one(q, q_weight) if k is None else (one(q, q_weight), one(k, k_weight))

    def call(q, k=None, q_weight=None, k_weight=None):
        params = {"eps": 1e-5, "style": style, "rotary_dim": 6, "head_dim": 8}
        return tuple(parts(ops.qk_rmsnorm_rope(q, k, q_weight, k_weight, cos=cos, sin=sin, **params)))

    q, k = random(3, 4, 8), random(3, 2, 8)
    rows = {"q": q, "k": k} if shape == "heads" else {"q": q.flatten(1), "k": k.flatten(1)}
    beside_float64(call, forward, {"q": rows["q"]})
    beside_float64(call, forward, {"q": rows["q"], "q_weight": random(8)})
    beside_float64(call, forward, rows | {"q_weight": random(8), "k_weight": random(8)})


def qwen3_next(x, gate, weight):
    """Qwen3NextRMSNormGated."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (weight * wide.to(x.dtype) * torch.nn.functional.silu(gate.float())).to(x.dtype)


def mamba2(x, gate, weight):
    """MambaRMSNormGated, of groups of 16."""
    wide = (x.float() * torch.nn.functional.silu(gate.float())).unflatten(-1, (-1, 16))
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).flatten(-2).to(x.dtype)


def llama(x, weight=None):
    y = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return y if weight is None else weight * y


def deepseek_v4(x):
    """DeepseekV4UnweightedRMSNorm."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5).to(x.dtype)


HF = {"eps": 1e-5, "rounding": "hf"}
CLASSES = {
    "qwen3_next": (qwen3_next, lambda *t: ops.gated_rmsnorm(*t, **HF), "x gate weight"),
    "mamba2": (mamba2, lambda *t: ops.gated_rmsnorm(*t, gate_first=True, group_size=16, **HF), "x gate weight"),
    "olmo2": (lambda x, r, weight: r + llama(x, weight), lambda *t: ops.rmsnorm_add(*t, **HF), "x residual weight"),
    "deepseek_v4": (deepseek_v4, lambda x: ops.rmsnorm(x, eps=1e-5, rounding="scale"), "x"),
    "heads": (
        lambda x, weight: weight * llama(x.unflatten(-1, (3, -1))).flatten(-2),
        lambda *t: ops.rmsnorm(*t, heads=3, **HF), "x weight",
    ),
    "gelu_new": (
        lambda x, up: 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0)))) * up,
        lambda *t: ops.act_and_mul(None, *t, activation="gelu_tanh", rounding="steps"), "x gate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_gradients_of_bfloat16_beside_those_of_classes(name):
    """Classes of transformers, whose backward rounds at each step: within two units in the last place of the largest."""
    plain, call, tensors = CLASSES[name]
    mine = [random(*((48,) if tensor == "weight" else (64, 48))).bfloat16().requires_grad_() for tensor in tensors.split()]
    own = [tensor.detach().clone().requires_grad_() for tensor in mine]
    y, expected = call(*mine), plain(*own)
    if name != "deepseek_v4":  # its rsqrt is not ours to the bit
        assert torch.equal(y, expected)
    of = random(64, 48).bfloat16()
    y.backward(of)
    expected.backward(of)
    for a, b in zip(mine, own):
        assert (a.grad.float() - b.grad.float()).abs().max() <= 2**-7 * b.grad.float().abs().max()


@pytest.mark.parametrize("order", ["addends_first", "residual_first"])
def test_norms_of_larger_sums_beside_float64(order):
    params = {"eps": 1e-5, "x_scale": 0.22}
    beside_float64(
        lambda x, residual: tuple(ops.add_rmsnorm(x, residual, **params)),
        lambda x, residual: (torch.nn.functional.rms_norm(0.22 * x + residual, (48,), None, 1e-5), 0.22 * x + residual),
        {"x": random(5, 48), "residual": random(5, 48)},
    )

    scales = {"x_scale": 0.5, "residual_scale": -2.0, "addend_scale": 0.75, "sum_scale": 0.3}

    def every_scale(x, residual, addend):
        z = 0.3 * ((0.5 * x + 0.75 * addend) - 2.0 * residual)
        return torch.nn.functional.rms_norm(z, (48,), None, 1e-5), z

    beside_float64(
        lambda x, residual, addend: tuple(ops.add_rmsnorm(x, residual, addend=addend, eps=1e-5, sum_order=order, **scales)),
        every_scale,
        {"x": random(5, 48), "residual": random(5, 48), "addend": random(5, 48)},
    )

    def added(x, residual, addend, weight):
        z = 0.22 * x + addend + residual
        return torch.nn.functional.layer_norm(z, (48,), weight, None, 1e-5), z

    beside_float64(
        lambda x, residual, addend, weight: tuple(
            ops.add_layer_norm(x, residual, weight, None, addend, sum_order=order, **params)
        ),
        added,
        {"x": random(5, 48), "residual": 2 + random(5, 48), "addend": random(5, 48), "weight": random(48)},
    )


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_layer_norms_beside_float64(bias):
    def norm(x, weight=None, shift=None):
        gain = None if weight is None else weight + bias
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, shift, 1e-5)

    rows, columns = lambda: 2 + random(5, 48), lambda: random(48)  # noqa: E731
    params = {"weight_bias": bias}
    beside_float64(lambda x: ops.layer_norm(x), norm, {"x": rows()})
    beside_float64(lambda x, weight: ops.layer_norm(x, weight, **params), norm, {"x": rows(), "weight": columns()})
    beside_float64(
        lambda x, shift: ops.layer_norm(x, None, shift), lambda x, shift: norm(x, None, shift),
        {"x": rows(), "shift": columns()},
    )  # fmt: skip
    beside_float64(
        lambda x, residual, weight, shift: tuple(ops.add_layer_norm(x, residual, weight, shift, **params)),
        lambda x, residual, weight, shift: (norm(x + residual, weight, shift), x + residual),
        {"x": rows(), "residual": rows(), "weight": columns(), "shift": columns()},
    )


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
def test_gradcheck_of_norms_and_activations():
    """float32: over a step of 0.01 differences are off by 1e-4 of curvature and 1e-5 of rounding, within 5e-3."""
    tolerance = {"eps": 1e-2, "atol": 5e-3, "rtol": 5e-3}
    x, weight = random(3, 8).requires_grad_(), random(8).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.act_and_mul(x, activation="gelu_tanh"), (x,), **tolerance)
    assert torch.autograd.gradcheck(lambda x, w: ops.rmsnorm(x, w, eps=1e-2), (x, weight), **tolerance)
    residual = random(3, 8).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, r, w: tuple(ops.add_rmsnorm(x, r, w, eps=1e-2)), (x, residual, weight), **tolerance
    )
    bias = random(8).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, r, w, b: tuple(ops.add_layer_norm(x, r, w, b, eps=1e-2)), (x, residual, weight, bias), **tolerance
    )
    rows = (x, residual, weight)
    assert torch.autograd.gradcheck(lambda x, r, w: ops.rmsnorm_add(x, r, w, eps=1e-2), rows, **tolerance)
    assert torch.autograd.gradcheck(lambda x, w: ops.rmsnorm(x, w, heads=2, eps=1e-1), (x, weight), **tolerance)
    assert torch.autograd.gradcheck(
        lambda x, w, b: ops.layer_norm(x, w, b, heads=2, eps=1e-1), (x, weight, bias), **tolerance
    )
    for params in ({}, {"group_size": 4}, {"gate_first": True}, {"gate_activation": "sigmoid"}):
        gated = functools.partial(ops.gated_rmsnorm, eps=1e-1, **params)
        assert torch.autograd.gradcheck(gated, rows, **tolerance)
    q, k = random(3, 2, 8).requires_grad_(), random(3, 1, 8).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, k, v, w: tuple(ops.qk_rmsnorm_rope(q, k, v, w, POSITIONS, eps=1e-2)), (q, k, weight, bias), **tolerance
    )


@pytest.mark.parametrize("sum_rounding", ["once", "type"])
@pytest.mark.parametrize("rounding", ["once", "hf"])
def test_a_wide_residual_beside_float64(sum_rounding, rounding):
    """Of float32 beside bfloat16: rounded is what is normalised, and nothing of the gradient that is float32."""
    tensors = {"x": random(5, 48).bfloat16(), "residual": random(5, 48)}
    mine = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    y, z = ops.add_rmsnorm(**mine, eps=1e-5, rounding=rounding, sum_rounding=sum_rounding)
    of = random(5, 48).bfloat16(), random(5, 48)
    torch.autograd.backward((y, z), of)
    at = (z.detach().bfloat16() if sum_rounding == "type" else z.detach()).double().requires_grad_()
    torch.nn.functional.rms_norm(at, (48,), None, 1e-5).backward(of[0].double())
    expected = at.grad + of[1].double()
    near(mine["residual"].grad, expected)
    assert torch.equal(mine["x"].grad, mine["residual"].grad.bfloat16())


def llama_block(weights, x, norm, add_norm, rotate, mlp):
    """A block of Llama: two heads of 16, an MLP of 48."""
    n, h = x.shape
    y = norm(x, weights["norm"])
    q, k, v = (y @ weights["qkv"]).view(n, 3, 2, 16).unbind(1)
    q, k = rotate(q, k)
    heads = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(0, 1) for t in (q, k, v)), is_causal=True
    ).transpose(0, 1)
    y, x = add_norm(heads.reshape(n, h) @ weights["out"], x, weights["post_norm"])
    return x + mlp(y @ weights["gate_up"]) @ weights["down"]


def test_a_llama_block_trains():
    """20 steps of SGD, their losses beside those of plain PyTorch."""
    shapes = {"norm": (32,), "qkv": (32, 96), "out": (32, 32), "post_norm": (32,), "gate_up": (32, 96), "down": (48, 32)}
    start = {name: random(*shape) * (1.0 if len(shape) == 1 else 0.2) for name, shape in shapes.items()}
    x, target = random(10, 32), random(10, 32)

    def norm(x, weight):
        return torch.nn.functional.rms_norm(x, (32,), weight, 1e-6)

    def rotate(q, k):
        angles = torch.outer(torch.arange(10.0), 1e4 ** (-torch.arange(8) / 8.0))
        turned = (rotated(t, angles.cos().double(), angles.sin().double(), "neox").float() for t in (q, k))
        return tuple(turned)

    plain = (norm, lambda a, b, w: (norm(a + b, w), a + b), rotate, lambda z: torch.nn.functional.silu(z[:, :48]) * z[:, 48:])
    mine = (ops.rmsnorm, lambda a, b, w: tuple(ops.add_rmsnorm(a, b, w)), lambda q, k: tuple(ops.rope(q, k)), ops.act_and_mul)
    losses = []
    for functions in (plain, mine):
        weights = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        optimizer, found = torch.optim.SGD(weights.values(), lr=0.05), []
        for _ in range(20):
            loss = (llama_block(weights, x, *functions) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[1][-1] < 0.9 * losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_a_compiled_function():
    compiled = torch.compile(lambda x: ops.rope(x, theta=5e5).q.square().sum(), fullgraph=True, backend="aot_eager")
    x = random(4, 2, 8).requires_grad_()
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # a rotation keeps lengths


@pytest.mark.parametrize("name", HAVE)
def test_opcheck_with_gradients(name):
    opcheck(name, "cpu", needs_gradient=True)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize("name", HAVE)
def test_checkpoints_compute_a_call_again(name):
    """As Hugging Face's gradient_checkpointing has it: what is saved can be unpacked once."""
    found = {}
    for is_again in (False, True):
        tensors, wanted = floats(name)
        for tensor in wanted.values():
            tensor.requires_grad_()
        call = functools.partial(getattr(ops, name), **tensors, **CALLS[name][1])
        result = torch.utils.checkpoint.checkpoint(call, use_reentrant=False) if is_again else call()
        total(result).backward()
        found[is_again] = {n: t.grad for n, t in wanted.items() if t.grad is not None}
    assert found[True].keys() == found[False].keys() != set()
    assert all(torch.equal(gradient, found[False][n]) for n, gradient in found[True].items())


@pytest.mark.parametrize("name", HAVE_NONE)
def test_a_backward_without_a_gradient(name):
    """Of every tensor on its own: the call runs, and the backward says which operator, and what to do."""
    for one in floats(name)[1]:
        tensors, _ = floats(name)
        plain = getattr(ops, name)(**{n: t.clone() for n, t in tensors.items()}, **CALLS[name][1])
        tensors[one].requires_grad_()
        for _ in range(2):  # the second is one that was prepared
            result = getattr(ops, name)(**tensors, **CALLS[name][1])
            made = [(a, b) for a, b in zip(parts(result), parts(plain)) if a.is_floating_point()]
            assert all(torch.equal(a.float(), b.float()) for a, b in made)
            with pytest.raises(roped.Error, match=rf"^roped\.ops\.{name} has no gradient: .*no_grad.*detach"):
                total(result).backward()


def test_angles_have_no_gradient():
    q, cos, sin = random(3, 2, 8).requires_grad_(), torch.ones(3, 4).requires_grad_(), torch.zeros(3, 4)
    with pytest.raises(roped.Error, match="rope has gradients of q and k, but none of its angles"):
        ops.rope(q, cos=cos, sin=sin).q.sum().backward()


@pytest.mark.parametrize("name", HAVE_NONE)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_inference_with_parameters(name, backend):
    """Weights that require gradients, and nobody asks: eager, compiled, without gradients and in inference mode.
    A compiler is asked for each operator where they are recorded, and once where not: what it then traces is what
    test_compile has of each."""
    params = CALLS[name][1]
    function = lambda given: parts(getattr(ops, name)(**given, **params))  # noqa: E731
    want = function(floats(name)[0])
    if backend:
        function = torch.compile(function, fullgraph=True, backend=backend)
    modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    for mode in modes[:1] if backend and name != HAVE_NONE[0] else modes:
        tensors, own = floats(name)
        for tensor in own.values():
            tensor.requires_grad_()
        with mode():
            found = function(tensors)
        assert all(torch.equal(a.detach().float(), b.float()) for a, b in zip(found, want, strict=True))
        assert any(part.requires_grad for part in found) == (mode is torch.enable_grad)


def test_a_compiled_backward_without_a_gradient():
    """A compiler traces the backward with the call, which must not refuse then."""
    def function(x):
        return ops.rmsnorm_backward(x, x).grad_x * 2

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in [3, 5]:
        y = compiled(random(n, 32).requires_grad_())
        with pytest.raises(roped.Error, match=r"roped\.ops\.rmsnorm_backward has no gradient"):
            y.sum().backward()


def test_opcheck_of_what_is_registered():
    for name in HAVE_NONE:
        opcheck(name, "cpu", needs_gradient=True, test_utils=("test_schema", "test_autograd_registration"))


def test_places_that_are_recorded():
    """What out= overwrites was made by torch: its gradient is no longer that of what is there."""
    w, x = random(3, 2, 8).requires_grad_(), random(3, 2, 8)
    for _ in range(3):  # the first is prepared, the next are not
        y = w * 2
        ops.rope(x, out={"q": y})
        assert torch.equal(y, ops.rope(x).q)
        y.sum().backward()
        assert not w.grad.any()
        ops.rope(x, out={"q": torch.empty_like(x)})
    y = random(3, 8).requires_grad_() * 2
    with torch.no_grad():
        ops.rmsnorm(x[:, 0], out=y)
    x = random(3, 8).requires_grad_()
    y = torch.empty(3, 8)
    ops.rmsnorm(x, out=y)
    y.sum().backward()
    near(x.grad, torch.autograd.functional.vjp(lambda t: torch.nn.functional.rms_norm(t, (8,), None, 1e-6),
                                               x.detach().double(), torch.ones(3, 8).double())[1])  # fmt: skip
    ops.rmsnorm_backward(x, x, out={"grad_x": y})
    with pytest.raises(roped.Error, match=r"roped\.ops\.rmsnorm_backward has no gradient"):
        y.sum().backward()


# ---------------------------------------------------------------- servers
def test_results_of_a_server(client):
    x, weight = random(3, 8), torch.nn.Parameter(torch.ones(8))
    want = client.layer_norm(x)
    y = client.layer_norm(x, weight)
    assert torch.equal(y, want)
    with pytest.raises(roped.Error, match=r"^roped\.Client\.layer_norm has no gradient; roped\.ops\.layer_norm, in this"):
        (y * 2).sum().backward()
    with pytest.raises(roped.Error, match=r"^roped\.Client\.rmsnorm_backward has no gradient: "):
        client.rmsnorm_backward(x, x, weight).grad_x.sum().backward()
    q = x[:, None].requires_grad_()
    with pytest.raises(roped.Error, match=r"^roped\.Client\.rope has no gradient; roped\.ops\.rope, in this process"):
        client.rope(q).q.sum().backward()
    with torch.no_grad():
        assert not client.layer_norm(x, weight).requires_grad
    assert not client.layer_norm(x.detach()).requires_grad
    result = client.add_rmsnorm(x, x, weight)
    assert result.y.requires_grad and result.residual.requires_grad
    assert isinstance(client.layer_norm(np.ones((2, 4), np.float32)), np.ndarray)


def test_results_of_a_server_awaited(server):
    """Whether gradients are recorded is asked where the call is made, not on the thread that runs it."""

    async def run():
        async with roped.AsyncClient(server) as client:
            x = random(3, 8).requires_grad_()
            with torch.no_grad():
                assert not (await client.rmsnorm(x)).requires_grad
            with torch.inference_mode():
                assert not (await client.rmsnorm(x)).requires_grad
            y = await client.rmsnorm(x)
            with pytest.raises(roped.Error, match=re.escape("roped.Client.rmsnorm has no gradient")):
                y.sum().backward()

    asyncio.run(run())
