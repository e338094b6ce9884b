"""torch's own checks of the operators, its compiler, and a model; gradients: test_gradients.py."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")

from conftest import to_torch  # noqa: E402

import roped  # noqa: E402
from roped import ops  # noqa: E402
from roped._functions import TABLE  # noqa: E402
from roped._operators import OPERATORS  # noqa: E402


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


# of `ropectl sample`, where an operator has such dimensions
SIZES = {"n": "3", "hq": "4", "hk": "2", "d": "32", "...rows": "3", "h": "64", "...a": "3,1", "...b": "64", "...o": "3,64"}
# what it leaves out, where parameters say the shape
MORE = {"dequantize": {"scales": torch.ones(3)}}


def sample(name, folder):
    """The tensors that roped itself makes for a call of the operator; codes are U8, as opcheck multiplies what is
    updated, which torch cannot in FP8."""
    program = Path(os.environ["ROPED_TEST_BIN"]).with_name("ropectl")
    symbols = {symbol for tensor in OPERATORS[name]["inputs"] for symbol in re.findall(r"[.\w]+", tensor["shape"])}
    sizes = [f"{symbol.lstrip('.')}={size}" for symbol, size in SIZES.items() if symbol in symbols]
    file = Path(folder) / "sample.npz"
    subprocess.run([program, "sample", name, *sizes, "-o", file], check=True, capture_output=True)
    with np.load(file) as arrays:
        return {key: to_torch(array) for key, array in arrays.items()}


def other_values(param):
    if param["kind"] == "bool":
        return [not param["default"]]
    if param["kind"] == "float":
        return [2.0 * (param.get("default") or 0.25)]
    return [choice for choice in param["choices"] if choice != param.get("default")]


def parameters_of(name, tensors):
    """One of each kind, with another value than its default: the first that such a call may have."""
    chosen = {}
    for kind in ("float", "choice", "dtype", "bool"):
        params = [param for param in TABLE[name].params.values() if param["kind"] == kind]
        for param, value in ((param, value) for param in params for value in other_values(param)):
            try:
                getattr(ops, name)(**on("cpu", tensors), **chosen, **{param["name"]: value})
            except roped.Error:
                continue
            chosen[param["name"]] = value
            break
    return chosen


def calls():
    """Tensors and parameters for each operator, of what its descriptor says."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: sample(name, folder) | MORE.get(name, {}) for name in TABLE}
    return {name: (tensors, parameters_of(name, tensors)) for name, tensors in made.items()}


def on(device, tensors):
    """Copies, of which the updated ones may be written."""
    return {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}


CALLS = calls()


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()


def parts(result):
    return [part for part in (result if isinstance(result, tuple) else (result,)) if part is not None]


def opcheck(name, device, needs_gradient=False, **named):
    ops.rmsnorm(random(1, 4))  # registers
    tensors, params = CALLS[name]
    own = on(device, tensors)
    if needs_gradient:
        own = {n: t.requires_grad_(t.is_floating_point() and not n.endswith("_cache")) for n, t in own.items()}
    arguments = [own.get(tensor) for tensor in TABLE[name].tensors]
    while arguments[-1] is None:
        arguments.pop()
    torch.library.opcheck(getattr(torch.ops.roped, name).default, tuple(arguments), params, **named)


def compiled_beside_eager(name, device, backend):
    tensors, params = CALLS[name]
    function = getattr(ops, name)
    compiled = torch.compile(lambda given: parts(function(**given, **params)), fullgraph=True, backend=backend)
    want = parts(function(**on(device, tensors), **params))
    for one, other in zip(compiled(on(device, tensors)), want, strict=True):
        np.testing.assert_array_equal(*(t.contiguous().view(torch.uint8).cpu().numpy() for t in (one, other)))


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    opcheck(name, "cpu")


@pytest.mark.parametrize("name", CALLS)
def test_compile(name):
    compiled_beside_eager(name, "cpu", "aot_eager")


def test_calls_without_the_first_tensor():
    """Gate and up are what act_and_mul takes instead of x."""
    gate, up = random(3, 32), random(3, 32)
    want = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(ops.act_and_mul(gate=gate, up=up), want)
    torch.testing.assert_close(ops.act_and_mul(None, gate, up, out=torch.empty(3, 32)), want)
    compiled = torch.compile(lambda g, u: ops.act_and_mul(gate=g, up=u), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(gate, up), want)
    torch.library.opcheck(torch.ops.roped.act_and_mul.default, (None, gate, up))
    with pytest.raises(TypeError, match="tensor 'x': NoneType"):
        ops.act_and_mul()


def test_compile_with_dynamic_shapes():
    compiled = torch.compile(lambda x: ops.rmsnorm(x) * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in [3, 5, 9]:
        x = random(n, 32)
        torch.testing.assert_close(compiled(x), ops.rmsnorm(x) * 2)


def test_tracers_see_calls():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = random(3, 32)
    want = ops.rmsnorm(x)  # prepared: the next one need not pass torch
    traced = make_fx(lambda x: ops.rmsnorm(x))(x)
    assert "torch.ops.roped.rmsnorm" in traced.code
    torch.testing.assert_close(traced(x), want)
    torch.testing.assert_close(torch.vmap(lambda x: ops.rmsnorm(x))(x[None])[0], want)


def test_places_in_a_compiled_function():
    def function(x, y):
        ops.rmsnorm(x, out=y)
        return y * 2

    x, y = random(3, 32), torch.empty(3, 32)
    for is_dynamic in (False, True):
        doubled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=is_dynamic)(x, y.zero_())
        torch.testing.assert_close(y, ops.rmsnorm(x))
        torch.testing.assert_close(doubled, y * 2)


@pytest.mark.parametrize("way", ["plain", "recorded", "compiled"])
def test_places_that_do_not_fit(way):
    """Whoever watches a call, out= takes what the call makes: torch's own copies would convert and repeat it."""
    q, positions = random(3, 2, 8), torch.arange(3)
    refused = [({"q": random(3, 2, 8).half()}, "F16 of"), ({"q": random(2, 3, 2, 8)}, r"expected F32 of \[3, 2, 8\]"),
               ({"k": random(3, 2, 8)}, "output 'k': not made by this call"), ({"x": q}, "output 'x': not made")]  # fmt: skip
    for places, words in refused:
        def function(q, places):
            return ops.rope(q, positions=positions, out=places).q

        if way == "compiled":
            function = torch.compile(function, fullgraph=True, backend="eager")
        # a compiler says in its own words that it saw an exception
        expected = {"expected_exception": Exception} if way == "compiled" else {"expected_exception": ValueError, "match": words}
        with pytest.raises(**expected):
            function(q.clone().requires_grad_(way == "recorded"), places)


def test_parameters_and_devices():
    weight = torch.nn.Parameter(torch.ones(8), requires_grad=False)
    assert ops.rmsnorm(random(2, 8), weight).shape == (2, 8)
    with pytest.raises(TypeError, match="one library"):
        ops.rmsnorm(random(2, 8), np.ones(8, np.float32))
    with pytest.raises(ValueError, match="of the inputs' device"):
        ops.rmsnorm(random(2, 8), out=torch.empty(2, 8, device="meta"))


def rotate(q, k, cos, sin, *_):
    """As llama.apply_rotary_pos_emb."""
    batch, _, n, width = q.shape
    half = width // 2
    rows = [t.transpose(1, 2).reshape(batch * n, -1, width) for t in (q, k)]
    cos, sin = (t[..., :half].expand(batch, n, half).reshape(batch * n, half) for t in (cos, sin))
    return tuple(t.reshape(batch, n, -1, width).transpose(1, 2) for t in ops.rope(*rows, cos=cos, sin=sin))


def tokens_of_a_model(device, is_compiled, monkeypatch):
    """What a small random Llama writes by itself, what it writes with our rope and RMSNorm, and how often they ran."""
    transformers = pytest.importorskip("transformers", reason="no transformers")
    from transformers.models.llama import modeling_llama as llama

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=500, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    model = llama.LlamaForCausalLM(config).eval().to(device)
    prompt = torch.randint(3, 500, (2, 7)).to(device)
    n_calls = {"rotate": 0, "norm": 0}

    def tokens():
        n = 4 if is_compiled else 12  # a compiler is asked again for each length of the cache
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, do_sample=False,
                              pad_token_id=0)  # fmt: skip

    def counted_rotate(*arguments):
        n_calls["rotate"] += 1
        return rotate(*arguments)

    def norm(self, x):
        n_calls["norm"] += 1
        return ops.rmsnorm(x, self.weight, eps=self.variance_epsilon, rounding="hf")

    with torch.no_grad():
        want = tokens()
        monkeypatch.setattr(llama, "apply_rotary_pos_emb", counted_rotate)
        monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
        if is_compiled:
            monkeypatch.setattr(model, "forward", torch.compile(model.forward, backend="aot_eager"))
        return want, tokens(), n_calls


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_model(is_compiled, monkeypatch):
    """A small random Llama writes the same tokens with our rope and RMSNorm as with its own."""
    want, tokens, n_calls = tokens_of_a_model("cpu", is_compiled, monkeypatch)
    assert torch.equal(tokens, want) and all(n_calls.values())
