"""x + residual and the norm of it, as transformers' own classes compute it in bfloat16: add_rmsnorm with
sum_rounding=type gives their bits. What the order of a float32 sum shows is at most 40 elements in a
million."""

import importlib

import ml_dtypes
import numpy as np
import pytest
from test_safetensors import call, load

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
pytest.importorskip("transformers", reason="no transformers (ROPED_INTEROP_TORCH=1 installs it)")

BF16 = ml_dtypes.bfloat16
# class, its eps, what gives its bits
MODELS = {
    "llama.LlamaRMSNorm": (1e-5, {"rounding": "hf"}),
    "gemma3.Gemma3RMSNorm": (1e-6, {"rounding": "once", "weight_bias": 1}),
    "glm4.Glm4RMSNorm": (1.5625e-07, {"rounding": "hf"}),
}
# of them all rows of a million elements; one row, which a GPU computes in another way; an odd width
N_DRAWS = 8
SHAPES = [(256, 4096), (1, 4096), (1, 16384), (331, 111), (700, 1536)]


def tensor(array):
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def bits(tensor):
    return tensor.detach().view(torch.int16).numpy()


def draw(rng, n, hidden):
    rows = {name: rng.standard_normal((n, hidden)).astype(BF16) for name in ("x", "residual")}
    return {**rows, "weight": rng.normal(1, 0.2, hidden).astype(BF16)}


def model_norm(name, eps, weight):
    package, kind = name.split(".")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    norm = getattr(module, kind)(len(weight), eps)
    norm.weight.data = tensor(weight)
    return norm


def share_off(address, tensors, name, **other):
    """Of y, beside the model's; the residual's bits are the model's in any case."""
    eps, params = MODELS[name]
    total = tensor(tensors["residual"]) + tensor(tensors["x"])
    want = bits(model_norm(name, eps, tensors["weight"])(total))
    out = load(call(address, "add_rmsnorm", tensors, **{"eps": eps, **params, **other}))
    assert (out["residual"].view(np.int16) == bits(total)).all()
    return (out["y"].view(np.int16) != want).mean()


@pytest.mark.parametrize("n, hidden", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_a_model(address, rng, name, n, hidden):
    """A row whose sum of squares is a unit off shows in some fifty of its elements, so several draws are judged together."""
    off = [share_off(address, draw(rng, n, hidden), name, sum_rounding="type") for _ in range(N_DRAWS)]
    assert sum(off) / N_DRAWS <= 40e-6


@pytest.mark.parametrize("name", MODELS)
def test_the_default_is_another_norm(address, rng, name):
    """Of the unrounded sum, as in FlashInfer: a fifth of the elements differ."""
    assert 0.1 < share_off(address, draw(rng, 64, 4096), name) < 0.4
