"""The client beside a server that lies, tests/attack/hostile.c: whatever comes back, a call
ends within its time and its memory, with a result or with an Error that a terminal may show."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
N_CLIENTS = 4

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


def ask(urls):
    """For each what a client of it printed, its errors too, and its exit status."""
    command = [sys.executable, Path(__file__).parent / "hostile_client.py", str(TIMEOUT), str(MAX_ANSWER), *urls]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0 and not process.stderr, process.stderr
    said = re.split(r"^exit (-?\d+)\n", process.stdout, flags=re.MULTILINE)
    return zip(said[::2], map(int, said[1::2]))


@pytest.fixture(scope="module")
def answers(port, request):
    """Of each behaviour that is tried. Most make their clients wait, so several ask side by side."""
    names = [item.callspec.params["name"] for item in request.session.items if item.path == Path(__file__)]
    parts = [names[i::N_CLIENTS] for i in range(min(N_CLIENTS, len(names)))]
    urls = [[f"http{'s' * name.startswith('tls_')}://127.0.0.1:{port}/{name}" for name in part] for part in parts]
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        return {name: answer for part, said in zip(parts, pool.map(ask, urls)) for name, answer in zip(part, said)}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_behaviour(answers, name):
    said, status = answers[name]
    assert status == 0 and said.count("\n") == 1, (status, said)
    calls, growth = json.loads(said)
    assert growth < MAX_GROWTH, f"memory grew by {growth >> 20} MiB"
    for call, seconds, raised, text in calls:
        assert seconds < TIMEOUT + SLACK, (call, seconds)
        # what a good answer lacks is the caller's to find
        assert raised in (None, "Error", "KeyError"), (call, raised, text)
        assert text.isprintable() and len(text) < 1500, (call, text)
        assert raised is None or text, call
        must_fail = BEHAVIOURS[name] & FAILS[call] == FAILS[call]
        assert raised or not must_fail, (call, "is no failure")
