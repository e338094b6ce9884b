"""The pages for users. Every example of every page is run as it stands there, but
for the address of the server, unless the page itself says why not (pages.py). The
lists of README.md are compared with what the server says of itself, and the flags
and files that pages name must exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from pages import EXAMPLES, PAGES, ROOT, SHOWN, all_blocks, is_printed, modules_of, printed_by

BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
README = (ROOT / "README.md").read_text()
BLOCKS = all_blocks()
def is_elsewhere(block):
    """tests/python runs these: they need the package."""
    return block.page == "client/python/README.md" or block.page == "deploy/SCALING.md" and block.language == "python"


def section(name, text=README):
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


# ---------------------------------------------------------------- examples


def folder_of(page, folders={}, make=None):
    """The blocks of a page share a folder, as its reader would; it looks like the
    root of the repository after a build."""
    if page not in folders:
        folders[page] = folder = make.mktemp(re.sub(r"\W", "_", page))
        for name in ["client", "deploy", "kernels", "server", "tests"]:
            (folder / name).symlink_to(ROOT / name)
        (folder / "build").mkdir()
        (folder / "build/cpu").symlink_to(BUILD)
    return folders[page]


def run(command, folder, address):
    """With the programs of the build and of this environment."""
    programs = [str(BUILD / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = dict(os.environ, ROPED_URL=f"http://{address}", PATH=":".join(programs))
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.is_run and not is_elsewhere(b)], ids=str)
def test_example(block, tmp_path_factory, demo_address):
    """Those of one page in their order. The server lets clients register memory."""
    folder = folder_of(block.page, make=tmp_path_factory)
    text = block.text.replace("127.0.0.1:8000", demo_address)
    if block.language == "c":  # the next block compiles it
        name = re.match(r"/\* (\w+\.c)\b", text)
        assert name, "the first line names the file: /* name.c */"
        (folder / name[1]).write_text(text)
    elif block.language == "python":
        for module in modules_of(block):
            pytest.importorskip(module, reason=f"no {module} (torch: ROPED_INTEROP_TORCH=1 installs it)")
        run([sys.executable, "-c", text], folder, demo_address)
    else:
        stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"  # what a failure leaves running
        found = run(["bash", "-euo", "pipefail", "-c", stop + text], folder, demo_address)
        shown = printed_by(block, BLOCKS)
        assert shown is None or is_printed(found.rstrip("\n") + "\n", shown), f"{found}\nexpected\n{shown}"


def test_every_block_says_what_it_holds():
    assert [str(block) for block in BLOCKS if block.language not in (*EXAMPLES, *SHOWN)] == []


def test_pages_say_where_packages_come_from():
    """Before the first example that needs one: numpy is no part of Python, and pip does not install everywhere."""
    unsaid = []
    for block in BLOCKS:
        lines = (ROOT / block.page).read_text().splitlines()[: block.line]
        needs = re.search(r"\b(import|from) (numpy|safetensors|tritonclient|requests|ml_dtypes)\b", block.text)
        if needs and block.is_run and not re.search("pip install|Python for the examples", "\n".join(lines)):
            unsaid.append(str(block))
    assert unsaid == []


def is_command(text):
    word = text.split()[0] if text.split() else ""
    return word != "" and bool(shutil.which(word) or (ROOT / word).is_file() or (BUILD / "bin" / word).is_file())


def test_what_is_only_shown_is_no_command():
    shown = [block for block in BLOCKS if block.language in ("text", "json")]
    assert [str(block) for block in shown if is_command(block.text)] == []


def test_what_is_not_run_names_files_that_are_there():
    """The scripts and folders of this repository in examples that are left out."""
    missing = []
    for block in BLOCKS:
        for path in re.findall(r"(?<![\w/.$-])(?:\./)?((?:client|deploy|kernels|server|tests)/[\w./-]+)", block.text):
            if block.language == "sh" and not (ROOT / path).exists():
                missing.append((str(block), path))
    assert missing == []


def test_few_examples_are_not_run():
    examples = [block for block in BLOCKS if block.language in EXAMPLES]
    left_out = [str(block) for block in examples if not block.is_run]
    print("not run:", *left_out)
    assert len(examples) > 30 and 3 * len(left_out) < len(examples), left_out


def test_the_c_example_is_cxx_too(tmp_path_factory, address):
    """client/README.md says so."""
    page = "client/README.md"
    folder = folder_of(page, make=tmp_path_factory)
    [source] = [block for block in BLOCKS if block.page == page and block.language == "c"]
    [build] = [block.text for block in BLOCKS if block.page == page and block.text.startswith("cc norm.c ")]
    (folder / "norm.c").write_text(source.text)
    build = "c++ -x c++" + build.removeprefix("cc")
    assert run(["bash", "-euc", build], folder, address).startswith("0.365148, kernel")


def test_the_first_call(tmp_path, address):
    """It prints what the page shows below it, whose numbers end in dots."""
    [call] = [block for block in BLOCKS if block.page == "README.md" and "/infer" in block.text and block.is_run]
    [answer] = [block for block in BLOCKS if block.page == "README.md" and "model_version" in block.text]
    found = run(["bash", "-euc", call.text.replace("127.0.0.1:8000", address)], tmp_path, address)
    assert found.startswith(answer.text.split("...")[0])


# ------------------------------------------------------------------- lists


def test_the_table_of_codes_is_that_of_the_header():
    listed = re.findall(r"\| `(\w+)` \| (\d+) \| (.*) \|", section("Errors", (ROOT / "client/README.md").read_text()))
    header = (ROOT / "kernels/include/roped/status.h").read_text()
    known = re.findall(r'X\(\w+, "(\w+)", (\d+), "(.*)"\)', header)
    assert known[0] == ("ok", "200", "success") and listed == known[1:]


def test_every_code_has_something_to_do():
    page = section("When something is wrong", (ROOT / "client/MODELS.md").read_text())
    listed = [code for row in re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)]
    known = re.findall(r'X\(\w+, "(\w+)", \d+, ', (ROOT / "kernels/include/roped/status.h").read_text())
    assert sorted(listed) == sorted(known[1:])


def test_operators(address):
    listed = re.findall(r"^\| `(\w+)` \|", section("Operators"), re.MULTILINE)
    assert listed == [op["name"] for op in requests.get(f"http://{address}/v1").json()["operators"]]


def spelled_out(path):
    """a[/b,/c]/{d,e}: a/b/d, a/b/e, a/c/d, a/c/e, a/d, a/e"""
    option = re.search(r"\[([^\[\]]*)\]", path)
    choice = re.search(r"\{([^{}]*,[^{}]*)\}", path)
    if not option and not choice:
        return [path]
    found = option or choice
    parts = found[1].split(",") + [""] * bool(option)
    return [whole for part in parts for whole in spelled_out(path[: found.start()] + part + path[found.end() :])]


def plain(path):
    return re.sub(r"\{\w+\}", "*", path.replace("/versions/1", "/versions/*"))


def test_routes(address):
    document = requests.get(f"http://{address}/openapi.json").json()
    operators = {op["name"] for op in requests.get(f"http://{address}/v1").json()["operators"]}
    served = {plain("/v1/{op}" if path[4:] in operators else path) for path in document["paths"]}
    listed = set()
    for first in re.findall(r"^\| (`.*?) \|", section("Routes"), re.MULTILINE):
        for path in re.findall(r"(?<=[` ])/[^` ]*", first):
            listed.update(plain(whole) for whole in spelled_out(path))
    # written as if each kind of shared memory had each verb for one and for all
    listed -= {f"/v2/{kind}sharedmemory/register" for kind in ["system", "cuda"]}
    assert listed == served


def test_golden_files():
    assert f"{len(list((ROOT / 'tests/golden').glob('*.safetensors')))} golden files" in README


def said(program, *arguments):
    return subprocess.run([BUILD / "bin" / program, *arguments], capture_output=True, text=True, timeout=60).stdout


def test_flags():
    """Every flag that a page names without another program is roped's or ropectl's."""
    known = set()
    commands = [line.split()[0] for line in said("ropectl", "help").split("\n\n")[1].splitlines()]
    for arguments in [["roped", "--help"], ["ropectl", "--help"], *(["ropectl", name, "--help"] for name in commands)]:
        text = said(*arguments)
        known.update(name.replace("-", "_") for name in re.findall(r"--([\w-]+)", text))
    named = {}
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for flag in re.findall(r"`(?:roped |ropectl )?--([\w-]+)", prose):
            named[flag.replace("-", "_")] = page
    assert len(named) > 8
    assert {name: page for name, page in named.items() if name not in known} == {}


def test_files():
    """Every path that a page names is there, from the root or from the page."""
    suffixes = "c|h|cu|cuh|def|py|sh|md|txt|conf"
    missing = []
    for page in PAGES:
        for path in re.findall(rf"`((?:[\w.-]+/)+[\w.-]+\.(?:{suffixes}))`", page.read_text()):
            if not any((base / path).exists() for base in [ROOT, page.parent]):
                missing.append((page.relative_to(ROOT), path))
    assert missing == []


def room_of(path):
    """Of a file, or of a header as it is included."""
    names = {"log.h": "base", "metrics.h": "metrics", "kernels/core": "core", "kernels/cpu": "cpu", "roped/": "core"}
    for start, room in names.items():
        if path.startswith(start):
            return room
    return path.removeprefix("server/").split("/")[0]


def test_the_picture_has_the_arrows_that_boundaries_allow():
    """server/ARCHITECTURE.md beside tests/boundaries.sh: what a room may see is itself or has an arrow, what it
    may not see has none, and where there is no arrow between rooms of the server an #include is tried."""
    [picture] = [block.text for block in BLOCKS if block.page == "server/ARCHITECTURE.md" and "flowchart" in block.text]
    arrows = set(re.findall(r"^ +(\w+) --> (\w+)$", picture, re.MULTILINE))
    forbidden = set()
    for line in re.findall(r"^room (.*)$", (ROOT / "tests/boundaries.sh").read_text(), re.MULTILINE):
        room, may, *may_not = (room_of(path) for path in line.split())
        assert may == room or (room, may) in arrows, line
        forbidden |= {(room, other) for other in may_not}
    assert len(forbidden) > 20 and forbidden & arrows == set()
    rooms = {"wire", "exec", "base", "metrics", "http"}
    missing = {(a, b) for a in rooms for b in rooms if a != b} - arrows - forbidden
    assert missing == set()


def test_the_example_of_an_operator_fits_the_tree():
    """What kernels/EXAMPLE.md takes out of files, and what it puts its lines beside, stands in them."""
    missing, lines = [], set()
    for block in BLOCKS:
        for line in block.text.splitlines() if block.language == "diff" else []:
            if line.startswith("--- "):
                path = line.removeprefix("--- a/")
                lines = None if path == "--- /dev/null" else set((ROOT / path).read_text().splitlines())
            elif line[:1] in ("-", " ") and lines is not None and line[1:] not in lines:
                missing.append((str(block), line))
    assert missing == []
