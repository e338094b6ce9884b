"""README.md: the examples of its section "Clients", run as they stand there but
for the address of the server; its lists beside what the server says of itself."""

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


def section(name):
    return README.split(f"\n## {name}\n")[1].split("\n## ")[0]


BLOCKS = re.findall(r"```(python|sh|c)\n(.*?)```", section("Clients"), re.DOTALL)


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


def test_the_section_has_all_examples():
    assert [language for language, _ in BLOCKS] == ["python", "python", "python", "sh", "c", "sh"]


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "python"])
def test_python(text, folder, address):
    for module in ["tritonclient", "safetensors", "torch"]:
        if f"import {module}" in text or f", {module}" in text:
            pytest.importorskip(module, reason=f"no {module} (torch: ROPED_INTEROP_TORCH=1 installs it)")
    run([sys.executable, "-c", here(text, address)], folder, address)


def test_curl(folder, address):
    text = next(text for language, text in BLOCKS if language == "sh")
    answer = run(["bash", "-euc", here(text, address)], folder, address)
    assert '"data":[0.8485281,1.1313708' in answer
    assert (folder / "y.f32").stat().st_size == 16384


def test_c(folder, address):
    text = next(text for language, text in BLOCKS if language == "c")
    build = [text for language, text in BLOCKS if language == "sh"][-1]
    (folder / "norm.c").write_text(text)
    assert run(["bash", "-euc", here(build, address)], folder, address).startswith("0.365148, kernel")


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


def test_settings():
    """Every flag and key that is named here is one of roped's or of ropectl's."""
    known = set()
    for program in ["roped", "ropectl"]:
        text = subprocess.run([BUILD / "bin" / program, "--help"], capture_output=True, text=True, timeout=60).stdout
        known.update(re.findall(r"--([\w-]+)", text))
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    named = re.findall(r"`(?:roped |ropectl )?--([a-z_-]+)", prose)
    assert len(named) > 3
    for name in named:
        assert name in known or name.replace("-", "_") in known, name
