"""The client beside its operators: regions, tables, errors, connections, memory."""

import asyncio
import gc
import http.server
import os
import shutil
import socket
import subprocess
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from conftest import start, stop

import roped


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 64), np.float32)


def test_regions(client, x):
    want = client.rmsnorm(x)
    with client.put(x) as region, client.zeros(x.shape, name="python-y") as y:
        assert region.dtype == "F32" and region.shape == x.shape
        np.testing.assert_array_equal(region.get(), x)
        assert client.rmsnorm(region, out=y) is y
        np.testing.assert_array_equal(client.region("python-y").get(), want)
        half = region.part(128 * 4, (2, 64))
        np.testing.assert_array_equal(client.rmsnorm(half), want[2:])
        np.testing.assert_array_equal(client.rmsnorm(region), want)
    with pytest.raises(KeyError):
        client.region("python-y")


def test_outputs_by_name(client, x):
    with client.zeros(x.shape) as total:
        result = client.add_rmsnorm(x, x, out={"residual": total})
        assert result.residual is total
        np.testing.assert_array_equal(total.get(), x + x)
        np.testing.assert_array_equal(result.y, client.add_rmsnorm(x, x).y)
    with pytest.raises(TypeError, match="out is a dict"):
        client.add_rmsnorm(x, x, out=total)


def test_caches_in_regions(client, rng):
    k = rng.standard_normal((1, 2, 8), np.float32)
    with client.zeros((4, 2, 8)) as k_cache, client.zeros((4, 2, 8)) as v_cache:
        result = client.rope_append(k, k, k, k_cache, v_cache, np.array([2]))
        assert result.k_cache is k_cache
        np.testing.assert_array_equal(k_cache.get()[2], k[0])
        assert not k_cache.get()[[0, 1, 3]].any()


def test_tables(client, rng):
    q = rng.standard_normal((3, 2, 64), np.float32)
    client.put_table("python", {"theta": 5e5, "rotary_dim": 64})
    assert "python" in [table["name"] for table in client.tables()]
    np.testing.assert_array_equal(client.rope(q, table="python").q, client.rope(q, theta=5e5).q)
    table = client.put_table("python", {"model_type": "glm", "head_dim": 64, "rope_theta": 5e5, "partial_rotary_factor": 1})
    assert table["tables"][0]["style"] == "gptj"
    expected = client.rope(q, theta=5e5, style="gptj").q
    np.testing.assert_array_equal(client.rope(q, table="python").q, expected)
    client.put_table("python", {"model_type": "new", "head_dim": 64, "rope_theta": 5e5}, style="gptj")
    np.testing.assert_array_equal(client.rope(q, table="python").q, expected)
    with pytest.raises(roped.Error, match="model_type 'new' is not known"):
        client.put_table("python", {"model_type": "new", "head_dim": 64, "rope_theta": 5e5})
    client.delete_table("python")
    with pytest.raises(roped.Error, match="python"):
        client.rope(q, table="python")


def test_errors_name_the_culprit(client, x):
    with pytest.raises(roped.Error) as caught:
        client.rmsnorm(x, x[0, :3].copy())
    assert str(caught.value) == "tensor 'weight': dim 0 is 3, expected h = 64 (set by 'x')"
    assert (caught.value.code, caught.value.status) == ("bad_shape", 400)
    with pytest.raises(roped.Error) as caught:
        client.rmsnorm(x, eps=-1.0)
    assert caught.value.code == "bad_parameter" and "'eps'" in str(caught.value)
    with pytest.raises(roped.Error, match="'nobody'") as caught:
        client.rope(x.reshape(-1, 1, 64), table="nobody")
    assert (caught.value.code, caught.value.status) == ("no_table", 404)
    with pytest.raises(TypeError, match=r"unexpected argument 'epps'; did you mean 'eps'\?"):
        client.rmsnorm(x, epps=1.0)
    with pytest.raises(TypeError, match="misses tensor 'residual'"):
        client.add_rmsnorm(x)
    with pytest.raises(TypeError, match="tensor 'x': list"):
        client.rmsnorm([1.0])
    with pytest.raises(TypeError, match="complex64"):
        client.rmsnorm(x.astype(np.complex64))
    with pytest.raises(roped.Error, match="127.0.0.1:9: ") as caught:
        roped.Client("http://127.0.0.1:9").rmsnorm(x)
    assert (caught.value.code, caught.value.status) == (None, None)
    with pytest.raises(ValueError, match="'ftp://host'"):
        roped.Client("ftp://host")


def test_timing(client, x):
    client.rmsnorm(x)
    timing = client.timing
    assert 0 < timing.kernel < timing.wall and timing.receive > 0


def test_views_are_sent_in_order(client, x):
    np.testing.assert_array_equal(client.rmsnorm(x.T), client.rmsnorm(np.ascontiguousarray(x.T)))
    np.testing.assert_array_equal(client.rmsnorm(x.astype(">f4").astype("<f4")), client.rmsnorm(x))


def test_threads_share_a_client(client, x):
    want, failures = client.rmsnorm(x), []

    def work():
        for _ in range(20):
            if not np.array_equal(client.rmsnorm(x), want):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and 1 <= len(client._servers.all[0].pool.idle) <= 9


def test_async(server, x):
    async def main():
        async with roped.AsyncClient(server) as client:
            all_y = await asyncio.gather(*(client.rmsnorm(x * i) for i in range(1, 20)))
            region = await client.put(x)
            assert np.array_equal(await client.get(region), x)
            kept = await client.rmsnorm(x, out=region)
            assert kept is region and client.timing.wall > 0
            assert (await client.region(region.name)).shape == x.shape
            await client.put_table("python-async", {"theta": 5e5})
            assert "python-async" in [table["name"] for table in await client.tables()]
            await client.delete_table("python-async")
            assert (await client.describe("rope"))["name"] == "rope" and await client.devices()
            await client.delete(region)
            with pytest.raises(roped.Error):
                await client.get(region)
            return all_y

    all_y = asyncio.run(main())
    assert len(all_y) == 19
    for y in all_y:
        np.testing.assert_allclose(y, all_y[0], rtol=1e-4)


def test_token(tmp_path, x):
    (tmp_path / "token").write_text("secret-of-the-test-0123456789\n")
    process, url = start(tmp_path, "--bearer_token_file", tmp_path / "token")
    try:
        assert roped.Client(url, token="secret-of-the-test-0123456789").rmsnorm(x).shape == x.shape
        with pytest.raises(roped.Error) as caught:
            roped.Client(url).rmsnorm(x)
        assert caught.value.status == 401
    finally:
        stop(process)


def test_tls(tmp_path, x):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        key,
        "-out",
        cert,
        "-subj",
        "/CN=test",
    ]
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    subprocess.run([*make, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    process, url = start(tmp_path, "--tls_cert_file", cert, "--tls_key_file", key)
    url = url.replace("http:", "https:")
    try:
        client = roped.Client(url, ca=str(cert))
        assert client.rmsnorm(x).shape == x.shape and client.rmsnorm(x).shape == x.shape
        assert len(client._servers.all[0].pool.idle) == 1
        big = np.ones((4096, 64), np.float32)
        np.testing.assert_allclose(client.rmsnorm(big), big, rtol=1e-5)
        with pytest.raises(roped.Error, match="certificate"):
            roped.Client(url).rmsnorm(x)
    finally:
        stop(process)


def test_https_to_a_plain_port_says_so(server, x):
    for _ in range(5):
        with pytest.raises(roped.Error, match="^https://127.* speaks plain HTTP: begin with http://$"):
            roped.Client(server.replace("http:", "https:")).rmsnorm(x)


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses twice, then answers, and closes the connection without a word."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self):
        type(self).asked += 1
        body = b'{"error": "busy"}' if self.asked < 3 else b'{"tables": []}'
        self.send_response(503 if self.asked < 3 else 200)
        if self.asked < 3:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.asked >= 3

    def log_message(self, *arguments):
        pass


def test_busy_servers_are_asked_again_and_stale_connections_replaced():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(roped.Error, match="busy"):
        roped.Client(url, retries=1).tables()
    Busy.asked = 0
    client = roped.Client(url)
    assert client.tables() == [] and Busy.asked == 3
    assert client.tables() == [] and Busy.asked == 4  # the server had closed the connection
    server.shutdown()
    server.server_close()


def answered(text, **options):
    """What a client makes of an answer with these bytes, after which the server closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            options.setdefault("retries", 0)
            return roped.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", **options).tables()
        finally:
            thread.join()


OTHERS = {
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"tabl\r\n7\r\nes\":[]}\r\n0\r\n\r\n",
    "until it closes": b'HTTP/1.1 200 OK\r\n\r\n{"tables":[]}',
    "HTTP/1.0": b'HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\n{"tables":[]}',
    "after an interim one": b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:13\r\n\r\n{"tables":[]}',
}
BROKEN = {
    "closed the connection after 0 bytes": b"",
    "closed the connection after 15 bytes": b"HTTP/1.1 200 OK",
    "ended 1 bytes before its end": b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"tables":[]}',
    "is longer than 65536 bytes": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000,
    "hello": b"hello\r\n\r\n",
}


BODY = b'{"tables":[{"name":"\\u001b[31m"}]}'
LIMITED = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x;a=b\r\n%s\r\n0\r\nX: y\r\n\r\n"
    % (BODY[:5], len(BODY) - 5, BODY[5:]),
    "until it closes": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "after hints": b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length:%d\r\n\r\n%s"
    % (len(BODY), BODY),
}


@pytest.mark.parametrize("name", LIMITED)
def test_an_answer_has_a_limit(name):
    assert answered(LIMITED[name], max_answer=len(BODY)) == [{"name": "\x1b[31m"}]
    with pytest.raises(roped.Error, match=f"is over {len(BODY) - 1} bytes, the limit of max_answer"):
        answered(LIMITED[name], max_answer=len(BODY) - 1)


def test_limits_are_above_0():
    for limit in ({"timeout": 0}, {"max_answer": 0}):
        with pytest.raises(ValueError, match="above 0"):
            roped.Client("http://127.0.0.1:9", **limit)


def test_a_refusal_is_one_printable_line():
    sentence = b'{"error":"\\u001b]0;owned\\u0007\\ncaf\\u00e9 \\u202e"}'
    with pytest.raises(roped.Error) as caught:
        answered(b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%s" % (len(sentence), sentence))
    assert str(caught.value) == r"\u001b]0;owned\u0007\u000acaf\u00e9 \u202e".replace(r"\u00e9", "\u00e9")


def test_a_busy_server_is_not_waited_for_beyond_the_time():
    with pytest.raises(roped.Error, match="answered 503: try again in 30 s"):
        answered(b"HTTP/1.1 503 Busy\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", timeout=20, retries=1)


def test_all_requests_of_a_call_have_its_time(rng):
    """Registering memory, the call in it, and the call in a body: a server that is silent each time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = roped.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)
        start = time.monotonic()
        with pytest.raises(roped.Error, match="timed out"):
            client.rope(rng.standard_normal((512, 8, 128), np.float32))
        assert time.monotonic() - start < 0.95


def test_what_comes_early_is_no_answer():
    """A second answer, which nobody asked for, is not that of the next request."""
    good = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"tables":[]}'
    early = b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"tables":[{"early": 1}]}'
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers = []

        def serve():
            for answer in (good + early[:10], good + early, good):
                peers.append(listener.accept()[0])
                peers[-1].recv(65536)
                peers[-1].sendall(answer)

        threading.Thread(target=serve).start()
        client = roped.Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=20)
        assert [client.tables() for _ in range(3)] == [[], [], []]
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("name", OTHERS)
def test_answers_of_other_servers(name):
    assert answered(OTHERS[name]) == []


@pytest.mark.parametrize("words", BROKEN)
def test_broken_answers(words):
    with pytest.raises(roped.Error, match=words):
        answered(BROKEN[words])


def test_a_token_that_no_header_carries():
    with pytest.raises(ValueError, match="token: "):
        roped.Client("http://127.0.0.1:9", token="a\r\nX-Other: b")


def test_shared_memory_is_used_and_reused(server, rng):
    big = rng.standard_normal((512, 8, 128), np.float32)
    plain = roped.Client(server, shared_memory=False)
    with roped.Client(server) as client:
        first = client.rope(big)
        assert client.timing.receive == 0.0, "the body travelled"
        np.testing.assert_array_equal(first.q, plain.rope(big).q)
        assert plain.timing.receive > 0
        kept = first.q.copy()
        second = client.rope(big * 2)
        np.testing.assert_array_equal(first.q, kept)  # an array's memory is its own
        del first, second
        gc.collect()
        n_segments = client._segments.count
        for _ in range(5):
            client.rope(big.astype(ml_dtypes.bfloat16)).q.astype(np.float32)
            client.rope(big)
        assert client._segments.count <= n_segments + 2
        with pytest.raises(roped.Error, match="positions"):
            client.rope(big, positions=np.full(512, -2))


def in_child(function):
    """What a child of this process says: an exception's name, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            function()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".encode()
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_child_has_memory_and_connections_of_its_own(server, rng):
    """A client is made, and then the process forks: both call, and neither sees what the other one does."""
    big = rng.standard_normal((512, 8, 128), np.float32)
    with roped.Client(server) as client, roped.Client(server, shared_memory=False) as plain:
        held = [client.rope(big).q]
        client.rope(big)
        plain.rope(big[:2])
        want = {n: plain.rope(n * big).q for n in (2, 3, 4)}
        gc.collect()
        before = {segment.name for segment in client._segments.free}
        assert before and plain._servers.all[0].pool.idle

        def child():
            assert not plain._servers.all[0].pool.idle
            made = client.rope(2 * big).q
            assert client.timing.receive == 0.0
            held.clear()  # whose memory is the parent's
            gc.collect()
            others = [client.rope(n * big).q for n in (3, 4)]
            assert before.isdisjoint(segment.name for segment in client._segments.free)
            for array, n in zip((made, *others), (2, 3, 4)):
                np.testing.assert_array_equal(array, want[n])

        kept = held[0].copy()
        assert in_child(child) == ""
        np.testing.assert_array_equal(held[0], kept)
        np.testing.assert_array_equal(client.rope(2 * big).q, want[2])


def test_a_child_has_threads_of_its_own(server, x):
    client = roped.AsyncClient(server, connections=1)
    want = asyncio.run(client.rmsnorm(x))

    def child():
        made = asyncio.run(asyncio.wait_for(client.rmsnorm(x), 20))
        np.testing.assert_array_equal(made, want)

    assert in_child(child) == ""
    asyncio.run(client.close())


def test_a_server_that_forgot_the_memory(server, rng):
    big = rng.standard_normal((512, 8, 128), np.float32)
    with roped.Client(server) as client:
        want = client.rope(big).q.copy()
        gc.collect()
        client._servers.request("POST", "/v2/systemsharedmemory/unregister")
        np.testing.assert_array_equal(client.rope(big).q, want)
        assert client.timing.receive > 0
        gc.collect()
        client.rope(big)
        assert client.timing.receive == 0.0


def test_without_shared_memory(tmp_path, rng):
    process, url = start(tmp_path)
    try:
        big = rng.standard_normal((512, 8, 128), np.float32)
        client = roped.Client(url)
        assert client.rope(big).q.shape == big.shape and client._segments.is_off
        assert client.timing.receive > 0
    finally:
        stop(process)
