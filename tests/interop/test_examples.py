"""client/examples/decoder.py as it stands there: its own check against float64
must pass, and must fail where the chain is another one."""

import subprocess
import sys
from pathlib import Path

import pytest
import requests

SCRIPT = Path(__file__).resolve().parents[2] / "client/examples/decoder.py"


def run(path, address):
    command = [sys.executable, path, f"http://{address}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert requests.get(f"http://{address}/v1/regions").json()["used"] == 0  # it tidies up
    return result


def test_decoder(address):
    result = run(SCRIPT, address)
    assert result.returncode == 0, result.stdout + result.stderr
    words = result.stdout.splitlines()[-1].replace(",", "").split()
    sent, received, resident = (int(word) for word in words if word.isdigit())
    activations = 4 * (1024 + (16 + 8 + 8) * 128) + 4 + 4  # hidden, q, k, v, position, slot
    assert activations < sent < activations + 200
    assert 4 * 1024 < received < 4 * 1024 + 200  # the normalised row
    assert resident > 32 << 20  # the caches


@pytest.mark.parametrize(
    "part, other, wrong",
    [
        ('"theta": THETA', '"theta": 9e5', "q of the last step"),
        ('from_k_weight="k_norm"', 'from_k_weight="q_norm"', "k_cache"),
        ('from_positions="zeros", ', "", "k_cache"),  # rotated again
        ("  step(hidden, positions, slots,", "  step(hidden, positions, slots - 1,", "k_cache"),
    ],
)
def test_decoder_notices(address, tmp_path, part, other, wrong):
    text = SCRIPT.read_text()
    assert text.count(part) == 1
    if wrong == "k_cache":
        text = text.replace('check("q of the last step"', '0 and check("q of the last step"')
    (tmp_path / "decoder.py").write_text(text.replace(part, other))
    result = run(tmp_path / "decoder.py", address)
    assert result.returncode == 1
    assert f"{wrong} is WRONG" in result.stderr
