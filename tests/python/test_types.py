"""Type checkers accept the package, and programs that use it rightly, alone."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import roped

PACKAGE = Path(roped.__file__).parent
PROGRAM = """
import numpy as np
import numpy.typing as npt
import roped
from roped import ops

client = roped.Client()
x: npt.NDArray[np.float32] = np.ones((2, 4), np.float32)
y: npt.NDArray[np.float32] = client.rmsnorm(x, eps=1e-5)
q, k = client.rope(x, x, positions=x, style="gptj", mrope_section=[1, 1])
region: roped.Region = client.put(x)
kept = client.rmsnorm(region, out=region)
z: npt.NDArray[np.float32] = ops.rmsnorm(x, out=x)
residual: npt.NDArray[np.float32] = roped.ops.add_rmsnorm(x, x).residual
with client.zeros((2, 4), device="spread") as one, client.put(x, device=0) as other:
    ...


async def asked(client: roped.AsyncClient) -> npt.NDArray[np.float32]:
    turned: npt.NDArray[np.float32] = (await client.rope(x, table="llama")).q
    return turned
"""
WRONG = """
import numpy as np
import roped

client = roped.Client()
x = np.ones((2, 4), np.float32)
client.rope(x, style="niox")
client.rmsnorm(x, epsilon=1e-5)
client.add_rmsnorm(x)
client.binary_backward(x, table="llama")
client.put(x, device="spreads")
"""
# mypy is that of someone without torch, of which it would read all; pyright reads what is used
CONFIGURATION = """
[tool.pyright]
reportMissingImports = false

[[tool.mypy.overrides]]
module = "torch.*"
follow_imports = "skip"
"""
CHECKERS = {"mypy": ["mypy", "--strict", "--no-error-summary"], "pyright": ["pyright"]}


@pytest.fixture(params=CHECKERS, scope="module")
def complaints(request, tmp_path_factory):
    """What a checker says of both programs and the package: it reads numpy once."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"no {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "pyproject.toml").write_text(CONFIGURATION)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", *CHECKERS[request.param], "program.py", "wrong.py", str(PACKAGE)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if "error" not in result.stdout and result.returncode:
        pytest.skip(f"{request.param} does not run here: {(result.stderr or result.stdout).strip()[-200:]}")
    lines = [line for line in result.stdout.splitlines() if "error" in line and ": " in line]
    return [line for line in lines if not line[:1].isdigit()]


def test_a_wrong_program(complaints):
    for line in range(7, 12):
        assert any(f"wrong.py:{line}:" in text for text in complaints), (line, complaints)


def test_nothing_else(complaints):
    assert [text for text in complaints if "wrong.py:" not in text] == []
