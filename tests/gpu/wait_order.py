#!/usr/bin/env python3
"""No kernel may touch memory before it has waited for the kernel before it
(griddepcontrol.wait, kernels/cuda/device/stream.cuh): the assembler is free to
move loads of memory that it takes for unchanging (ld.global.nc) in front of
the wait. Reads the machine code with cuobjdump and follows every path from a
kernel's entry to its wait.

    tests/gpu/wait_order.py libroped_kernels.so
"""

import re
import subprocess
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
TARGET = re.compile(r"\b(?:BRA|CALL)\S*\s.*?(0x[0-9a-f]+)")
MEMORY = re.compile(r"\b(LDG|STG|LD|ST|ATOM|ATOMG|RED)\b")
WAIT = "ACQBULK"
FIRST_CHIP = 90  # older ones start no kernel before the one before it has ended


def early_access(code):
    """The first access to memory on a path without the wait, or None."""
    place = {int(at, 16): i for i, (at, _) in enumerate(code)}
    seen, todo = set(), [0]
    while todo:
        i = todo.pop()
        while i < len(code) and i not in seen:
            seen.add(i)
            at, text = code[i]
            if WAIT in text:
                break
            if MEMORY.search(text):
                return f"{at}: {text}"
            target = TARGET.search(text)
            if target:
                todo.append(place.get(int(target[1], 16), len(code)))
            is_certain = not text.startswith("@")
            if is_certain and re.match(r"(BRA|EXIT|RET)\b", text):
                break
            i += 1
    return None


def main(library):
    sass = subprocess.run(["cuobjdump", "-sass", library], capture_output=True,
                          text=True, check=True).stdout
    n_kernels = n_early = 0
    parts = re.split(r"code for sm_(\d+)", sass)[1:]
    for chip, functions in zip(parts[::2], parts[1::2]):
        if int(chip) < FIRST_CHIP:
            continue
        for function in functions.split("Function : ")[1:]:
            n_kernels += 1
            access = early_access(INSTRUCTION.findall(function))
            if access:
                n_early += 1
                print(f"{function.split()[0]} (sm_{chip}) does not wait before {access}")
    print(f"{n_kernels} kernels, {n_early} access memory before they wait")
    return 1 if n_early or not n_kernels else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
