"""Operators of elements: the gradients of sums, products and quotients, and comparisons."""

from collections.abc import Iterator

import torch

from case import TYPES, Case, Tensors, randn

# shapes of a and b
BROADCASTS = [
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (1, 1, 4, 5)),
    ((2, 3, 4, 5), (2, 3, 4, 1)),
    ((3, 5, 4), (1, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((64, 96), (96,)),
    ((96,), (64, 96)),
    ((4, 1, 8), (1, 6, 8)),
    ((1,), (7, 9)),
    ((), (3,)),
    ((33, 257), (33, 1)),
    ((2, 2, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1)),
]
FUNCTIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


def draw_gradients() -> Iterator[Case]:
    for function in FUNCTIONS:
        for i, (a_shape, b_shape) in enumerate(BROADCASTS):
            for dtype in ("f32", "bf16"):
                a = randn(*a_shape).to(TYPES[dtype])
                b = randn(*b_shape).to(TYPES[dtype])
                if function == "div":
                    b = b + 0.5 * torch.sign(b)  # away from zero
                grad_output = randn(*torch.broadcast_shapes(a_shape, b_shape)).to(TYPES[dtype])
                inputs = {"a": a, "b": b, "grad_output": grad_output}
                metadata = {"op": "binary_backward", "function": function}
                name = f"binary_backward_{function}_{i}_{dtype}"
                yield Case(f"binary_backward_{function}", name, metadata, inputs)


def draw_compares() -> Iterator[Case]:
    """Of one type; and NaN, Inf and zeros in one or both."""
    for dtype in ("f32", "f16", "bf16"):
        b = randn(5, 100)
        a = b + 0.01 * randn(5, 100)
        metadata = {"op": "compare", "atol": "0.001", "rtol": "0.02"}
        yield Case("compare", f"compare_{dtype}", metadata, {"a": a.to(TYPES[dtype]), "b": b.to(TYPES[dtype])})
    nan, inf = float("nan"), float("inf")
    a = torch.tensor([[1.0, nan, inf, -inf, 0.0, -0.0, nan, 3.0]])
    b = torch.tensor([[1.0, nan, inf, -inf, 1.0, 0.0, 2.0, 3.5]])
    yield Case("compare", "compare_non_finite_f32", metadata, {"a": a, "b": b})


def binary_backward(case: Case) -> Tensors:
    a, b = (case.inputs[name].double().requires_grad_() for name in ("a", "b"))
    FUNCTIONS[case.metadata["function"]](a, b).backward(case.inputs["grad_output"].double())
    return {"grad_a.expected": a.grad.float(), "grad_b.expected": b.grad.float()}


def number_of(x: torch.Tensor) -> torch.Tensor:
    """Places of numbers among those of their type; 0 and -0 are one."""
    bits = x.view(torch.int32 if x.dtype == torch.float32 else torch.int16).long()
    least = torch.iinfo(torch.int32 if x.dtype == torch.float32 else torch.int16).min
    return torch.where(bits < 0, least - bits, bits)


def compare(case: Case) -> Tensors:
    """In float32, but for the cosine."""
    dtype = case.inputs["a"].dtype
    atol, rtol = (float(case.metadata[name]) for name in ("atol", "rtol"))
    a, b = (case.inputs[name].float().flatten() for name in "ab")
    alone = a.isnan() != b.isnan()
    same = (a == b) | (a.isnan() & b.isnan())
    skipped = same | alone
    distance = torch.where(skipped, 0.0, (a - b).abs())
    share = torch.where(skipped, 0.0, torch.where(distance.isinf(), distance, distance / b.abs()))
    beyond = ~torch.isclose(a, b, atol=atol, rtol=rtol, equal_nan=True) & ~alone
    steps = (number_of(a.to(dtype)) - number_of(b.to(dtype))).abs().masked_fill(skipped, 0)
    finite = a.isfinite() & b.isfinite()
    cosine = torch.nn.functional.cosine_similarity(a[finite].double(), b[finite].double(), dim=0)
    index = alone.int().argmax() if alone.any() else distance.argmax()
    numbers = [x.max().float() for x in (distance, share, steps)]
    return {
        "index.expected": index.reshape(1),
        "counts.expected": torch.stack([beyond.sum(), alone.sum()]),
        "stats.expected": torch.stack([*numbers, cosine.float()]),
    }


OPERATORS = {
    "binary_backward": binary_backward,
    "compare": compare,
}
