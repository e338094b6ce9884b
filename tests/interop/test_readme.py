"""The pages for users. Examples are run as they stand there, but for the address
of the server: the call of README.md, and those of client/README.md. The lists of
README.md are compared with what the server says of itself, and the flags and
files that pages name must exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
README = (ROOT / "README.md").read_text()
ROOMS = ["client", "deploy", "kernels", "server", "tests"]
PAGES = [ROOT / "README.md"] + [page for room in ROOMS for page in (ROOT / room).rglob("*.md")]


def section(name, text=README):
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


def blocks(text):
    return re.findall(r"```(python|sh|c)\n(.*?)```", text, re.DOTALL)


BLOCKS = blocks(section("Examples", (ROOT / "client/README.md").read_text()))


def here(text, address):
    return text.replace("127.0.0.1:8000", address).replace("build/cpu", "build")


def run(command, folder, address):
    environment = dict(os.environ, ROPED_URL=f"http://{address}")
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def folder(tmp_path):
    for name, target in [("client", ROOT / "client"), ("kernels", ROOT / "kernels"), ("build", BUILD)]:
        (tmp_path / name).symlink_to(target)
    return tmp_path


def test_the_table_of_codes_is_that_of_the_header():
    listed = re.findall(r"\| `(\w+)` \| (\d+) \| (.*) \|", section("Errors", (ROOT / "client/README.md").read_text()))
    header = (ROOT / "kernels/include/roped/status.h").read_text()
    known = re.findall(r'X\(\w+, "(\w+)", (\d+), "(.*)"\)', header)
    assert known[0] == ("ok", "200", "success") and listed == known[1:]


def test_the_section_has_all_examples():
    assert [language for language, _ in BLOCKS] == ["python", "python", "python", "sh", "c", "sh"]


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "python"])
def test_python(text, folder, address):
    for module in ["tritonclient", "safetensors", "torch"]:
        if f"import {module}" in text or f", {module}" in text:
            pytest.importorskip(module, reason=f"no {module} (torch: ROPED_INTEROP_TORCH=1 installs it)")
    run([sys.executable, "-c", here(text, address)], folder, address)


def test_the_first_call(folder, address):
    [(language, text)] = blocks(section("One call"))
    assert language == "sh"
    assert '"data":[0.8485281,' in run(["bash", "-euc", here(text, address)], folder, address)


def test_curl(folder, address):
    text = next(text for language, text in BLOCKS if language == "sh")
    run(["bash", "-euc", here(text, address)], folder, address)
    assert (folder / "y.f32").stat().st_size == 16384


def test_c(folder, address):
    text = next(text for language, text in BLOCKS if language == "c")
    build = [text for language, text in BLOCKS if language == "sh"][-1]
    (folder / "norm.c").write_text(text)
    for compile in [build, "c++ -x c++" + build.removeprefix("cc")]:
        assert run(["bash", "-euc", here(compile, address)], folder, address).startswith("0.365148, kernel")


# ------------------------------------------------------------------- lists


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
