"""client/examples/roped.*: clients to be copied. Each is built with the compiler
of this machine, if there is one, and asks through a proxy that is busy at
first."""

import functools
import http.client
import http.server
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests

import browser as chromium
from test_page import Daemon

EXAMPLES = Path(__file__).resolve().parents[2] / "client/examples"
SOURCES = sorted(EXAMPLES.glob("roped.*"))
# what runs a source, with words in front of the address
COMMANDS = {
    "mjs": ["node"],
    "go": ["go", "run"],
    "rs": ["rustc", "--edition", "2021", "-D", "warnings", "-o"],
}


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on, but for the first of each path: 503."""

    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in self.server.seen:
            self.server.seen[self.path] = time.monotonic()
            return self.answer(503, [("Retry-After", "1")], b'{"error":"every place is taken","code":"busy"}')
        self.server.waited.append(time.monotonic() - self.server.seen[self.path])
        server = http.client.HTTPConnection(self.server.address, timeout=30)
        server.request(self.command, self.path, body, {"Content-Type": "application/x-safetensors"})
        answer = server.getresponse()
        self.answer(answer.status, [], answer.read())

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    do_GET = do_PUT = do_POST = do_DELETE = pass_on


@pytest.fixture
def proxy(address):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.address, server.seen, server.waited = address, {}, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def command_of(source, folder):
    """Builds it, where that is a step of its own."""
    tool, *words = COMMANDS[source.suffix[1:]]
    if not shutil.which(tool):
        pytest.skip(f"no {tool} (deploy/install-deps.sh clients)")
    if tool != "rustc":
        return [tool, *words, source]
    subprocess.run([tool, *words, folder / "program", source], check=True, timeout=120)
    return [folder / "program"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_client_that_was_copied(source, proxy, address, tmp_path):
    command = command_of(source, tmp_path)
    url = f"{'' if source.suffix == '.rs' else 'http://'}127.0.0.1:{proxy.server_port}"
    result = subprocess.run([*command, url], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    found = [float(number) for number in re.findall(r"-?[\d.]+", result.stdout.splitlines()[0])]
    assert found == pytest.approx([0.365234375, 1.4609375, 1.09375, 2.921875, -1.4140625, 0, 1.4140625, 0], rel=1e-6)
    assert re.match(r"refused with 404 no_operator: no operator 'rms_norm'; did you mean", result.stdout.splitlines()[1])
    assert len(proxy.waited) == 4 and min(proxy.waited) >= 1  # region, call, delete, and what is refused
    regions = requests.get(f"http://{address}/v1/regions").json()["regions"]
    assert "example" not in str(regions)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_it_says_what_is_wrong_where_nobody_answers(source, tmp_path):
    command = command_of(source, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"{'' if source.suffix == '.rs' else 'http://'}127.0.0.1:{port}"
    result = subprocess.run([*command, url], capture_output=True, text=True, timeout=300)
    assert result.returncode != 0 and re.search("ECONNREFUSED|refused", result.stderr), result.stderr


@pytest.mark.skipif(not chromium.CHROMIUM, reason="chromium is not installed")
def test_the_javascript_is_for_browsers_too(tmp_path):
    """From another origin, which the daemon allows."""
    (tmp_path / "roped.mjs").write_text((EXAMPLES / "roped.mjs").read_text())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.func.extensions_map[".mjs"] = "text/javascript"  # older mimetypes do not know it
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=site.serve_forever).start()
    daemon = Daemon(tmp_path, "--allowed_origins", f"http://127.0.0.1:{site.server_port}")
    (tmp_path / "index.html").write_text(f"""<!doctype html><title>x</title><body><script type="module">
        import {{example}} from './roped.mjs';
        document.body.innerText = await example('{daemon.url[:-1]}').catch((error) => 'failed: ' + error);</script>""")
    browser = chromium.Browser()
    try:
        browser.open(f"http://127.0.0.1:{site.server_port}/index.html")
        browser.wait("/^y = |^failed/.test(document.body.innerText)")
        assert browser.text("body").startswith("y = 0.365234375 1.4609375 1.09375 2.921875 -1.4140625 0 1.4140625 0\nrefused with 404")
    finally:
        browser.close()
        daemon.stop()
        site.shutdown()
        site.server_close()
