"""A client of several servers: which one gets a call, what is sent again, and what
becomes of regions when their server dies. Servers that misbehave are made here;
those that die are daemons."""

import asyncio
import http.server
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import start, stop

import roped
from roped import _safetensors, _servers, ops

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = b"".join(bytes(piece) for piece in _safetensors.pieces({"y": ("F32", X.shape, X.view(np.uint8).reshape(-1))}))
READY = "/v2/health/ready"


class Fake:
    """A server that answers POST as told: (status, code of the refusal), or "reset", "cut" (amid the answer),
    "silent", or a function of the request. The last of several answers is given for ever."""

    def __init__(self, *answers, ready=200, documents=None):
        self.answers, self.ready, self.documents = [*answers] or [(200, None)], ready, documents or {}
        self.seen, self.ended = [], threading.Event()
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.seen.append((self.command, self.path, dict(self.headers), body))
                if self.path == READY:
                    if fake.answers == ["silent"] and fake.calls():
                        fake.ended.wait(60)
                    return self.say(fake.ready, b'{"ready":true}')
                if self.command == "GET" and self.path in fake.documents:
                    return self.say(200, fake.documents[self.path])
                answer = fake.answers.pop(0) if len(fake.answers) > 1 else fake.answers[0]
                fake.give(self, answer(self) if callable(answer) else answer)

            do_GET = do_POST = do_PUT = do_DELETE = do

            def say(self, status, body, *headers):
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *arguments):
                pass  # it has reset the connection

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def give(self, handler, answer):
        if answer == "silent":
            self.ended.wait(60)
            handler.close_connection = True
        elif answer == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
        elif answer == "cut":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin")
            handler.wfile.flush()
            handler.close_connection = True
        else:
            status, code = answer
            words = b'{"error":"no","code":"%s"}' % code.encode() if code else b"<html>a proxy"
            after = [("Retry-After", "0")] if code and status == 503 else []
            made = b"" if "into." in handler.path else Y
            handler.say(status, made if status == 200 else words, *after)

    def calls(self):
        return [request for request in self.seen if request[0] == "POST"]

    def close(self):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fakes():
    made = []

    def make(*answers, **options):
        made.append(Fake(*answers, **options))
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@pytest.fixture
def daemons(tmp_path):
    """daemons(N, flags): their processes and addresses; a process that is still there is stopped."""
    made = []

    def make(n, *flags):
        for i in range(len(made), len(made) + n):
            (tmp_path / str(i)).mkdir()
            made.append(start(tmp_path / str(i), *flags))
        return made[-n:]

    yield make
    for process, _ in made:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            stop(process)


def kill(process):
    process.kill()
    process.wait()


def of_home(client, made):
    """The process that has the client's regions."""
    return next(process for process, url in made if url == client._servers.home.pool.url)


# ------------------------------------------------------------------ addresses
def test_addresses(monkeypatch):
    assert _servers.urls_of("http://a:1, http://b:2") == ["http://a:1", "http://b:2"]
    monkeypatch.setenv("ROPED_URL", "http://a:1,http://b:2")
    assert repr(roped.Client()) == "<Client of http://a:1, http://b:2>"
    for wrong, words in {
        (): "expected an address",
        ("http://a", "http://a"): "'http://a' is there twice",
        ("http://a", "b:1"): "'b:1', expected http://HOST:PORT",
        ("http://a", None): "expected an address",
        "http://a,": "expected an address",
    }.items():
        with pytest.raises(ValueError, match=words):
            roped.Client(wrong)
    for name in ("", " ", "a\r\nb", "\u00e9"):
        with pytest.raises(ValueError, match="name: "):
            roped.Client("http://a", name=name)


def test_a_name_has_the_same_home_in_all_clients():
    """Of ropectl, too: test_ropectl_and_python_have_the_same_home."""
    assert _servers.rank("decoder", "http://127.0.0.1:8000") == 1279742220517012094
    assert _servers.rank("", "http://127.0.0.1:8001") == 12671640435734101486
    urls = [f"http://host{i}:8000" for i in range(5)]
    homes = {name: max(urls, key=lambda url: _servers.rank(name, url)) for name in map(str, range(1000))}
    assert all(120 < n < 280 for n in Counter(homes.values()).values())
    rest = urls[1:]
    for name, home in homes.items():  # only those of the first one move
        assert home in (urls[0], max(rest, key=lambda url: _servers.rank(name, url)))


# ------------------------------------------------------------------- choosing
def test_fewest_calls_in_flight(fakes):
    slow, fast = fakes("silent", (200, None)), fakes()
    client = roped.Client([slow.url, fast.url], timeout=50)
    waiting = threading.Thread(target=client.rmsnorm, args=(X,), daemon=True)
    while not slow.calls():  # one of the first two calls is its
        waiting = threading.Thread(target=client.rmsnorm, args=(X,), daemon=True)
        waiting.start()
        waiting.join(0.2)
    n = len(fast.calls())
    for _ in range(10):
        client.rmsnorm(X)
    assert len(slow.calls()) == 1 and len(fast.calls()) >= n + 10
    slow.ended.set()
    waiting.join(20)
    for _ in range(20):
        client.rmsnorm(X)
    assert len(slow.calls()) > 5 and len(fast.calls()) > n + 15


def test_draining_servers_get_no_calls_while_others_are_ready(fakes):
    made = [fakes(ready=503 if i % 2 else 200) for i in range(4)]
    with roped.Client([fake.url for fake in made]) as client:
        for _ in range(20):
            client.rmsnorm(X)
        assert [bool(fake.calls()) for fake in made] == [True, False, True, False]
        for fake in made:
            fake.ready = 503
        client._servers.all[0].trusted_until = client._servers.all[2].trusted_until = 0.0
        np.testing.assert_array_equal(client.rmsnorm(X), X)  # it serves while it drains


def test_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in (first, second)]
    with pytest.raises(roped.Error) as caught:
        roped.Client(urls).rmsnorm(X)
    assert str(caught.value).startswith("no server took it: ") and all(url in str(caught.value) for url in urls)
    assert (caught.value.status, caught.value.code) == (None, None)
    with pytest.raises(roped.Error, match="no server took it"):
        roped.Client(urls).put(X)


def test_one_accepts_and_never_answers(fakes, monkeypatch):
    monkeypatch.setattr(_servers, "_PROBE_SECONDS", 0.8)
    good = fakes()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        silent = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = roped.Client([silent, good.url], timeout=20, name="a")
        for _ in range(5):
            np.testing.assert_array_equal(client.rmsnorm(X), X)
        for i in range(4):  # whatever its home would be
            roped.Client([silent, good.url], timeout=20, name=str(i)).put(X)
        with pytest.raises(roped.Error, match="timed out"):
            roped.Client([silent, silent + "/"], timeout=4, retries=0).rmsnorm(X)


def test_one_falls_silent_amid_a_call(fakes, monkeypatch):
    """As a host does that has lost its network. It is asked whether it is there, and not waited for."""
    monkeypatch.setattr(_servers, "_PATIENCE_SECONDS", 1.0)
    silent, good = fakes("silent"), fakes()
    client = roped.Client([silent.url, good.url], timeout=50)
    while not silent.calls():  # one of the first two is for it
        np.testing.assert_array_equal(client.rmsnorm(X), X)
    assert len(silent.calls()) == 1


def test_a_slow_call_is_waited_for(fakes, monkeypatch):
    monkeypatch.setattr(_servers, "_PATIENCE_SECONDS", 0.2)

    def slow(handler):
        time.sleep(1)
        return 200, None

    made = [fakes(slow), fakes(slow)]
    np.testing.assert_array_equal(roped.Client([fake.url for fake in made]).rmsnorm(X), X)
    assert sum(len(fake.calls()) for fake in made) == 1


# -------------------------------------------------------------- sending again
FAULTS = ["reset", "cut", (502, None), (503, None), (504, None), (507, None), (503, "deadline"), (503, "no_memory")]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("n", [1, 2])
def test_what_may_have_run_is_sent_again_only_where_that_is_safe(fakes, fault, n):
    """A proxy that buffers is such a server, too: it has the whole call, and answers 502 or 504 for a daemon."""
    made = [fakes(fault, (200, None)) for _ in range(n)]
    client = roped.Client([fake.url for fake in made], name="mine")
    np.testing.assert_array_equal(client.rmsnorm(X), X)
    calls = [call for fake in made for call in fake.calls()]
    assert len(calls) == n + 1
    assert all(call[2]["X-Roped-Retry"] == "safe" and "X-Roped-Client" not in call[2] for call in calls)

    region = roped.Region("r", "F32", X.shape, client)
    for arguments, out in (((X,), region), ((region,), region)):
        made = [fakes(fault, (200, None)) for _ in range(n)]
        client = roped.Client([fake.url for fake in made], name="mine")
        with pytest.raises(roped.Error):
            client.rmsnorm(*arguments, out=out)
        calls = [call for fake in made for call in fake.calls()]
        assert len(calls) == 1
        assert "X-Roped-Retry" not in calls[0][2] and calls[0][2]["X-Roped-Client"] == "mine"


def test_an_updated_input_is_a_place_too(fakes):
    fake = fakes("reset", (200, None))
    client = roped.Client([fake.url, fakes("reset").url])
    client._servers.home = client._servers.all[0]
    k = np.zeros((1, 2, 8), np.float32)
    cache = roped.Region("c", "F32", (4, 2, 8), client)
    with pytest.raises(roped.Error):
        client.rope_append(k, k, k, cache, cache, np.array([2]))
    assert len(fake.calls()) == 1 and "X-Roped-Retry" not in fake.calls()[0][2]


@pytest.mark.parametrize("code", ["busy", "draining"])
def test_what_was_refused_is_sent_again_always(fakes, code):
    fake = fakes((503, code), (200, None))
    region = roped.Region("r", "F32", X.shape, roped.Client(fake.url))
    assert region.client.rmsnorm(X, out=region) is region
    assert len(fake.calls()) == 2


def test_a_refusal_is_not_asked_for_twice(fakes):
    made = [fakes((400, "bad_shape")), fakes((400, "bad_shape"))]
    with pytest.raises(roped.Error) as caught:
        roped.Client([fake.url for fake in made]).rmsnorm(X)
    assert caught.value.code == "bad_shape" and sum(len(fake.calls()) for fake in made) == 1


def test_all_are_busy(fakes):
    made = [fakes((503, "busy")), fakes((503, "busy"))]
    with pytest.raises(roped.Error) as caught:
        roped.Client([fake.url for fake in made], retries=2).rmsnorm(X)
    assert (caught.value.status, caught.value.code) == (503, "busy")
    assert [len(fake.calls()) for fake in made] == [3, 3]


# ------------------------------------------------------------------- versions
OLDER = {"/v1": b'{"operators":[{"name":"rope"}]}', "/v2": b'{"name":"roped","version":"0.0.9"}'}


def test_an_operator_that_an_older_daemon_does_not_know(fakes):
    """Its list is read once, and then it gets none of these calls."""
    old, new = fakes((404, "no_operator"), documents=OLDER), fakes()
    client = roped.Client([old.url, new.url])
    for _ in range(20):
        client.rmsnorm(X)
    assert len(old.calls()) <= 1 and [request[1] for request in old.seen].count("/v1") == len(old.calls())
    with pytest.raises(roped.Error) as caught:
        roped.Client([old.url]).rmsnorm(X)
    assert caught.value.code == "no_operator"
    want = f"no operator 'rmsnorm' at {old.url} (roped 0.0.9); this client is of roped {roped.__version__}"
    assert str(caught.value) == want
    older = fakes((404, "no_operator"), documents=OLDER)
    with pytest.raises(roped.Error) as caught:
        roped.Client([old.url, older.url]).rmsnorm(X)
    assert old.url in str(caught.value) and older.url in str(caught.value)


# -------------------------------------------------------------------- regions
def rotated(n, q):
    for _ in range(n):
        q = ops.rope(q, positions=POSITIONS).q
    return q


POSITIONS = np.arange(1, 5)


def test_regions_are_on_one_server(daemons, rng):
    made = daemons(3)
    urls = [url for _, url in made]
    x = rng.standard_normal((4, 64), np.float32)
    with roped.Client(urls, name="here") as client, roped.Client(urls[::-1], name="here") as other:
        regions = [client.put(x * i) for i in range(8)]
        for i, region in enumerate(regions):
            np.testing.assert_array_equal(other.region(region.name).get(), x * i)
        assert [len(roped.Client(url)._rows("/v1/regions", "regions", is_kept=True)) for url in urls].count(8) == 1
        for _ in range(9):  # the others have calls, too
            client.rmsnorm(x)
        for region in regions:
            region.delete()


@pytest.mark.parametrize("seed", range(4))
def test_calls_in_place_and_a_server_that_is_killed(daemons, rng, seed):
    """Killed at some moment, in a call or between two: what is in the region in the end is what is there without."""
    made = daemons(3)
    q, n_steps, n_done, n_lost = rng.standard_normal((4, 2, 64), np.float32), 300, 0, []

    def on_lost(name):
        n_lost.append(name)
        return rotated(n_done, q)

    with roped.Client([url for _, url in made], on_lost=on_lost, timeout=60) as client:
        region = client.put(q, "q" if seed % 2 else None)
        victim = of_home(client, made)
        threading.Timer(0.02 * (seed + 1), victim.kill).start()
        for i in range(n_steps):
            client.rope(region, positions=POSITIONS, out={"q": region})
            n_done = i + 1
        victim.wait(20)
        client.rope(region, positions=POSITIONS, out={"q": region})  # if it came late
        n_done += 1
        np.testing.assert_array_equal(region.get(), rotated(n_steps + 1, q))
        assert n_lost == [region.name]
        region.delete()
        assert client._rows("/v1/regions", "regions", is_kept=True) == []


def test_caches_and_a_server_that_is_killed(daemons, rng):
    made = daemons(2)
    k = rng.standard_normal((16, 1, 2, 8), np.float32)
    slots = [np.array([i]) for i in range(16)]

    def filled(n):
        caches = np.zeros((16, 2, 8), np.float32), np.zeros((16, 2, 8), np.float32)
        for i in range(n):
            ops.rope_append(k[i], k[i], k[i], *caches, slots[i])
        return caches

    n_done = 0
    with roped.Client([url for _, url in made], on_lost=lambda name: filled(n_done)[name == "v"]) as client:
        k_cache, v_cache = client.zeros((16, 2, 8), name="k"), client.zeros((16, 2, 8), name="v")
        for i in range(16):
            if i == 7:
                kill(of_home(client, made))
            client.rope_append(k[i], k[i], k[i], k_cache, v_cache, slots[i])
            n_done = i + 1
        np.testing.assert_array_equal(k_cache.get(), filled(16)[0])
        np.testing.assert_array_equal(v_cache.get(), filled(16)[1])


def test_an_old_copy_is_not_taken_for_the_region(daemons, rng, monkeypatch):
    """A server that cannot be reached for a while has the region as it was then."""
    monkeypatch.setattr(_servers, "_PROBE_SECONDS", 1.0)
    monkeypatch.setattr(_servers, "_PATIENCE_SECONDS", 1.0)
    made = daemons(2)
    q, n_done = rng.standard_normal((4, 2, 64), np.float32), 0
    with roped.Client([url for _, url in made], on_lost=lambda name: rotated(n_done, q), timeout=60) as client:
        region = client.put(q, "q")
        first = of_home(client, made)
        first.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED)  # a thread of it could still answer
        client._servers.home.failed(roped.Error("made to look"))
        client.rope(region, positions=POSITIONS, out={"q": region})
        n_done = 1
        second = of_home(client, made)
        assert second is not first
        first.send_signal(signal.SIGCONT)
        kill(second)
        client.rope(region, positions=POSITIONS, out={"q": region})
        assert of_home(client, made) is first
        np.testing.assert_array_equal(region.get(), rotated(2, q))


def test_a_call_whose_fate_is_not_known(fakes):
    """It is not sent again while what it wrote is there, whatever on_lost would say."""
    listed = {"/v1/regions": b'{"regions":[{"name":"r"}]}'}
    fake = fakes("reset", (200, None), documents=listed)
    client = roped.Client(fake.url, on_lost=lambda name: X)
    region = roped.Region("r", "F32", X.shape, client)
    with pytest.raises(roped.Error):
        client.rmsnorm(region, out=region)
    assert len(fake.calls()) == 1


def test_regions_and_nothing_to_put_again(daemons, rng):
    made = daemons(2)
    x = rng.standard_normal((4, 64), np.float32)
    for on_lost in (None, lambda name: None):
        client = roped.Client([url for _, url in made], on_lost=on_lost, name="5")
        region = client.put(x)
        if on_lost is None:
            kill(of_home(client, made))
        else:
            region.delete()
        with pytest.raises(roped.Error) as caught:
            client.rmsnorm(region)
        assert caught.value.code == "no_region"


def test_threads_that_lose_one_region_put_it_once(daemons, rng):
    made = daemons(2)
    x, n_lost = rng.standard_normal((4, 64), np.float32), []

    def on_lost(name):
        n_lost.append(name)
        return np.ones(64, np.float32)

    async def main():
        async with roped.AsyncClient([url for _, url in made], on_lost=on_lost) as client:
            weight = await client.put(np.ones(64, np.float32))
            kill(of_home(client._client, made))
            return await asyncio.gather(*(client.rmsnorm(x, weight) for _ in range(8)))

    for y in asyncio.run(main()):
        np.testing.assert_array_equal(y, ops.rmsnorm(x))
    assert len(n_lost) == 1


def test_tables_are_put_again(daemons, rng):
    made = daemons(2)
    q = rng.standard_normal((3, 2, 64), np.float32)
    with roped.Client([url for _, url in made]) as client:
        client.put_table("t", {"theta": 5e5, "rotary_dim": 64})
        want = client.rope(q, table="t").q
        kill(of_home(client, made))
        np.testing.assert_array_equal(client.rope(q, table="t").q, want)
        client.delete_table("t")
        with pytest.raises(roped.Error) as caught:
            client.rope(q, table="t")
        assert caught.value.code == "no_table"


# ------------------------------------------- libroped_client, through ropectl
@pytest.fixture
def ropectl(tmp_path):
    """ropectl(URLS, WORDS...): exit status, and what it says."""
    np.save(tmp_path / "x.npy", X)

    def run(urls, *words):
        program = Path(os.environ["ROPED_TEST_BIN"]).with_name("ropectl")
        done = subprocess.run(
            [program, "--server", ",".join(urls), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("fault", ["reset", "cut", (502, None), (503, None), (504, None), (507, None), (503, "busy")], ids=str)
def test_ropectl_sends_again_where_that_is_safe(fakes, ropectl, fault):
    made = [fakes(fault, (200, None)) for _ in range(2)]
    made[1].answers = [(200, None)]
    for _ in range(2):  # each is first once or more
        code, said = ropectl([fake.url for fake in made], "run", "rmsnorm", "x.npy", "--client", "mine")
        assert code == 0, said
    calls = [call for fake in made for call in fake.calls()]
    assert all(call[2]["X-Roped-Retry"] == "safe" and "X-Roped-Client" not in call[2] for call in calls)
    made = [fakes(fault) for _ in range(2)]
    code, said = ropectl([fake.url for fake in made], "run", "rmsnorm", "x.npy", "--into.y", "r", "--client", "mine")
    calls = [call for fake in made for call in fake.calls()]
    assert code != 0 and len(calls) == 1, said
    assert "X-Roped-Retry" not in calls[0][2] and calls[0][2]["X-Roped-Client"] == "mine"


def test_ropectl_and_servers_that_are_not_there(fakes, ropectl):
    good, draining = fakes(), fakes(ready=503)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        urls = [dead, f"http://127.0.0.1:{silent.getsockname()[1]}", draining.url, good.url]
        for _ in range(3):
            assert ropectl(urls, "run", "rmsnorm", "x.npy")[0] == 0
        assert len(good.calls()) == 3 and not draining.calls()
        assert ropectl([dead, draining.url], "run", "rmsnorm", "x.npy")[0] == 0  # it serves while it drains
        code, said = ropectl([dead, dead], "run", "rmsnorm", "x.npy")
        assert code == 4 and f"could not connect to {dead}" in said
    code, said = ropectl([","], "status")
    assert code == 1 and "no address between commas" in said


def test_ropectl_and_python_have_the_same_home(daemons, ropectl, rng):
    urls = [url for _, url in daemons(3)]
    for name in "abcd":
        assert ropectl(urls, "regions", "put", f"r{name}", "x.npy", "--client", name)[0] == 0
        np.testing.assert_array_equal(roped.Client(urls, name=name).region(f"r{name}").get(), X)
        code, said = ropectl(urls, "run", "rmsnorm", "x.npy", f"--into.y=r{name}", "--client", name)
        assert code == 0, said
