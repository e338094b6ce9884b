"""The examples of client/python, as they stand there but for the server's address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

FOLDER = ROOT / "client/python"
PAGE = (FOLDER / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(*command):
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_there_are_some():
    assert BLOCKS


@pytest.mark.parametrize("text", BLOCKS)
def test_page(server, text):
    if "import torch" in text:
        pytest.importorskip("torch")
    run("-c", text.replace("http://127.0.0.1:8000", server))


def test_decoder(server):
    pytest.importorskip("transformers")
    assert "in process" in run(FOLDER / "examples/decoder.py", server)


def test_the_files_that_the_page_names():
    for name in re.findall(r"`([\w./]+\.(?:py|c))`", PAGE):
        places = [FOLDER / "src/roped", FOLDER, FOLDER / "src"]
        generated = name == "_operators.py"
        assert generated or any((place / Path(name)).exists() for place in places), name
