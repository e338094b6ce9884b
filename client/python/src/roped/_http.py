"""Keep-alive connections to one server, which is not trusted: whatever it sends, a
call ends in its time, within the bytes that max_answer allows, with an answer or an
Error. http.client has neither bound, and takes as long for a head as the server for a
small call."""

import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np

from roped._errors import Error, Resend

_MOST_HEAD_BYTES = 64 << 10  # interim answers, chunk sizes and trailers included
_MOST_REFUSAL_BYTES = 64 << 10  # in which a sentence is looked for
_PIECE_BYTES = 256 << 10


Check = Callable[[], None] | None


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: Any
    is_last: bool  # of its connection


class _Broken(OSError):
    """An answer that is none."""


class _Ended(_Broken):
    """The connection was closed before the end of the answer."""


def _size(text: str, what: str, base: int = 10) -> int:
    """A number of bytes in digits alone."""
    digits = "0123456789abcdefABCDEF"[: 10 if base == 10 else 22]
    if not 0 < len(text) <= 18 or text.strip(digits):
        raise _Broken(f"the {what} of the answer is '{text[:60]}', expected a number of bytes")
    return int(text, base)


def _connected(host: str, port: int, left: Callable[[], float]) -> socket.socket:
    """A connection to the first address that takes one."""
    refusal = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left())
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            refusal = error
    raise refusal


def _secured(sock: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
    """TLS over a connection. An alert comes from a server that speaks it; another failure may mean that it does not."""
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except (ssl.SSLError, ConnectionResetError) as error:
        if isinstance(error, ssl.SSLCertVerificationError) or "alert" in str(error).lower():
            raise
        plain = "a daemon without tls_cert_file speaks plain HTTP: begin with http://"
        raise OSError(f"no TLS began there ({error}); {plain}") from error


class _Connection:
    """One exchange at a time, before its deadline. A small request is one packet,
    because its head and body are sent with one system call."""

    def __init__(
        self, host: str, port: int, deadline: float, context: ssl.SSLContext | None, patience: float, check: Check
    ) -> None:
        self.deadline, self.wait, self.patience, self.check = min(deadline, time.monotonic() + patience), 0.0, patience, None
        self.sock: socket.socket = _connected(host, port, self._left)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                self._set_timeout()
                self.sock = _secured(self.sock, context, host)
        except BaseException:
            self.sock.close()
            raise
        self.deadline, self.check, self.is_tls = deadline, check, context is not None
        self.buffer = bytearray(_MOST_HEAD_BYTES)
        self.begin = self.end = 0  # of what was read and not taken
        self.head_left = 0
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)

    def close(self) -> None:
        self.sock.close()

    def is_stale(self) -> bool:
        """Has the server closed it? An idle connection has nothing to read."""
        return self.begin < self.end or bool(self.poll.poll(0))

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _set_timeout(self) -> None:
        """Of the next wait: what is left, or up to 10 ms more, because to set it is a system call."""
        left = min(self._left(), self.patience)
        if not 0 <= self.wait - left < 0.01:
            self.wait = left
            self.sock.settimeout(left)

    def send(self, pieces: list[Any]) -> None:
        rest = [memoryview(piece) for piece in pieces if len(piece)]
        while rest:
            self._set_timeout()
            try:
                sent = self.sock.send(rest[0]) if self.is_tls else self.sock.sendmsg(rest)
            except TimeoutError:
                self._ask_whether_alive()
                continue
            while rest and sent >= rest[0].nbytes:
                sent -= rest.pop(0).nbytes
            if sent:
                rest[0] = rest[0][sent:]

    def _ask_whether_alive(self) -> None:
        """After a wait without a byte: is it slow, or gone? Fails where it is gone, or time is up."""
        self._left()
        if self.check:
            self.check()

    def _read_into(self, place: memoryview) -> int:
        while True:
            self._set_timeout()
            try:
                return self.sock.recv_into(place)
            except TimeoutError:
                self._ask_whether_alive()

    def _read_until(self, mark: bytes, what: str) -> str:
        """What comes before the mark, which is left out. Counts as head."""
        at = self.begin
        while True:
            found = self.buffer.find(mark, at, self.end)
            if found >= 0 and found - self.begin <= self.head_left:
                text = self.buffer[self.begin : found].decode("latin-1")
                self.begin = found + len(mark)
                self.head_left -= len(text) + len(mark)
                return text
            if found >= 0 or self.end - self.begin >= self.head_left:
                raise _Broken(f"the {what} of the answer is longer than {_MOST_HEAD_BYTES} bytes")
            if self.end == len(self.buffer):
                self.buffer[: self.end - self.begin] = self.buffer[self.begin : self.end]
                self.begin, self.end = 0, self.end - self.begin
            at = max(self.begin, self.end - len(mark) + 1)
            n = self._read_into(memoryview(self.buffer)[self.end :])
            if n == 0:
                n = self.end - self.begin
                raise _Ended(f"the server closed the connection after {n} bytes of the {what} of an answer")
            self.end += n

    def _read_head(self) -> tuple[int, dict[str, str], bool]:
        """Status, headers with names in lower case, and whether a next answer may follow: is it HTTP/1.1?"""
        first, *lines = self._read_until(b"\r\n\r\n", "head").split("\r\n")
        status = first[9:12]
        is_http = first.startswith(("HTTP/1.1 ", "HTTP/1.0 ")) and not first[12:13].strip()
        if not is_http or len(status) < 3 or not status.isdecimal() or status < "100":
            raise _Broken(f"the answer begins with '{first[:60]}', expected HTTP/1.1 and a status")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return int(status), headers, first[7] == "1"

    def _take(self, place: Any) -> None:
        """Fills the array with what comes next."""
        rest = memoryview(place)
        n = min(self.end - self.begin, len(rest))
        rest[:n] = memoryview(self.buffer)[self.begin : self.begin + n]
        self.begin += n
        rest = rest[n:]
        while rest:
            n = self._read_into(rest)
            if n == 0:
                raise _Ended(f"the answer ended {len(rest)} bytes before its end")
            rest = rest[n:]

    def _chunks(self) -> Iterator[int]:
        """The length of each chunk, whose bytes are to be taken."""
        while True:
            self.head_left = _MOST_HEAD_BYTES  # the limit of each
            line = self._read_until(b"\r\n", "chunk")
            size = _size(line.partition(";")[0].strip(), "chunk", 16)
            if size == 0:
                break
            yield size
            if self._read_until(b"\r\n", "chunk"):
                raise _Broken("a chunk of the answer does not end where it says")
        while self._read_until(b"\r\n", "trailer"):
            pass

    def _pieces(self, sizes: Iterable[int], most: int) -> Any:
        """As many bytes as the sizes say, or most and one more."""
        body, n = np.empty(_PIECE_BYTES, np.uint8), 0
        for size in sizes:
            size = min(size, most + 1 - n)
            while n + size > len(body):
                grown = np.empty(2 * len(body), np.uint8)
                grown[:n] = body[:n]
                body = grown
            self._take(body[n : n + size])
            n += size
            if n > most:
                break
        return body[:n]

    def _until_end(self) -> Iterator[int]:
        """Of an answer that lasts until the server closes: bytes that are in the buffer."""
        while True:
            if self.begin == self.end:
                self.begin, self.end = 0, self._read_into(memoryview(self.buffer))
            if self.begin == self.end:
                return
            yield self.end - self.begin

    def receive(self, most: int, deadline: float) -> Answer:
        """A body of at most so many bytes; one byte more: it has more."""
        self.deadline, self.head_left = deadline, _MOST_HEAD_BYTES
        self.begin = self.end = 0
        status, headers, may_stay = self._read_head()
        while status < 200:
            if status == 101:
                raise _Broken("the server speaks another protocol from now on")
            status, headers, may_stay = self._read_head()
        if not 200 <= status < 300:
            most = min(most, _MOST_REFUSAL_BYTES)
        is_last = not may_stay or headers.get("connection", "").lower() == "close"
        if status in (204, 304):
            body = np.empty(0, np.uint8)
        elif "transfer-encoding" in headers:
            coding = headers["transfer-encoding"]
            if coding.lower() != "chunked":
                raise _Broken(f"the Transfer-Encoding of the answer is '{coding[:60]}', expected chunked")
            body = self._pieces(self._chunks(), most)
        elif "content-length" in headers:
            length = _size(headers["content-length"], "Content-Length")
            body = np.empty(min(length, most + 1), np.uint8)
            if length <= most or status >= 300:
                self._take(body)
        else:
            body, is_last = self._pieces(self._until_end(), most), True
        return Answer(status, headers, body, is_last or len(body) > most)


def refusal(answer: Answer) -> Error:
    """What an answer other than 2xx says. Only roped itself says that a call did not run."""
    try:
        document = json.loads(answer.body.tobytes())
        sentence, code = document["error"], document.get("code")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sentence = code = None
    if not isinstance(sentence, str):
        sentence = f"the server answered {answer.status}"
    is_code = isinstance(code, str) and len(code) < 64 and code.isascii() and code.isidentifier()
    # 507: Envoy, of a body that it could not keep to send it again
    resend: Resend = "safe" if answer.status in (502, 503, 504, 507) else "never"
    if answer.status == 503 and code in ("busy", "draining"):
        resend = "always"
    return Error(sentence, answer.status, code if is_code else None, resend)


class Pool:
    """Connections of any number of threads to one server; each request has one for itself."""

    def __init__(
        self, url: str, token: str | None, ca: str | None, max_answer: int, patience: float, check: Check
    ) -> None:
        """patience: seconds of silence, and of connecting, after which check is called: it fails where the server is gone."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: '{url}', expected http://HOST:PORT or https://HOST:PORT")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("token: has a character that a header cannot carry, expected printable ASCII")
        self.url, self.host, self.port = url.rstrip("/"), parts.hostname, parts.port
        self.prefix, self.max_answer = quote(parts.path.rstrip("/"), safe="/%"), max_answer
        self.patience, self.check = patience, check
        host = parts.netloc.rpartition("@")[2]
        self.headers = f"Host: {host}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self.context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self.idle: deque[_Connection] = deque()

    def _connection(self, deadline: float) -> _Connection:
        while self.idle:
            connection = self.idle.pop()
            if not connection.is_stale():
                connection.deadline = deadline
                return connection
            connection.close()
        port = self.port or (443 if self.context else 80)
        return _Connection(self.host, port, deadline, self.context, self.patience, self.check)

    def _exchange(
        self, connection: _Connection, method: str, path: str, body: list[Any], deadline: float, headers: str
    ) -> Answer:
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{self.headers}{headers}"
        if body or method in ("POST", "PUT"):
            head += f"Content-Length: {sum(map(len, body))}\r\n"
        try:
            connection.send([f"{head}\r\n".encode("ascii"), *body])
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may be there to be read all the same
        return connection.receive(self.max_answer, deadline)

    def attempt(self, method: str, path: str, body: list[Any], deadline: float, headers: str = "") -> Answer:
        """One exchange. The answer is of any status; Error where there is none."""
        connection: _Connection | None = None
        resend: Resend = "always"
        try:
            connection = self._connection(deadline)
            resend = "safe"
            answer = self._exchange(connection, method, path, body, deadline, headers)
        except BaseException as error:
            if connection:
                connection.close()
            if isinstance(error, OSError | MemoryError):
                is_over = isinstance(error, TimeoutError) and time.monotonic() >= deadline
                is_no_http = isinstance(error, _Broken) and not isinstance(error, _Ended)
                if is_over or is_no_http or isinstance(error, MemoryError):
                    resend = "never"
                raise Error(f"{self.url}: {error or type(error).__name__}", resend=resend) from error
            raise
        if answer.is_last:
            connection.close()
        else:
            self.idle.append(connection)
        return answer

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()
