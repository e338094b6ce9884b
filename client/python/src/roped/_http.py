"""Keep-alive connections to one server. An answer that says its length, as roped's
do, is read here: http.client takes as long for its head as the server for a small
call. Any other answer, of a proxy perhaps, is http.client's."""

import io
import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np

from roped._errors import Error

_MOST_HEAD_BYTES = 64 << 10


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: Any
    is_last: bool  # of its connection


class _Replay(io.RawIOBase):
    """What was read of a socket, then the socket."""

    def __init__(self, read: bytes, sock: socket.socket) -> None:
        self.read_before, self.sock = memoryview(read), sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, place: Any) -> int:
        if not self.read_before:
            return self.sock.recv_into(place)
        n = min(len(place), len(self.read_before))
        place[:n] = self.read_before[:n]
        self.read_before = self.read_before[n:]
        return n


class _Connection:
    """One exchange at a time. A small request is one packet, because its head and
    body are sent with one system call."""

    def __init__(self, host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> None:
        self.sock: socket.socket = socket.create_connection((host, port), timeout)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                self.sock = context.wrap_socket(self.sock, server_hostname=host)
        except BaseException:
            self.sock.close()
            raise
        self.is_tls = context is not None
        self.buffer = bytearray(_MOST_HEAD_BYTES)
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)

    def close(self) -> None:
        self.sock.close()

    def is_stale(self) -> bool:
        """Has the server closed it? An idle connection has nothing to read."""
        return bool(self.poll.poll(0))

    def send(self, pieces: list[Any]) -> None:
        if self.is_tls:
            for piece in pieces:
                self.sock.sendall(piece)
            return
        rest = [memoryview(piece) for piece in pieces if len(piece)]
        while rest:
            sent = self.sock.sendmsg(rest)
            while rest and sent >= rest[0].nbytes:
                sent -= rest.pop(0).nbytes
            if sent:
                rest[0] = rest[0][sent:]

    def _read_head(self) -> tuple[int, int]:
        """Bytes in the buffer, and those of the head."""
        n = 0
        while n < _MOST_HEAD_BYTES:
            n_read = self.sock.recv_into(memoryview(self.buffer)[n:])
            if n_read == 0:
                raise HTTPException(f"the server closed the connection after {n} bytes of an answer")
            n += n_read
            end = self.buffer.find(b"\r\n\r\n", 0, n)
            if end >= 0:
                return n, end + 4
        raise HTTPException(f"the head of the answer is longer than {_MOST_HEAD_BYTES} bytes")

    def receive(self, method: str) -> Answer:
        n, n_head = self._read_head()
        first, *lines = self.buffer[: n_head - 4].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = headers.get("content-length", "")
        if not first.startswith("HTTP/1.1 ") or not length.isdecimal() or "transfer-encoding" in headers:
            return self._receive_other(method, bytes(self.buffer[:n]))
        body = np.empty(int(length), np.uint8)
        n_body = min(n - n_head, len(body))
        body[:n_body] = np.frombuffer(self.buffer, np.uint8, n_body, n_head)
        rest = memoryview(body)[n_body:]  # type: ignore[arg-type]
        while rest:
            n_read = self.sock.recv_into(rest)
            if n_read == 0:
                raise HTTPException(f"the answer ended {len(rest)} bytes before its end")
            rest = rest[n_read:]
        return Answer(int(first[9:12]), headers, body, headers.get("connection", "").lower() == "close")

    def _receive_other(self, method: str, read: bytes) -> Answer:
        answer: Any = HTTPResponse(_Replay(read, self.sock), method=method)  # type: ignore[arg-type]
        answer.begin()
        body = np.frombuffer(answer.read(), np.uint8)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status, headers, body, answer.will_close)


def _refusal(answer: Answer) -> Error:
    try:
        sentence = json.loads(answer.body.tobytes())["error"]
    except (ValueError, KeyError, TypeError):
        sentence = f"the server answered {answer.status}"
    return Error(sentence, answer.status)


class Pool:
    """Connections of any number of threads; each request has one for itself."""

    def __init__(self, url: str, token: str | None, ca: str | None, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: '{url}', expected http://HOST:PORT or https://HOST:PORT")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: has a character that a header cannot carry, expected printable ASCII")
        self.url, self.host, self.port = url.rstrip("/"), parts.hostname, parts.port
        self.prefix, self.timeout, self.retries = quote(parts.path.rstrip("/"), safe="/%"), timeout, retries
        host = parts.netloc.rpartition("@")[2]
        self.headers = f"Host: {host}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self.context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self.idle: deque[_Connection] = deque()

    def _connection(self) -> _Connection:
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        return _Connection(self.host, self.port or (443 if self.context else 80), self.timeout, self.context)

    def _exchange(self, connection: _Connection, method: str, path: str, body: list[Any]) -> Answer:
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{self.headers}"
        if body or method in ("POST", "PUT"):
            head += f"Content-Length: {sum(map(len, body))}\r\n"
        try:
            connection.send([f"{head}\r\n".encode("ascii"), *body])
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may be there to be read all the same
        return connection.receive(method)

    def _once(self, method: str, path: str, body: list[Any]) -> Answer:
        connection = None
        try:
            connection = self._connection()
            answer = self._exchange(connection, method, path, body)
        except BaseException as error:
            if connection:
                connection.close()
            if isinstance(error, OSError | HTTPException):
                raise Error(f"{self.url}: {error or type(error).__name__}") from error
            raise
        if answer.is_last:
            connection.close()
        else:
            self.idle.append(connection)
        return answer

    def request(self, method: str, path: str, body: Iterable[Any] = ()) -> Answer:
        """The answer, whose body is an array of bytes. Asks a busy server again when it says."""
        pieces = [*body]
        left = self.retries
        while True:
            answer = self._once(method, path, pieces)
            if answer.status < 300:
                return answer
            wait = answer.headers.get("retry-after", "")
            if answer.status != 503 or not wait.isdecimal() or left == 0:
                raise _refusal(answer)
            time.sleep(int(wait))
            left -= 1

    def json(self, method: str, path: str, document: Any = None) -> Any:
        body = [] if document is None else [json.dumps(document).encode()]
        data = self.request(method, path, body).body
        return json.loads(data.tobytes()) if len(data) else None

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()
