"""The examples of README.md's section "Clients", run as they stand there but
for the address of the server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
SECTION = (ROOT / "README.md").read_text().split("\n## Clients\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"```(python|sh|c)\n(.*?)```", SECTION, re.DOTALL)


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
