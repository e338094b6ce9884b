"""The client beside a server that lies, tests/attack/hostile.c: whatever comes back, a call
ends within its time and its memory, with a result or with an Error that a terminal may show."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = os.environ.get("ROPED_TEST_HOSTILE", "")
CALL, DOCUMENT, METRICS, REGION = 1, 2, 4, 8
FAILS = {
    "call": CALL,
    "large call": CALL,
    "regions": DOCUMENT,
    "tables": DOCUMENT,
    "describe": DOCUMENT,
    "devices": DOCUMENT,
    "get": DOCUMENT | REGION,  # a file: where nothing comes back, or a document
    "put": METRICS | REGION,
}
TIMEOUT, SLACK, MAX_ANSWER, MAX_GROWTH = 0.5, 8.0, 4 << 20, 200 << 20

if not os.path.exists(SERVER):
    pytest.skip("ROPED_TEST_HOSTILE names no server", allow_module_level=True)


def listed(lines):
    return {name: int(fails) for name, fails in (line.split() for line in lines)}


BEHAVIOURS = listed(
    subprocess.run([SERVER, "--serve"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    .stdout.splitlines()[1:]
)


@pytest.fixture(scope="module")
def port():
    process = subprocess.Popen([SERVER, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield int(process.stdout.readline())
    process.stdin.close()
    process.wait(10)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_behaviour(port, name):
    scheme = "https" if name.startswith("tls_") else "http"
    command = [sys.executable, Path(__file__).parent / "hostile_client.py", f"{scheme}://127.0.0.1:{port}/{name}"]
    process = subprocess.run(
        [*command, str(TIMEOUT), str(MAX_ANSWER)], capture_output=True, text=True, timeout=100, check=False
    )
    assert process.returncode == 0 and not process.stderr, process.stderr
    calls, growth = json.loads(process.stdout)
    assert growth < MAX_GROWTH, f"memory grew by {growth >> 20} MiB"
    for call, seconds, raised, text in calls:
        assert seconds < TIMEOUT + SLACK, (call, seconds)
        # what a good answer lacks is the caller's to find
        assert raised in (None, "Error", "KeyError"), (call, raised, text)
        assert text.isprintable() and len(text) < 1500, (call, text)
        assert raised is None or text, call
        must_fail = BEHAVIOURS[name] & FAILS[call] == FAILS[call]
        assert raised or not must_fail, (call, "is no failure")
