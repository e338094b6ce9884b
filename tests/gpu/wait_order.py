#!/usr/bin/env python3
"""No kernel may touch memory before it has waited for the kernel before it
(griddepcontrol.wait, kernels/cuda/device/stream.cuh): the assembler is free to
move loads of memory that it takes for unchanging (ld.global.nc) in front of
the wait. Reads the machine code with cuobjdump and follows every path from a
kernel's entry to its wait. Parameters are no such memory: a function that is
called with their address may load them.

ptxas 13.0 has made two kinds of instructions that must not be there. A descriptor
of memory in a pair of registers that begins at an odd one is nothing that a chip
runs. And a minimum with 0 as its least (VIMNMX.RELU) says which of its operands is
less, which was taken for "it is the second one": max(min(x, n), 0) == n became
x <= n.

    tests/gpu/wait_order.py libroped_kernels.so
"""

import re
import subprocess
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
TARGET = re.compile(r"\b(?:BRA|CALL)\S*\s.*?(0x[0-9a-f]+)")
MEMORY = re.compile(r"\b(LDG|LDGSTS|STG|LD|ST|ATOM|ATOMG|RED)\b")
WAIT = "ACQBULK"
PARAMETERS = "c[0x0][0x198]"  # on sm_90: the address of a kernel's parameters
REGISTER = re.compile(r"\bU?R\d+\b")
ADDRESS_OF_LOAD = re.compile(r"\bLD\.\S+ R\d+, .*\[(R\d+)\b")
FAULTS = {
    "has an instruction that no chip has": re.compile(r"desc\[UR\d*[13579]\]"),
    "asks a minimum which operand is less": re.compile(r"VIMNMX\.RELU R\d+, P[0-6],"),
}
FIRST_CHIP = 90  # older ones start no kernel before the one before it has ended


def after(text, of_parameters):
    """The registers with the address of parameters, or a half of it, behind an
    instruction: what it moves or adds to such a register has it, too."""
    to, *sources = REGISTER.findall(text) or [None]
    if not to:
        return of_parameters
    pair = {to}
    if ".64" in text.split()[0]:
        pair.add(re.sub(r"\d+", lambda n: str(int(n[0]) + 1), to))
    moves = re.search(r"MOV|IMAD|IADD|R2UR", text) and of_parameters.intersection(sources)
    return of_parameters | pair if PARAMETERS in text or moves else of_parameters - pair


def early_access(code):
    """The first access to memory on a path without the wait, or None."""
    place = {int(at, 16): i for i, (at, _) in enumerate(code)}
    seen, todo = set(), [(0, frozenset())]
    while todo:
        i, of_parameters = todo.pop()
        while i < len(code) and (i, of_parameters) not in seen:
            seen.add((i, of_parameters))
            at, text = code[i]
            if WAIT in text:
                break
            load = ADDRESS_OF_LOAD.search(text)
            if MEMORY.search(text) and not (load and load[1] in of_parameters):
                return f"{at}: {text}"
            of_parameters = after(text, of_parameters)
            target = TARGET.search(text)
            if target:
                todo.append((place.get(int(target[1], 16), len(code)), of_parameters))
            is_certain = not text.startswith("@")
            if is_certain and re.match(r"(BRA|EXIT|RET)\b", text):
                break
            i += 1
    return None


def main(library):
    sass = subprocess.run(["cuobjdump", "-sass", library], capture_output=True,
                          text=True, check=True).stdout
    n_kernels = n_early = n_faults = 0
    parts = re.split(r"code for sm_(\d+)", sass)[1:]
    for chip, functions in zip(parts[::2], parts[1::2]):
        if int(chip) < FIRST_CHIP:
            continue
        for function in functions.split("Function : ")[1:]:
            n_kernels += 1
            name, code = f"{function.split()[0]} (sm_{chip})", INSTRUCTION.findall(function)
            access = early_access(code)
            if access:
                n_early += 1
                print(f"{name} does not wait before {access}")
            for what, pattern in FAULTS.items():
                fault = next((text for _, text in code if pattern.search(text)), None)
                if fault:
                    n_faults += 1
                    print(f"{name} {what}: {fault}")
    print(f"{n_kernels} kernels, {n_early} access memory before they wait")
    return 1 if n_early or n_faults or not n_kernels else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
