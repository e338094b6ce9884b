"""A golden file before it is one, and what every family of operators shares.

A family is a module: the cases that it draws, and `OPERATORS`, a function for each operator that
computes results from the inputs of a case.
"""

import dataclasses

import torch

EPS = 1e-6
TOLERANCE = 1e-6  # of the largest magnitude in the row

Tensors = dict[str, torch.Tensor]
Metadata = dict[str, str]

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclasses.dataclass
class Case:
    """One golden file: `kind` is its row of the table that --check prints."""

    kind: str
    name: str
    metadata: Metadata
    inputs: Tensors
    trig_type: torch.dtype = torch.float32  # cos and sin of the float32 angle are computed in it


generator = torch.Generator()


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def random_positions(end: int, n: int) -> torch.Tensor:
    return torch.randint(0, end, (n,), generator=generator)


def fp8_of(case: Case) -> torch.dtype:
    metadata = case.metadata
    return FP8[metadata.get("output_dtype") or metadata.get("cache_dtype", "e4m3")]


def into_fp8(x: torch.Tensor, fp8: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(fp8).max
    return x.clamp(-largest, largest).to(fp8)


def has_equal_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    same_form = a.dtype == b.dtype and a.shape == b.shape
    return same_form and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    )


def difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Of each element, as a share of the largest magnitude in its row."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return torch.tensor(float("inf"))
    found, expected = torch.atleast_1d(found.double()), torch.atleast_1d(expected.double())
    largest = expected.abs().amax(dim=-1, keepdim=True)
    off = torch.where(found == expected, 0.0, (found - expected).abs() / largest)
    return off.nan_to_num(nan=float("inf"))
