#!/usr/bin/env python3
"""Makes the golden files from PyTorch, Hugging Face transformers and torchao.

    make_golden.py --check [DIR]   compare the files in DIR with what is computed
    make_golden.py --out DIR       write them

--check looks in this folder unless DIR is given. Versions: requirements.txt.

Inputs are drawn from one generator, seeded once, through all cases in the
order of `draw_cases`: what is drawn, and when, decides the bytes of every file
after it, so new cases go to the end.

Results are computed in float64 from the inputs and rounded once to float32,
or to FP8. Angles are not: cos and sin are the float32 numbers that
transformers gives its models, but for rope_longpos: float64 of the float32
angle.

Bytes are equal on x86-64 with AVX-512. With AVX2 PyTorch rounds one power of
rope_dims_*_48 to its neighbour. Without either it also draws other normal
numbers, in the last place: `--inputs DIR` reads inputs from the files in DIR
instead, and only results are compared.
"""

import argparse
import collections
import functools
import json
import pathlib
import sys
from collections.abc import Callable

import safetensors
import safetensors.torch
import torch
import torchao
import transformers

import activations
import codes
import elements
import heads
import norm_pairs
import norms
import rotary
from case import TOLERANCE, Case, Metadata, Tensors, difference, generator, has_equal_bytes

HERE = pathlib.Path(__file__).parent
SEED = 20261120
LARGE = 64_000  # bytes of rows; a file with more keeps the first few


def draw_cases() -> list[Case]:
    generator.manual_seed(SEED)
    cases = [
        *rotary.draw_scalings(),
        *rotary.draw_widths(),
        *rotary.draw_ragged(),
        *rotary.draw_long_positions(),
        *norms.draw_norms(),
        *rotary.draw_quantized(),
        *elements.draw_gradients(),
    ]
    state = generator.get_state()
    for draw in (
        rotary.draw_rows_of_positions,
        norms.draw_quantized_norms,
        heads.draw_heads,
        norms.draw_model_norms,
        norms.draw_quantized_sums,
        norms.draw_layer_norms,
        activations.draw_activations,
        codes.draw_quantized_rows,
        activations.draw_activation_gradients,
        functools.partial(norms.draw_norm_gradients, "rmsnorm_backward", 0),
        functools.partial(norms.draw_norm_gradients, "layer_norm_backward", 3),
        elements.draw_compares,
        codes.draw_dequantized_rows,
        codes.draw_micro_rows,
        codes.draw_dequantized_micro_rows,
        norm_pairs.draw_norm_pairs,
        norms.draw_sums,
        codes.draw_coded_activations,
        norms.draw_coded_norms,
        norms.draw_any_sums,
        norms.draw_heads,
        activations.draw_rare_activations,
        functools.partial(norms.draw_any_sums, norms.SUMS_OF_HEADS),
    ):
        generator.set_state(state)  # further groups begin here, so each may change alone
        cases += draw()
    return cases


OPERATORS: dict[str, Callable[[Case], Tensors]] = {
    **rotary.OPERATORS,
    **heads.OPERATORS,
    **norms.OPERATORS,
    **norm_pairs.OPERATORS,
    **activations.OPERATORS,
    **codes.OPERATORS,
    **elements.OPERATORS,
}
N_ROWS_KEPT = {"rope": 4, "rope_quantize": 4, "rmsnorm": 2, "add_rmsnorm": 2}
HAVE_NO_ROWS = ("weight", "grad_weight.expected", "bias", "grad_bias.expected", "cos_sin_cache", "indptr", "offsets")


def make(case: Case) -> Tensors:
    """All tensors of a file: inputs and results, large ones cut to their first rows."""
    tensors = {**case.inputs, **OPERATORS[case.metadata["op"]](case)}
    by_row = [name for name in tensors if name not in HAVE_NO_ROWS]
    can_be_cut = case.metadata["op"] in N_ROWS_KEPT and "indptr" not in tensors
    if can_be_cut and sum(tensors[name].nbytes for name in by_row) > LARGE:
        for name in by_row:
            tensors[name] = tensors[name][: N_ROWS_KEPT[case.metadata["op"]]]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def path_of(folder: pathlib.Path, case: Case) -> pathlib.Path:
    return folder / f"{case.name}.safetensors"


def read(path: pathlib.Path) -> tuple[Metadata, Tensors]:
    with safetensors.safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def compare_file(case: Case, path: pathlib.Path) -> tuple[bool, float, list[str]]:
    """Whether the file has equal bytes, its largest difference, what is wrong with it."""
    if not path.exists():
        return False, float("inf"), ["is not there"]
    metadata, stored = read(path)
    made = make(case)
    wrong = []
    if {**metadata, "source": ""} != {**case.metadata, "source": ""}:
        wrong.append(f"has metadata {metadata}, expected {case.metadata}")
    if stored.keys() != made.keys():
        return False, float("inf"), [*wrong, f"has {sorted(stored)}, expected {sorted(made)}"]
    worst, n_equal = 0.0, 0
    for name, tensor in made.items():
        off, equal = difference(stored[name], tensor), has_equal_bytes(stored[name], tensor)
        is_exact = name in case.inputs or tensor.dtype != torch.float32
        if not equal and (is_exact or bool((off > rotary.allowed_difference(case, name, made)).any())):
            wrong.append(f"{name} differs by {off.max():.3g} of its row's largest")
        worst, n_equal = max(worst, float(off.max())), n_equal + equal
    return n_equal == len(made) and metadata == case.metadata, worst, wrong


def difference_to_module(case: Case) -> float:
    """Between a norm here and that of transformers, which computes in float32."""
    return heads.difference_to_qwen3(case) if heads.is_of_qwen3(case) else norms.difference_to_model(case)


def check(cases: list[Case], folder: pathlib.Path) -> bool:
    """Prints the table; false where something is beyond tolerance."""
    rows: dict[str, list[tuple[bool, float]]] = collections.defaultdict(list)
    wrong: list[str] = []
    from_modules = 0.0
    for case in cases:
        path = path_of(folder, case)
        equal, worst, faults = compare_file(case, path)
        rows[case.kind].append((equal, worst))
        wrong += [f"{path.name} {fault}" for fault in faults]
        if case.kind.endswith("rmsnorm") or heads.is_of_qwen3(case):
            off = difference_to_module(case)
            from_modules = max(from_modules, off)
            if off > TOLERANCE:
                wrong.append(f"{path.name} is {off:.3g} from the norm of transformers")
    known = {path_of(folder, case) for case in cases}
    wrong += [
        f"{path.name} is made by no case"
        for path in sorted(set(folder.glob("*.safetensors")) - known)
    ]
    print(f"{'kind':<22} {'files':>5} {'equal bytes':>11} {'largest difference':>18}")
    for kind, results in rows.items():
        n_equal, worst = sum(equal for equal, _ in results), max(worst for _, worst in results)
        print(f"{kind:<22} {len(results):>5} {n_equal:>11} {worst:>18.2g}")
    print(f"The norms of Llama, Gemma and Qwen 3, in float32, differ by {from_modules:.2g}")
    for line in wrong:
        print(f"WRONG {line}")
    return not wrong


def write_file(path: pathlib.Path, metadata: Metadata, tensors: Tensors) -> None:
    """As safetensors does, but with the metadata sorted: it writes them in random order."""
    packed = safetensors.torch.save(tensors)
    data = 8 + int.from_bytes(packed[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(packed[8:data])}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + packed[data:])


def write(cases: list[Case], folder: pathlib.Path) -> None:
    """Leaves files alone that have these tensors and metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if not compare_file(case, path_of(folder, case))[0]:
            write_file(path_of(folder, case), case.metadata, make(case))


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes or checks the golden files.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", nargs="?", const=HERE, type=pathlib.Path, metavar="DIR")
    action.add_argument("--out", type=pathlib.Path, metavar="DIR")
    parser.add_argument(
        "--inputs", type=pathlib.Path, metavar="DIR", help="read inputs from the files there"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = draw_cases()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, torchao {torchao.__version__}"
    print(f"{versions}, {torch.backends.cpu.get_cpu_capability()}, {len(cases)} files")
    if args.inputs:
        for case in cases:
            stored = read(path_of(args.inputs, case))[1]
            case.inputs = {name: stored[name] for name in case.inputs}
    if args.out:
        write(cases, args.out)
        return 0
    return 0 if check(cases, args.check) else 1


if __name__ == "__main__":
    sys.exit(main())
