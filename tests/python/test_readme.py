"""The examples of client/python, as they stand there but for the server's address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from pages import blocks_of

FOLDER = ROOT / "client/python"
PAGE = (FOLDER / "README.md").read_text()
BLOCKS = [block for block in blocks_of(FOLDER / "README.md") if block.is_run]
SCALING = [b for b in blocks_of(ROOT / "deploy/SCALING.md") if b.is_run and b.language == "python"]


def run(*command):
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_all_of_them_are_python():
    assert BLOCKS and all(block.language == "python" for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS + SCALING, ids=str)
def test_page(server, block):
    if "import torch" in block.text:
        pytest.importorskip("torch")
    run("-c", block.text.replace("http://127.0.0.1:8000", server))


def test_decoder(server):
    pytest.importorskip("transformers")
    assert "in process" in run(FOLDER / "examples/decoder.py", server)


def test_the_files_that_the_page_names():
    for name in re.findall(r"`([\w./]+\.(?:py|c))`", PAGE):
        places = [FOLDER / "src/roped", FOLDER, FOLDER / "src", ROOT]
        generated = name == "_operators.py"
        assert generated or any((place / Path(name)).exists() for place in places), name
