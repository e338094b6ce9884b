"""The page at GET / in a headless Chromium: with load, with tokens, and while
the daemon stops. Skipped where there is no Chromium."""

import hashlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import requests
from safetensors.numpy import save

from browser import CHROMIUM
from calls_beside import repeat

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: the page is not looked at")
DAEMON = Path(os.environ["ROPED_INTEROP_BUILD"]) / "bin" / "roped"
SCOPES = {"watcher": "metrics", "boss": "admin"}


class Daemon:
    """One of the test's own, which it may stop."""

    running = []

    def __init__(self, folder, *flags, port=0):
        port_file = folder / "port"
        port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen([DAEMON, "--listen", f"127.0.0.1:{port}", "--port_file", port_file, "--backend", "cpu", *flags],
                                        stderr=subprocess.DEVNULL)
        self.running.append(self.process)
        while not port_file.exists() or not port_file.read_text():
            assert self.process.poll() is None
            time.sleep(0.01)
        self.port = int(port_file.read_text())
        self.url = f"http://127.0.0.1:{self.port}/"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


@pytest.fixture(autouse=True)
def no_daemon_is_left():
    """Not even by a test that failed."""
    yield
    while Daemon.running:
        process = Daemon.running.pop()
        process.kill()
        process.wait()


@pytest.fixture
def load(address):
    """Calls of rmsnorm, and some that fail, until the test ends."""
    body = save({"x": np.ones((64, 256), np.float32)})

    def calls(session):
        assert session.post(f"http://{address}/v1/rmsnorm", data=body).status_code == 200
        assert session.post(f"http://{address}/v1/rmsnorm?eps=none", data=body).status_code == 400

    with repeat(calls):
        yield


def tile(browser, title):
    """The number under a title."""
    return browser.run(f"[...document.querySelectorAll('#tiles div')].find((tile) => tile.innerText.startsWith('{title}')).lastChild.innerText")


def row(name):
    return f"[...document.querySelectorAll('tbody tr')].find((row) => row.cells[0].innerText.startsWith('{name}'))"


def test_shows_what_the_daemon_does(browser, address, load):
    requests.put(f"http://{address}/v1/regions/of.the.page?dtype=BF16&shape=8,64").raise_for_status()
    requests.put(f"http://{address}/v1/tables/of.the.page", json={"theta": 500000, "rows": 128}).raise_for_status()
    browser.open(f"http://{address}/")
    browser.wait("document.querySelector('#tiles dd')?.innerText > 0")
    assert browser.text("#state") == "Ready"
    assert browser.text("h1") == "roped " + requests.get(f"http://{address}/v2").json()["version"]
    assert float(tile(browser, "Failed a second")) > 0
    assert tile(browser, "Median latency").endswith("s")
    operator = browser.run(row("rmsnorm") + ".innerText")
    assert "failed" in operator and "p99" in operator and "kernel" in operator
    browser.wait(row("rmsnorm") + ".querySelectorAll('path[d*=L]').length === 4", 15)  # calls, p50, p90, p99
    assert "healthy" in browser.text("#devices")
    assert "0 B" not in browser.run(row("Host pool") + ".cells[2].innerText")
    assert "BF16 [8, 64]" in browser.text("#regions") and "500000" in browser.text("#tables")
    assert browser.complaints == []
    requests.delete(f"http://{address}/v1/regions/of.the.page")
    requests.delete(f"http://{address}/v1/tables/of.the.page")
    browser.wait("!document.body.innerText.includes('of.the.page')")


def test_is_for_everybody(browser, address, load):
    shifts = """new Promise((done) => new PerformanceObserver((list) => done(
        list.getEntries().reduce((sum, entry) => sum + entry.value, 0))).observe({type: 'layout-shift', buffered: true}))"""
    browser.open(f"http://{address}/")
    browser.wait("document.querySelector('#tiles dd')?.innerText > 0")
    time.sleep(5)
    moved = browser.run(f"Promise.race([{shifts}, new Promise((done) => setTimeout(() => done(0), 1000))])")
    assert moved < 0.05
    assert browser.run("[...document.querySelectorAll('th')].every((cell) => cell.scope && cell.innerText)")
    assert browser.run("[...document.querySelectorAll('[role=img]')].every((plot) => plot.getAttribute('aria-label'))")
    grounds = set()
    for scheme in ("light", "dark"):
        browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    requests.put(f"http://{address}/v1/regions/of.the.page.with.a.name.that.is.long?dtype=BF16&shape=8,64").raise_for_status()
    browser.wait("document.body.innerText.includes('with.a.name')")
    for width in (1440, 1280, 1024, 800, 390):
        browser.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("[...document.querySelectorAll('section')].every((one) => one.scrollWidth <= one.clientWidth)"), width
        browser.screenshot(os.path.join(os.environ["ROPED_INTEROP_BUILD"], "interop", f"page-{width}.png"))
    requests.delete(f"http://{address}/v1/regions/of.the.page.with.a.name.that.is.long")


def choose(browser, field, value):
    browser.run(f"document.querySelector('{field}').value = '{value}', document.querySelector('{field}').dispatchEvent(new Event('change'))")


def test_all_numbers_of_a_row_are_of_one_window(browser, tmp_path):
    """Calls before the page was opened count since the start, and not now."""
    daemon = Daemon(tmp_path)
    body = save({"x": np.ones((4, 8), np.float32)})
    for _ in range(30):
        requests.post(daemon.url + "v1/rmsnorm", data=body).raise_for_status()
    time.sleep(1)
    browser.open(daemon.url)
    browser.wait(row("rmsnorm") + "?.innerText.includes('0 calls')")
    browser.wait("document.querySelector('#tiles dd').innerText === '0'")
    assert tile(browser, "Median latency") == tile(browser, "99th percentile") == "–"
    figures = "[..." + row("rmsnorm") + ".querySelectorAll('.now b')].map((one) => one.innerText)"
    assert browser.run(figures) == ["0", "–", "–", "–"]
    assert "the last 10 seconds" in browser.text(".window")
    choose(browser, "#window", "Infinity")
    rate, *latencies = browser.run(figures)
    assert "30 calls" in browser.run(row("rmsnorm") + ".innerText") and "since the start" in browser.text(".window")
    assert 0 < float(rate) <= 30 and all(text.endswith("s") for text in latencies)
    assert tile(browser, "Calls a second") == rate and tile(browser, "Median latency") == latencies[0]
    assert browser.complaints == []
    daemon.stop()


def test_plots_say_what_is_under_the_pointer(browser, address, load):
    browser.open(f"http://{address}/")
    choose(browser, "#range", "60")
    plot = row("rmsnorm") + ".querySelectorAll('.plot')[1]"
    browser.wait(row("rmsnorm") + "?.querySelectorAll('path[d*=L]').length === 4", 15)
    assert "the last minute" in browser.run(plot + ".getAttribute('aria-label')")
    box = browser.run(f"({plot}.scrollIntoView(), JSON.parse(JSON.stringify({plot}.querySelector('svg').getBoundingClientRect())))")
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=box["left"] + box["width"] - 1, y=box["top"] + 9)
    said = browser.run(plot + ".querySelector('output').innerText")
    assert said.startswith("0 s ago") and all(f"{key} " in said for key in ("p50", "p90", "p99")) and "NaN" not in said
    browser.run(plot + ".focus()")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    browser.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    assert browser.run(plot + ".querySelector('output').innerText") != said
    browser.run(plot + ".blur()")
    assert browser.run(plot + ".querySelector('output').hidden")
    assert [link for link in browser.run("[...document.querySelectorAll('header a')].map((one) => one.href)")] == \
        [f"http://{address}/{path}" for path in ("docs", "openapi.json", "metrics")]


def give(browser, token):
    browser.run(f"document.querySelector('#token').value = '{token}', document.querySelector('#login button').click()")


def test_wants_the_token(browser, tmp_path):
    lines = [f"{name} sha256:{hashlib.sha256(f'secret-of-{name}'.encode()).hexdigest()} {scopes}\n" for name, scopes in SCOPES.items()]
    (tmp_path / "tokens").write_text("".join(lines))
    daemon = Daemon(tmp_path, "--bearer_token_file", tmp_path / "tokens")
    browser.open(daemon.url)
    browser.wait("!document.querySelector('#login').hidden")
    assert browser.run("document.querySelector('main').hidden")
    assert browser.run("document.activeElement.id + document.activeElement.type") == "tokenpassword"
    give(browser, "two words")
    assert "no spaces" in browser.text("#refusal")
    give(browser, "wrong")
    browser.wait("document.querySelector('#refusal').innerText.startsWith('It was refused: ')")
    give(browser, "secret-of-watcher")
    browser.wait("!document.querySelector('main').hidden")
    assert "token 'watcher' has scopes metrics, expected 'regions'" in browser.text("main")
    asked = len(browser.complaints)
    time.sleep(5)
    assert browser.text("#state") == "Ready" and len(browser.complaints) == asked  # what it may not have is asked for once
    browser.open(daemon.url)  # the tab still has it
    browser.wait("!document.querySelector('main').hidden")
    browser.run("document.querySelector('#forget').click()")
    browser.wait("!document.querySelector('#login').hidden && document.querySelector('main').hidden")
    assert browser.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0
    give(browser, "secret-of-boss")
    browser.wait("document.body.innerText.includes('PUT /v1/regions/{name}')")
    assert not [complaint for complaint in browser.complaints if "status of 40" not in complaint]
    daemon.stop()


def test_asks_again_where_only_some_answers_come(browser, tmp_path):
    daemon = Daemon(tmp_path)
    browser.open(daemon.url)
    browser.wait("document.querySelector('#state').innerText === 'Ready'")
    browser.run("""window.whole = window.fetch;
        window.fetch = (path, ...rest) => path.startsWith('metrics') ? whole(path, ...rest) : Promise.reject(new TypeError('cut'));""")
    browser.wait("document.querySelector('#state').innerText.startsWith('No answer from the daemon')")
    assert browser.run("document.querySelector('main').className") == "stale"
    browser.run("window.fetch = window.whole")
    browser.wait("document.querySelector('#state').innerText === 'Ready'")
    assert browser.run("document.querySelector('main').className") == ""
    assert browser.complaints == []
    daemon.stop()


def test_shows_what_a_gpu_says(browser, address):
    """There is none: the text of /metrics gets what one would add."""
    browser.open(f"http://{address}/")
    browser.wait("document.querySelector('#state').innerText === 'Ready'")
    assert "°C" not in browser.text("#devices")
    lines = "".join(f'roped_device_{name}{{device="0"}} {value}\\n' for name, value in (
        ("temperature_celsius", 61), ("power_watts", 350.5), ("utilization_ratio", 0.75), ("memory_used_bytes", 20 << 30), ("memory_bytes", 80 << 30)))
    browser.run(f"""window.whole = window.fetch;
        window.fetch = async (path, ...rest) => {{ const answer = await whole(path, ...rest);
            return path.startsWith('metrics') ? new Response(await answer.text() + '{lines}', {{headers: answer.headers}}) : answer; }};""")
    browser.wait("document.querySelector('#devices').innerText.includes('61 °C · 351 W · 75 % busy · 20.0 GiB of 80.0 GiB used by all processes')")


def test_says_that_the_daemon_stops(browser, tmp_path):
    daemon = Daemon(tmp_path, "--drain_delay_seconds", "6")
    browser.open(daemon.url)
    browser.wait("document.querySelector('#state').innerText === 'Ready'")
    stopping = threading.Thread(target=daemon.stop)
    stopping.start()
    browser.wait("document.querySelector('#state').innerText.startsWith('Shutting down')")
    browser.wait("document.querySelector('#state').innerText.startsWith('No answer from the daemon')")
    assert browser.run("document.querySelector('main').className") == "stale"
    stopping.join()
    again = Daemon(tmp_path, port=daemon.port)
    browser.wait("document.querySelector('#state').innerText === 'Ready'")
    assert browser.run("document.querySelector('main').className") == ""
    again.stop()
