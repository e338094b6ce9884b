#!/usr/bin/env python3
"""What pages say that nothing has to run for, beside the tree and what the programs
say of themselves. Prints a line for each thing that is wrong; tests/lint.sh asks.
    tests/interop/check_pages.py [BUILD_DIR]   without it: not what flags there are
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pages import EXAMPLES, PAGES, ROOT, SHOWN, all_blocks, section

BUILD = Path(sys.argv[1]) if len(sys.argv) > 1 else None
BLOCKS = all_blocks()


def is_command(text):
    word = text.split()[0] if text.split() else ""
    built = BUILD and (BUILD / "bin" / word).is_file()
    return word != "" and bool(shutil.which(word) or (ROOT / word).is_file() or built)


def blocks_say_what_they_hold():
    for block in BLOCKS:
        if block.language not in (*EXAMPLES, *SHOWN):
            yield f"{block}: a block of {block.language!r}, not one of {', '.join(EXAMPLES + SHOWN)}"
        if block.language in ("text", "json") and is_command(block.text):
            yield f"{block}: a command in a block of {block.language}"


def most_examples_are_run():
    examples = [block for block in BLOCKS if block.language in EXAMPLES]
    left_out = [str(block) for block in examples if not block.is_run]
    if 3 * len(left_out) >= len(examples):
        yield f"{len(left_out)} of {len(examples)} examples are not run: {', '.join(left_out)}"


def packages_have_a_source():
    """Before the first example that needs one: numpy is no part of Python, and pip does not install everywhere."""
    for block in BLOCKS:
        before = "\n".join((ROOT / block.page).read_text().splitlines()[: block.line])
        needs = re.search(r"\b(?:import|from) (numpy|safetensors|tritonclient|requests|ml_dtypes)\b", block.text)
        if needs and block.is_run and not re.search("pip install|Python for the examples", before):
            yield f"{block}: nothing before it says where {needs[1]} comes from"


def files_are_there():
    """In prose from the root or from the page; in commands from the root."""
    suffixes = "c|h|cu|cuh|def|py|sh|md|txt|conf"
    for page in PAGES:
        for path in re.findall(rf"`((?:[\w.-]+/)+[\w.-]+\.(?:{suffixes}))`", page.read_text()):
            if not any((base / path).exists() for base in [ROOT, page.parent]):
                yield f"{page.relative_to(ROOT)}: no file {path}"
    for block in BLOCKS:
        for path in re.findall(r"(?<![\w/.$-])(?:\./)?((?:client|deploy|kernels|server|tests)/[\w./-]+)", block.text):
            if block.language == "sh" and not (ROOT / path).exists():
                yield f"{block}: no file {path}"


def said(program, *arguments):
    return subprocess.run([BUILD / "bin" / program, *arguments], capture_output=True, text=True, timeout=60).stdout


def flags_are_there():
    """Every flag that a page names without another program is roped's or ropectl's."""
    if not BUILD:
        return
    commands = [line.split()[0] for line in said("ropectl", "help").split("\n\n")[1].splitlines()]
    asked = [["roped", "--help"], ["ropectl", "--help"], *(["ropectl", name, "--help"] for name in commands)]
    known = {name.replace("-", "_") for words in asked for name in re.findall(r"--([\w-]+)", said(*words))}
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for flag in re.findall(r"`(?:roped |ropectl )?--([\w-]+)", prose):
            if flag.replace("-", "_") not in known:
                yield f"{page.relative_to(ROOT)}: neither roped nor ropectl has --{flag}"


def codes_are_those_of_the_header():
    header = (ROOT / "kernels/include/roped/status.h").read_text()
    known = re.findall(r'X\(\w+, "(\w+)", (\d+), "(.*)"\)', header)[1:]
    errors = section((ROOT / "client/README.md").read_text(), "Errors")
    if re.findall(r"\| `(\w+)` \| (\d+) \| (.*) \|", errors) != known:
        yield "client/README.md: the table of Errors is not that of roped/status.h"
    wrong = section((ROOT / "client/MODELS.md").read_text(), "When something is wrong")
    rows = re.findall(r"^\| (`.*?`) \|", wrong, re.MULTILINE)
    if sorted(code for row in rows for code in re.findall(r"`(\w+)`", row)) != sorted(code for code, _, _ in known):
        yield "client/MODELS.md: 'When something is wrong' does not name each code of roped/status.h once"


def golden_files_are_counted():
    files = list((ROOT / "tests/golden").glob("*.safetensors"))
    if f"{len(files)} golden files" not in (ROOT / "README.md").read_text():
        yield f"README.md: there are {len(files)} golden files"


def room_of(path):
    """Of a file, or of a header as it is included."""
    names = {"log.h": "base", "metrics.h": "metrics", "kernels/core": "core", "kernels/cpu": "cpu", "roped/": "core"}
    for start, room in names.items():
        if path.startswith(start):
            return room
    return path.removeprefix("server/").split("/")[0]


def the_picture_is_that_of_boundaries():
    """server/ARCHITECTURE.md beside tests/boundaries.sh: what a room may see is itself or has an arrow, what it
    may not see has none, and where there is no arrow between rooms of the server an #include is tried."""
    [picture] = [block.text for block in BLOCKS if block.page == "server/ARCHITECTURE.md" and "flowchart" in block.text]
    arrows = set(re.findall(r"^ +(\w+) --> (\w+)$", picture, re.MULTILINE))
    tried = re.findall(r"^room (.*)$", (ROOT / "tests/boundaries.sh").read_text(), re.MULTILINE)
    forbidden = set()
    for line in tried:
        room, may, *may_not = (room_of(path) for path in line.split())
        if may != room and (room, may) not in arrows:
            yield f"server/ARCHITECTURE.md: no arrow from {room} to {may}, as boundaries.sh allows"
        forbidden |= {(room, other) for other in may_not}
    for room, other in forbidden & arrows:
        yield f"server/ARCHITECTURE.md: an arrow from {room} to {other}, which boundaries.sh forbids"
    rooms = {"wire", "exec", "base", "metrics", "http"}
    for room, other in {(a, b) for a in rooms for b in rooms if a != b} - arrows - forbidden:
        yield f"tests/boundaries.sh: nothing tries whether {room} sees {other}, and no arrow says that it may"


def the_example_of_an_operator_fits_the_tree():
    """What kernels/EXAMPLE.md takes out of files, and what it puts its lines beside, stands in them."""
    lines = None
    for block in BLOCKS:
        for line in block.text.splitlines() if block.language == "diff" else []:
            if line.startswith("--- "):
                path = line.removeprefix("--- a/")
                lines = None if path == "--- /dev/null" else set((ROOT / path).read_text().splitlines())
            elif line[:1] in ("-", " ") and lines is not None and line[1:] not in lines:
                yield f"{block}: {path} has no line {line[1:]!r}"


CHECKS = [
    blocks_say_what_they_hold,
    most_examples_are_run,
    packages_have_a_source,
    files_are_there,
    flags_are_there,
    codes_are_those_of_the_header,
    golden_files_are_counted,
    the_picture_is_that_of_boundaries,
    the_example_of_an_operator_fits_the_tree,
]
wrong = [sentence for check in CHECKS for sentence in check()]
print("\n".join(wrong))
sys.exit(bool(wrong))
