"""Keep-alive connections to one server, over the standard library's HTTP."""

import json
import select
import ssl
import time
from collections import deque
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from roped._errors import Error


class _Gathered(HTTPConnection):
    """Sends head and body with one system call: a small request is one packet."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.pieces: list[Any] = []

    def send(self, data: Any) -> None:
        self.pieces.append(memoryview(data))

    def flush(self) -> None:
        pieces, self.pieces = [piece for piece in self.pieces if piece.nbytes], []
        if self.sock is None:
            self.connect()
        socket: Any = self.sock
        if isinstance(socket, ssl.SSLSocket):
            for piece in pieces:
                socket.sendall(piece)
            return
        while pieces:
            sent = socket.sendmsg(pieces)
            while pieces and sent >= pieces[0].nbytes:
                sent -= pieces.pop(0).nbytes
            if sent:
                pieces[0] = pieces[0][sent:]

    def is_stale(self) -> bool:
        """Has the server closed it? An idle connection has nothing to read."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))


class _GatheredTLS(_Gathered, HTTPSConnection):
    pass


def _read(answer: HTTPResponse) -> Any:
    """The whole body, read into its place."""
    if answer.length is None:
        return np.frombuffer(answer.read(), np.uint8)
    body: Any = np.empty(answer.length, np.uint8)
    rest = memoryview(body)
    while rest.nbytes:
        n = answer.readinto(rest)
        if not n:
            raise Error(f"the answer ended {rest.nbytes} bytes before its end")
        rest = rest[n:]
    answer.read()  # ends it, so that the connection can serve the next call
    return body


def _refusal(answer: HTTPResponse, body: Any) -> Error:
    try:
        sentence = json.loads(body.tobytes())["error"]
    except (ValueError, KeyError, TypeError):
        sentence = f"the server answered {answer.status} {answer.reason}"
    return Error(sentence, answer.status)


class Pool:
    """Connections of any number of threads; each request has one for itself."""

    def __init__(self, url: str, token: str | None, ca: str | None, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: '{url}', expected http://HOST:PORT or https://HOST:PORT")
        self.url, self.host, self.port = url.rstrip("/"), parts.hostname, parts.port
        self.prefix, self.timeout, self.retries = parts.path.rstrip("/"), timeout, retries
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self.idle: deque[_Gathered] = deque()

    def _connection(self) -> _Gathered:
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        if self.context:
            return _GatheredTLS(self.host, self.port, timeout=self.timeout, context=self.context)
        return _Gathered(self.host, self.port, timeout=self.timeout)

    def _exchange(self, connection: _Gathered, method: str, path: str, body: list[Any]) -> tuple[HTTPResponse, Any]:
        connection.putrequest(method, self.prefix + path, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        if body or method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(sum(piece.nbytes for piece in body)))
        connection.endheaders()
        for piece in body:
            connection.send(piece)
        try:
            connection.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may be there to be read all the same
        answer = connection.getresponse()
        return answer, _read(answer)

    def _once(self, method: str, path: str, body: list[Any]) -> tuple[HTTPResponse, Any]:
        connection = self._connection()
        try:
            answer, data = self._exchange(connection, method, path, body)
        except (OSError, HTTPException) as error:
            connection.close()
            raise Error(f"{self.url}: {error or type(error).__name__}") from error
        except BaseException:
            connection.close()
            raise
        if not answer.will_close:
            self.idle.append(connection)
        return answer, data

    def request(self, method: str, path: str, body: Iterable[Any] = ()) -> tuple[HTTPResponse, Any]:
        """The answer and its body. Asks a busy server again when it says."""
        pieces = [memoryview(piece) for piece in body]
        left = self.retries
        while True:
            answer, data = self._once(method, path, pieces)
            if answer.status < 300:
                return answer, data
            wait = answer.headers.get("Retry-After", "")
            if answer.status != 503 or not wait.isdecimal() or left == 0:
                raise _refusal(answer, data)
            time.sleep(int(wait))
            left -= 1

    def json(self, method: str, path: str, document: Any = None) -> Any:
        body = [] if document is None else [json.dumps(document).encode()]
        _, data = self.request(method, path, body)
        return json.loads(data.tobytes()) if len(data) else None

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()
