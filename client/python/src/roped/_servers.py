"""Which of a client's servers gets a request, and when it is sent again.

There is one server, or a list of them that are alike. A request goes to the one
that is ready and has the fewest requests of this client under way. What needs
memory that stays on a server, a region or a table, goes to the client's home:
the server that the client's name leads to, as long as that is there.

A request that did not run, because nothing was connected or the server refused
it, is sent again anywhere. One that may have run is sent again only where it is
safe: where it leaves nothing behind that a second run would see."""

import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from roped._errors import Error
from roped._http import Answer, Pool, refusal
from roped._operators import VERSION

_TRUST_SECONDS = 1.0  # after an answer, before it is asked again whether it is ready
_PROBE_SECONDS = 2.0  # in which it has to say so
_MOST_DOUBT_SECONDS = 8.0  # after failures, before it is asked again
_PATIENCE_SECONDS = 5.0  # without a byte, before it is asked whether it is there; and in which it has to say so
_LIST_SECONDS = 60.0  # that a list of operators is kept
_PAUSE_SECONDS = 0.25  # the second one; the first is none, each later one twice as long and more
_MOST_DOCUMENT_BYTES = 16 << 20  # a byte of JSON can become 30 in memory


def urls_of(url: Any) -> list[str]:
    """An address, addresses with commas between them, or a list."""
    urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else [*url]
    if not urls or not all(isinstance(part, str) and part for part in urls):
        raise ValueError(f"url: {url!r}, expected an address or several")
    twice = [part for part in urls if urls.count(part) > 1]
    if twice:
        raise ValueError(f"url: '{twice[0]}' is there twice")
    return urls


def _json_of(value: Any) -> Any:
    """What json does not know: numpy's numbers, and its arrays, which are lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in a document, expected what JSON has")


def rank(name: str, url: str) -> int:
    """How high a server stands for a name: of each name another one is first, and the order of those that are left
    does not change when one goes. FNV-1a, and a last mix; client/roped_servers.c has the same."""
    value = 0xCBF29CE484222325
    for byte in f"{name}\n{url}".encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 33


class _Server:
    """One of them, and what is known of it."""

    def __init__(self, url: str, token: str | None, ca: str | None, max_answer: int, has_others: bool) -> None:
        """With others to turn to, silence is not waited out."""
        patience, check = (_PATIENCE_SECONDS, self.check) if has_others else (1e9, None)
        self.pool = Pool(url, token, ca, max_answer, patience, check)
        self.in_flight = self.turn = self.n_failures = 0
        self.trusted_until = self.doubted_until = 0.0
        self.failure: Error | None = None  # of the last try to reach it
        self.probing = threading.Lock()
        self.operators: frozenset[str] | None = None
        self.listed_until = 0.0
        self.version = "?"

    def after_fork(self) -> None:
        """In a child: requests under way, and connections, are the parent's."""
        self.probing, self.in_flight = threading.Lock(), 0
        self.pool.close()

    def heard(self, is_ready: bool) -> None:
        self.failure, self.n_failures = None, 0
        self.trusted_until = time.monotonic() + _TRUST_SECONDS if is_ready else 0.0

    def failed(self, failure: Error) -> None:
        self.failure, self.operators, self.trusted_until = failure, None, 0.0
        self.n_failures += 1
        # not after the first one: an idle connection may have ended, and no more
        self.doubted_until = time.monotonic() + min(_MOST_DOUBT_SECONDS, 0.25 * 2**self.n_failures - 0.5)

    def probe(self, limit: float) -> None:
        """Is it there, and ready?"""
        try:
            self.heard(self.pool.attempt("GET", "/v2/health/ready", [], limit).status == 200)
        except Error as failure:
            self.failed(failure)

    def is_ready(self, deadline: float, is_last_resort: bool) -> bool:
        """As far as is known. Asks it where that is too long ago, and nobody else is asking; as a last resort waits
        for that, and asks one that failed just now, too."""
        now = time.monotonic()
        if now < self.trusted_until:
            return True
        if not is_last_resort and now < self.doubted_until:
            return False
        if not self.probing.acquire(blocking=is_last_resort):
            return False
        try:
            if time.monotonic() >= self.trusted_until:
                self.probe(min(deadline, time.monotonic() + _PROBE_SECONDS))
            return time.monotonic() < self.trusted_until
        finally:
            self.probing.release()

    def check(self) -> None:
        """What a connection calls that has been silent for long."""
        self.probe(time.monotonic() + _PATIENCE_SECONDS)
        if self.failure:
            raise ConnectionAbortedError(f"silent for {_PATIENCE_SECONDS:.0f} s, and then: {self.failure}")

    def _document(self, path: str, deadline: float) -> dict[str, Any]:
        try:
            document = json.loads(self.pool.attempt("GET", path, [], deadline).body.tobytes())
        except (Error, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def list_operators(self, deadline: float) -> None:
        """Of a server that has just said that it lacks one: an older version, or a newer."""
        rows = self._document("/v1", deadline).get("operators")
        self.operators = frozenset(str(row.get("name")) for row in rows if isinstance(row, dict)) if rows else frozenset()
        self.listed_until = time.monotonic() + _LIST_SECONDS
        self.version = str(self._document("/v2", deadline).get("version", "?"))

    def lacks(self, operator: str | None) -> bool:
        if operator is None or self.operators is None or time.monotonic() >= self.listed_until:
            return False
        return operator not in self.operators


class Servers:
    """Those of one client."""

    def __init__(
        self, url: Any, token: str | None, ca: str | None, timeout: float, retries: int, max_answer: int,
        name: str | None,
    ) -> None:  # fmt: skip
        if timeout <= 0 or max_answer <= 0:
            raise ValueError(f"timeout is {timeout} and max_answer {max_answer}, expected seconds and bytes above 0")
        if name is not None and not (name.isascii() and name.isprintable() and name.strip()):
            raise ValueError("name: is empty or has a character that a header cannot carry, expected printable ASCII")
        urls = urls_of(url)
        self.all = [_Server(part, token, ca, max_answer, len(urls) > 1) for part in urls]
        self.timeout, self.retries, self.max_answer = timeout, retries, max_answer
        self.kept_header = f"X-Roped-Client: {name}\r\n" if name else ""
        whose = name or uuid.uuid4().hex
        self.ranked = sorted(self.all, key=lambda server: rank(whose, server.pool.url), reverse=True)
        self.only = self.all[0] if len(urls) == 1 else None
        self.home: _Server | None = self.only
        self.url = ", ".join(server.pool.url for server in self.all)
        self.lock = threading.Lock()
        self.n_requests = 0
        self.call = threading.local()  # deadline: of the call that this thread is in, or None

    def after_fork(self) -> None:
        self.lock, self.call = threading.Lock(), threading.local()
        for server in self.all:
            server.after_fork()

    def enter_call(self) -> float | None:
        """From now on all requests of this thread end before one deadline, until leave_call with what this returns."""
        before: float | None = getattr(self.call, "deadline", None)
        if before is None:
            self.call.deadline = time.monotonic() + self.timeout
        return before

    def leave_call(self, before: float | None) -> None:
        self.call.deadline = before

    # ------------------------------------------------------------ choosing
    def _home(self, passed: dict[_Server, Error], deadline: float) -> "_Server | None":
        """Where regions and tables are. One that is not there any more has another in its place, which has none yet."""
        if self.only:
            return self.only
        home = self.home
        if home and home.failure:
            home.is_ready(deadline, True)  # has it gone? While it drains it is there.
        if home and home.failure is None:
            return home
        for is_last_resort in (False, True):
            for server in self.ranked:
                if server.is_ready(deadline, is_last_resort):
                    self.home = server
                    return server
        passed |= {server: server.failure for server in self.ranked if server.failure}
        return next((server for server in self.ranked if server.failure is None), None)

    def _spread(self, passed: dict[_Server, Error], operator: str | None, deadline: float) -> "_Server | None":
        """The one with the least to do; one that is not ready where none is; None: none answers that is not passed."""
        rest = [server for server in self.all if server not in passed and not server.lacks(operator)]
        rest.sort(key=lambda server: (server.in_flight, server.turn))
        for is_last_resort in (False, True):
            for server in rest:
                if server.is_ready(deadline, is_last_resort):
                    return server
        for server in rest:
            if server.failure is None:
                return server
            passed[server] = server.failure
        return None

    @contextmanager
    def _counted(self, server: _Server) -> Iterator[None]:
        with self.lock:
            self.n_requests += 1
            server.in_flight, server.turn = server.in_flight + 1, self.n_requests
        try:
            yield
        finally:
            with self.lock:
                server.in_flight -= 1

    # ------------------------------------------------------------- sending
    def _ask(
        self, server: _Server, method: str, path: str, body: list[Any], deadline: float, headers: str
    ) -> tuple[Answer | None, Error | None, float | None]:
        """The answer, or why there is none or it is none; and after how many seconds the server wants to be asked."""
        try:
            if self.only:
                answer = server.pool.attempt(method, path, body, deadline, headers)
            else:
                with self._counted(server):
                    answer = server.pool.attempt(method, path, body, deadline, headers)
                server.heard(answer.status < 500 and not answer.is_last)
        except Error as failure:
            if not self.only and failure._resend != "never":
                server.failed(failure)
            return None, failure, None
        if 200 <= answer.status < 300:
            if len(answer.body) > self.max_answer:
                url = server.pool.url
                return None, Error(f"{url}: the answer is over {self.max_answer} bytes, the limit of max_answer"), None
            return answer, None, None
        wait = answer.headers.get("retry-after", "")[:9]
        return None, refusal(answer), float(wait) if answer.status == 503 and wait.isdecimal() else None

    def _unknown(self, operator: str) -> Error:
        """No server that was asked has the operator: which versions are they?"""
        versions = ", ".join(f"{s.pool.url} (roped {s.version})" for s in self.all if s.lacks(operator))
        return Error(f"no operator '{operator}' at {versions}; this client is of roped {VERSION}", 404, "no_operator")

    def _together(self, passed: dict[_Server, Error]) -> Error:
        """What all of them say."""
        last = [*passed.values()][-1]
        if len(passed) == 1:
            return last
        texts = (str(e) if s.pool.url in str(e) else f"{s.pool.url}: {e}" for s, e in passed.items())
        error = Error(f"no server took it: {'; '.join(texts)}", last.status, last.code, last._resend)
        error.__cause__ = last
        return error

    def request(
        self, method: str, path: str, body: Iterable[Any] = (), *, is_safe: bool | None = None,
        is_kept: bool = False, operator: str | None = None, header: str = "",
    ) -> Answer:  # fmt: skip
        """The answer, whose body is an array of bytes. is_safe: it may run twice (None: a GET). is_kept: it needs
        what stays on a server. operator: that it needs. header: one more line, with its end."""
        is_safe = method == "GET" if is_safe is None else is_safe
        headers = header + (self.kept_header if is_kept else "") + ("X-Roped-Retry: safe\r\n" if is_safe else "")
        deadline = getattr(self.call, "deadline", None) or time.monotonic() + self.timeout
        stays = is_kept or self.only is not None
        pieces = [*body]
        left, n_pauses = self.retries, 0
        passed: dict[_Server, Error] = {}  # who did not take it, since the last pause
        waits: list[float] = []  # that they asked for
        while True:
            if operator and not self.only and all(server.lacks(operator) for server in self.all):
                raise self._unknown(operator)
            server = self._home(passed, deadline) if stays else self._spread(passed, operator, deadline)
            if server:
                was_passed = server in passed
                answer, found, wait = self._ask(server, method, path, pieces, deadline, headers)
                if answer:
                    return answer
                assert found
                passed[server] = found
                waits += [wait] if wait is not None else []
                if operator and found.code == "no_operator":
                    server.list_operators(deadline)
                    if stays:
                        raise self._unknown(operator) if server.lacks(operator) else found
                    continue
                if found._resend == "never" or (found._resend == "safe" and not is_safe):
                    raise found
                if self.only and found.status is None and found._resend == "always":
                    raise found  # nobody is there, and there is nobody else
                if not self.only and (not stays or (found.status is None and not was_passed)):
                    continue  # with the next one
            failure = self._together(passed)
            if left == 0:
                raise failure
            pause = min(waits) if waits else _PAUSE_SECONDS * (2**n_pauses - 1)
            if time.monotonic() + pause >= deadline:
                more = f": try again in {pause:.3g} s" if waits else ""
                raise Error(f"{failure}{more}", failure.status, failure.code)
            time.sleep(pause)
            left, n_pauses = left - 1, n_pauses + 1
            passed.clear()
            waits.clear()

    def json(self, method: str, path: str, document: Any = None, *, is_kept: bool = False) -> Any:
        """The document that comes back, None where it is empty."""
        body = [] if document is None else [json.dumps(document, default=_json_of).encode()]
        data = self.request(method, path, body, is_kept=is_kept).body
        if len(data) > _MOST_DOCUMENT_BYTES:
            raise Error(f"{self.url}: the answer is a document of over {_MOST_DOCUMENT_BYTES} bytes")
        try:
            return json.loads(data.tobytes()) if len(data) else None
        except (ValueError, RecursionError) as error:
            raise Error(f"{self.url}: the answer is no JSON: {error}") from error

    def close(self) -> None:
        for server in self.all:
            server.pool.close()
