"""Calls to a roped daemon: tensors go in, tensors of the same kind come out."""

import asyncio
import json
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

import numpy as np

from roped import _safetensors, _shapes
from roped._errors import Error
from roped._functions import Operator, methods, text_of
from roped._programs import AsyncProgram, Program
from roped._recorder import Recorder
from roped._servers import Servers
from roped._shared import LEAST_BYTES, SEGMENT_NAME, Segments
from roped._tensors import as_array, dtype_name, from_bytes, host_bytes, is_torch

if TYPE_CHECKING:
    from roped._operators import AsyncOperators, Operators
else:
    AsyncOperators = Operators = object

Sent = dict[str, tuple[str, tuple[int, ...], Any]]  # type, shape, bytes
Query = list[tuple[str, str]]
_MOST_LOSSES = 3  # during one call
Device = int | Literal["spread"] | None
_clients: weakref.WeakSet[Any] = weakref.WeakSet()  # of both kinds


def _after_fork() -> None:
    """In a child: what the parent uses is left to it."""
    for client in [*_clients]:
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _seconds(milliseconds: str) -> float:
    """What is no time is 0."""
    try:
        seconds = float(milliseconds) * 1e-3
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def _without_gradient(op: Operator, results: list[Any], inputs: Iterable[Any]) -> list[Any]:
    """Tensors of torch that say so where a backward reaches them."""
    from roped._gradients import refused_remote

    made = [i for i, result in enumerate(results) if is_torch(result)]
    for i, result in zip(made, refused_remote(op, [results[i] for i in made], [*inputs])):
        results[i] = result
    return results


def _records_gradients() -> bool:
    """In this thread: torch's switch is of a thread."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.is_grad_enabled())


def _run_as(records_gradients: bool, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
    if records_gradients == _records_gradients():
        return function(*arguments, **named)
    with sys.modules["torch"].set_grad_enabled(records_gradients):
        return function(*arguments, **named)


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: phases as the server says them, and all of it as seen here."""

    wall: float = 0.0
    receive: float = 0.0
    queue: float = 0.0
    plan: float = 0.0
    h2d: float = 0.0
    kernel: float = 0.0
    d2h: float = 0.0

    @staticmethod
    def _read(header: str, wall: float) -> "Timing":
        phases = {"wall": wall}
        for part in header.split(","):
            name, _, milliseconds = part.strip().partition(";dur=")
            if name in Timing.__dataclass_fields__ and name != "wall":
                phases[name] = _seconds(milliseconds)
        return Timing(**phases)


    def _repr_html_(self) -> str:
        """In a notebook: a row for each phase, with a bar."""
        phases = {name: getattr(self, name) for name in self.__dataclass_fields__}
        whole = max(phases.values()) or 1.0
        rows = [
            f"<tr><th>{name}</th><td>{seconds * 1e6:.1f} µs</td>"
            f'<td><div style="background:steelblue;height:.8em;width:{200 * seconds / whole:.0f}px"></div></td></tr>'
            for name, seconds in phases.items()
        ]
        return f"<table>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Region:
    """Memory that stays on the server, as a tensor: an input of calls, or the place of an output."""

    name: str
    dtype: str | None  # as safetensors has it: "BF16"
    shape: tuple[int, ...]
    client: "Client" = field(repr=False, compare=False)
    like: Any = field(default=None, repr=False, compare=False)  # of this library get() makes tensors
    offset: int | None = None  # bytes, of a part

    def get(self) -> Any:
        """A copy of the whole region, of the kind that was put."""
        return self.client.get(self)

    def delete(self) -> None:
        self.client.delete(self)

    def part(self, offset: int, shape: Sequence[int], dtype: str | None = None) -> "Region":
        """A tensor inside the region, offset bytes from its start."""
        return Region(self.name, dtype or self.dtype, tuple(shape), self.client, self.like, offset)

    def __enter__(self) -> "Region":
        return self

    def __exit__(self, *error: object) -> None:
        self.delete()

    def _place(self, name: str) -> str:
        return name if self.offset is None else f"{name}:{self.offset}"

    def _as_input(self, tensor: str, name: str) -> Query:
        query = [(f"from.{tensor}", self._place(name))]
        if self.offset is not None:
            query += [(f"shape.{tensor}", text_of(self.shape)), (f"dtype.{tensor}", str(self.dtype))]
        return query


class Client(Operators):  # a method for each operator is added below
    """A roped daemon, or several that are alike. Threads may share it: each request has a connection of its own.

    url: http://HOST:PORT or https://..., or a list of them; default $ROPED_URL (with commas between several), else
        port 8000 of this host. Of several each call goes to the one with the fewest calls of this client under way.
    token: bearer token. ca: file of certificates to trust, instead of the system's.
    timeout: seconds that a call may take, from connecting to the last byte, asking again included.
    retries: how often a call is sent again after a pause: to a busy server (503) when its Retry-After says; and after
        a broken connection, 502, 504 or 507, unless it writes into a region.
    max_answer: most bytes of one answer.
    shared_memory: large calls to a server of this host travel in shared memory where it allows that. Not of several.
    name: whom a proxy shall lead to one daemon (X-Roped-Client), and of several the one that keeps this client's
        regions and tables. Default: none is sent, and one of several is chosen.
    on_lost: called with the name of a region that a call needs and that is lost, returns what shall be in it, or None.

    timing says where the time of the last call went.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        ca: str | None = None,
        timeout: float = 300.0,
        retries: int = 3,
        max_answer: int = 1 << 30,
        shared_memory: bool = True,
        name: str | None = None,
        on_lost: Callable[[str], Any] | None = None,
    ) -> None:
        if url is None or url == "":
            url = os.environ.get("ROPED_URL") or "http://127.0.0.1:8000"
        self._servers = Servers(url, token, ca, timeout, retries, max_answer, name)
        self._segments = Segments(self._servers)
        self._segments.is_off |= not shared_memory
        self._timing = ("", 0.0)
        self._on_lost = on_lost
        self._losing = threading.RLock()
        self._names: dict[str, str] = {}  # on the server, of regions that were put again
        self._tables: dict[str, tuple[str, Any]] = {}  # query and document of those that this client put
        _clients.add(self)

    def _after_fork(self) -> None:
        """Regions and tables are the server's, and there for both."""
        self._losing = threading.RLock()
        self._servers.after_fork()
        self._segments.after_fork()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._servers.url}>"

    @property
    def timing(self) -> Timing:
        return Timing._read(*self._timing)

    def close(self) -> None:
        self._segments.close()
        self._servers.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------- calls
    def _call(self, op: Operator, arguments: tuple[Any, ...], out: Any, named: dict[str, Any]) -> Any:
        tensors, params = op.bound(arguments, named, ["table"] if op.has_angles else ())
        sent: Sent = {}
        values: dict[str, Any] = {}  # outputs that stay in regions
        like = None
        for name, tensor in tensors.items():
            if isinstance(tensor, Region):
                if name in op.updated:
                    values[name] = tensor
                continue
            array = as_array(tensor, name)
            like = array if like is None or is_torch(array) else like
            sent[name] = (dtype_name(array.dtype), tuple(array.shape), host_bytes(array))
        places = op.places(out)
        values |= places
        before = self._servers.enter_call()
        try:
            made = self._send_kept(op, sent, tensors, params, places, values)
        finally:
            self._servers.leave_call(before)
        for name, (kind, data) in made.items():
            values[name] = from_bytes(data, kind[0], kind[1], like)
        if values.keys().isdisjoint(op.output_names):
            raise Error(f"{self._servers.url}: the answer has no output of {op.name}")
        results = [values.get(name) for name in op.output_names]
        return op.result(_without_gradient(op, results, tensors.values()) if is_torch(like) else results)

    def _send_kept(
        self, op: Operator, sent: Sent, tensors: Mapping[str, Any], params: Mapping[str, Any],
        places: Mapping[str, Region], kept: Mapping[str, Region],
    ) -> dict[str, Any]:  # fmt: skip
        """Type, shape and bytes of the outputs that come back. kept: those that do not."""
        table = params.get("table")
        if table is None and len(sent) == len(tensors) and not kept:
            query = [(name, text_of(value)) for name, value in params.items()]
            return self._send(op, query, sent, tensors, params, kept, False)
        names = {region.name for region in kept.values()}
        used = names | {tensor.name for tensor in tensors.values() if isinstance(tensor, Region)}

        def send() -> dict[str, Any]:
            query = [(name, text_of(value)) for name, value in params.items()]
            for name, tensor in tensors.items():
                if isinstance(tensor, Region):
                    query += tensor._as_input(name, self._there(tensor.name))
            query += [(f"into.{name}", region._place(self._there(region.name))) for name, region in places.items()]
            return self._send(op, query, sent, tensors, params, kept, bool(used) or table is not None)

        made: dict[str, Any] = self._with_what_is_lost(used, names, table, send)
        return made

    def _send(
        self, op: Operator, query: Query, sent: Sent, tensors: Mapping[str, Any], params: Mapping[str, Any],
        kept: Mapping[str, Region], uses_kept: bool,
    ) -> dict[str, Any]:  # fmt: skip
        size = sum(data.nbytes for _, _, data in sent.values())
        if size >= LEAST_BYTES and not self._segments.is_off and not op.updated:
            placed = self._placed(op, sent, tensors, params, kept)
            if placed:
                more, outputs, _inputs = placed
                try:
                    self._post(op.name, query + more, {}, is_safe=False, is_kept=True)
                    return outputs
                except Error as error:
                    if SEGMENT_NAME not in str(error):
                        raise
                    del placed, outputs, _inputs
                    self._segments.forget()  # the server was started anew
        return self._post(op.name, query, sent, is_safe=not kept, is_kept=uses_kept)

    def _placed(
        self, op: Operator, sent: Sent, tensors: Mapping[str, Any], params: Mapping[str, Any], kept: Any
    ) -> tuple[Query, dict[str, Any], Any] | None:
        """The call in shared memory: its query, its outputs, and what keeps its inputs."""
        inputs = {n: (str(t.dtype), t.shape) for n, t in tensors.items() if isinstance(t, Region)}
        try:
            made = _shapes.outputs(op, inputs | {n: (dtype, shape) for n, (dtype, shape, _) in sent.items()}, params)
        except _shapes.Mismatch:
            return None
        made = {name: kind for name, kind in made.items() if name not in kept}
        filled, placed = self._segments.fill(sent), self._segments.place(made)
        if not filled or not placed:
            return None
        return filled[0] + placed[0], {name: (made[name], data) for name, data in placed[1].items()}, filled[1]

    def _post(self, op: str, query: Query, sent: Sent, *, is_safe: bool, is_kept: bool) -> dict[str, Any]:
        start = time.perf_counter()
        path = f"/v1/{op}?{urlencode(query)}" if query else f"/v1/{op}"
        body = _safetensors.pieces(sent) if sent else ()
        answer = self._servers.request("POST", path, body, is_safe=is_safe, is_kept=is_kept, operator=op)
        self._timing = (answer.headers.get("server-timing", ""), time.perf_counter() - start)
        return _safetensors.read(answer.body) if len(answer.body) else {}

    # -------------------------------------------------- what a server lost
    def _there(self, name: str) -> str:
        """What the server calls a region."""
        return self._names.get(name, name)

    def _with_what_is_lost(
        self, used: Collection[str], written: Collection[str], table: str | None, send: Callable[[], Any]
    ) -> Any:
        """What send makes, with regions and the table put again where the server has lost them."""
        for left in range(_MOST_LOSSES, -1, -1):
            names = {name: self._there(name) for name in used}
            try:
                return send()
            except Error as error:
                if left == 0 or not (self._put_table_again(error, table) or self._put_again(error, names, written)):
                    raise
        raise AssertionError("not reached")

    def _put_table_again(self, error: Error, table: str | None) -> bool:
        if table is None or table not in self._tables or error.code not in ("no_table", "table_lost"):
            return False
        query, document = self._tables[table]
        self._object("PUT", f"/v1/tables/{quote(table, safe='')}{query}", document, is_kept=True)
        return True

    def _put_again(self, error: Error, names: Mapping[str, str], written: Collection[str]) -> bool:
        """Regions of a call, by what the server called them, with what on_lost says. A call that may have run is sent
        again only where all that it wrote is lost, and so what it did."""
        is_refused = error.code in ("no_region", "region_lost")
        may_have_run = error._resend == "safe" or (error.status or 0) >= 500
        if not self._on_lost or not names or not (is_refused or may_have_run):
            return False
        with self._losing:
            there = {row.get("name") for row in self._rows("/v1/regions", "regions", is_kept=True)}
            gone = {name for name, old in names.items() if old not in there}
            if not gone or not (is_refused or gone.issuperset(written)):
                return False
            for name in sorted(gone):
                if self._there(name) != names[name]:
                    continue  # another thread was here
                contents = self._on_lost(name)
                if contents is None:
                    return False
                # by a new name: a server that comes back with the old one is not taken for this
                self._names[name] = self.put(contents).name
            return True

    # ----------------------------------------------------------- regions
    def put(self, tensor: Any, name: str | None = None, *, device: Device = None) -> Region:
        """Stores a tensor on the server, in the place of a region of that name. device: its number; "spread", each
        time on the device with most room; None, where the server puts it."""
        array, is_new = as_array(tensor, name or "tensor"), name is None
        name = name or f"py-{uuid.uuid4().hex}"
        dtype, shape = dtype_name(array.dtype), tuple(array.shape)
        query = f"?device={device}" if device is not None else ""
        body = _safetensors.pieces({"tensor": (dtype, shape, host_bytes(array))})
        self._put(name, is_new, query, body)
        return Region(name, dtype, shape, self, array.new_empty(0) if is_torch(array) else None)

    def zeros(
        self, shape: Sequence[int], dtype: Any = np.float32, name: str | None = None, *, device: Device = None
    ) -> Region:
        """Makes a region of zeros; dtype is numpy's, torch's or a name such as BF16."""
        text = dtype if isinstance(dtype, str) else dtype_name(np.dtype(dtype) if isinstance(dtype, type) else dtype)
        is_new = name is None
        name = name or f"py-{uuid.uuid4().hex}"
        query = [("dtype", text), ("shape", text_of(tuple(shape)))]
        query += [("device", str(device))] if device is not None else []
        self._put(name, is_new, f"?{urlencode(query)}", ())
        return Region(name, text, tuple(shape), self)

    def _put(self, name: str, is_new: bool, query: str, body: Iterable[Any]) -> None:
        """Where the name is new, nobody waits for what it replaces, and it may be sent twice."""
        self._servers.request(
            "PUT", f"/v1/regions/{quote(name, safe='')}{query}", body, is_safe=is_new, is_kept=True
        )
        self._names.pop(name, None)

    def get(self, region: Region) -> Any:
        """A copy of the whole region."""

        def send() -> Any:
            return self._servers.request("GET", f"/v1/regions/{quote(self._there(region.name), safe='')}", is_kept=True)

        answer = self._with_what_is_lost([region.name], [], None, send)
        tensors = _safetensors.read(answer.body)
        if len(tensors) != 1:
            raise Error(f"region '{region.name}' has {len(tensors)} tensors, expected one")
        ((kind, bytes_),) = tensors.values()
        return from_bytes(bytes_, kind[0], kind[1], region.like)

    def delete(self, region: Region) -> None:
        name = quote(self._there(region.name), safe="")
        self._servers.request("DELETE", f"/v1/regions/{name}", is_kept=True)
        self._names.pop(region.name, None)

    def region(self, name: str) -> Region:
        """One that is there, by its name; KeyError."""
        for row in self._rows("/v1/regions", "regions", is_kept=True):
            if row.get("name") == self._there(name):
                dtype, shape = row.get("dtype"), row.get("shape", [])
                is_tensor = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
                if not is_tensor or not isinstance(dtype, str | None):
                    raise Error(f"region '{name}' has type {dtype!r} and shape {shape!r} in the answer")
                return Region(name, dtype, tuple(shape), self)
        raise KeyError(name)

    # ---------------------------------------------------- tables, the rest
    def put_table(
        self, name: str, config: Mapping[str, Any] | str | os.PathLike[str], *, style: str | None = None
    ) -> dict[str, Any]:
        """Keeps rotary angles under a name for table=: rope parameters, or a model's config.json. style, "neox" or
        "gptj", is that of calls that give none; without it the model's own."""
        document = config if isinstance(config, Mapping) else json.loads(Path(config).read_text())
        query = f"?style={quote(style)}" if style else ""
        answer = self._object("PUT", f"/v1/tables/{quote(name, safe='')}{query}", document, is_kept=True)
        self._tables[name] = (query, document)
        return answer

    def tables(self) -> list[dict[str, Any]]:
        return self._rows("/v1/tables", "tables", is_kept=True)

    def delete_table(self, name: str) -> None:
        self._tables.pop(name, None)
        self._servers.request("DELETE", f"/v1/tables/{quote(name, safe='')}", is_kept=True)

    def program(self, name: str, document: Mapping[str, Any] | str | os.PathLike[str] | None = None) -> Program:
        """A program of the server, to be called. document: what it shall be from now on, or the path of a file with
        that; without one it is there already, or KeyError."""
        if document is not None:
            steps = document if isinstance(document, Mapping) else json.loads(Path(document).read_text())
            return Program(self, self._object("PUT", f"/v1/programs/{quote(name, safe='')}", steps, is_kept=True))
        for row in self.programs():
            if row.get("name") == name:
                return Program(self, row)
        raise KeyError(name)

    def record(self) -> Recorder:
        """Operators that are called on it become a document for program(): with client.record() as p: ..."""
        return Recorder()

    def programs(self) -> list[dict[str, Any]]:
        return self._rows("/v1/programs", "programs", is_kept=True)

    def delete_program(self, name: str) -> None:
        self._servers.request("DELETE", f"/v1/programs/{quote(name, safe='')}", is_kept=True)

    def describe(self, operator: str) -> dict[str, Any]:
        """What the server says of an operator."""
        return self._object("GET", f"/v1/{quote(operator, safe='')}")

    def devices(self) -> list[dict[str, Any]]:
        return self._rows("/v1/devices", "devices", is_kept=True)

    def _object(self, method: str, path: str, document: Any = None, *, is_kept: bool = False) -> dict[str, Any]:
        answer = self._servers.json(method, path, document, is_kept=is_kept)
        if not isinstance(answer, dict):
            raise Error(f"{self._servers.url}: the answer to {method} {path} is no JSON object")
        return answer

    def _rows(self, path: str, name: str, *, is_kept: bool) -> list[dict[str, Any]]:
        rows = self._object("GET", path, is_kept=is_kept).get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Error(f"{self._servers.url}: the answer to GET {path} has no objects '{name}'")
        return rows


class AsyncClient(AsyncOperators):  # likewise
    """The same for asyncio: every call is awaited, and runs on one of some threads,
    which let go of the interpreter while they wait for the server."""

    def __init__(self, url: str | Sequence[str] | None = None, *, connections: int = 8, **options: Any) -> None:
        self._client = Client(url, **options)
        self._n_threads = connections
        self._after_fork()
        _clients.add(self)

    def _after_fork(self) -> None:
        """A child has none of the parent's threads."""
        self._threads = ThreadPoolExecutor(self._n_threads, "roped")

    @property
    def timing(self) -> Timing:
        return self._client.timing

    async def _run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _run_as, _records_gradients(), function, arguments, named)

    async def put(self, tensor: Any, name: str | None = None, *, device: Device = None) -> Region:
        region: Region = await self._run(self._client.put, tensor, name, device=device)
        return region

    async def zeros(
        self, shape: Sequence[int], dtype: Any = np.float32, name: str | None = None, *, device: Device = None
    ) -> Region:
        region: Region = await self._run(self._client.zeros, shape, dtype, name, device=device)
        return region

    async def get(self, region: Region) -> Any:
        return await self._run(self._client.get, region)

    async def delete(self, region: Region) -> None:
        await self._run(self._client.delete, region)

    async def region(self, name: str) -> Region:
        region: Region = await self._run(self._client.region, name)
        return region

    async def put_table(
        self, name: str, config: Mapping[str, Any] | str | os.PathLike[str], *, style: str | None = None
    ) -> dict[str, Any]:
        return dict(await self._run(self._client.put_table, name, config, style=style))

    async def tables(self) -> list[dict[str, Any]]:
        return list(await self._run(self._client.tables))

    async def delete_table(self, name: str) -> None:
        await self._run(self._client.delete_table, name)

    async def program(
        self, name: str, document: Mapping[str, Any] | str | os.PathLike[str] | None = None
    ) -> AsyncProgram:
        return AsyncProgram(self, await self._run(self._client.program, name, document))

    async def record(self) -> Recorder:
        return self._client.record()

    async def programs(self) -> list[dict[str, Any]]:
        return list(await self._run(self._client.programs))

    async def delete_program(self, name: str) -> None:
        await self._run(self._client.delete_program, name)

    async def describe(self, operator: str) -> dict[str, Any]:
        return dict(await self._run(self._client.describe, operator))

    async def devices(self) -> list[dict[str, Any]]:
        return list(await self._run(self._client.devices))

    async def close(self) -> None:
        await self._run(self._client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def method(self: AsyncClient, *arguments: Any, **named: Any) -> Any:
        return await self._run(function, self._client, *arguments, **named)

    return method


for _name, _function in methods(Client._call, ["table"]):
    setattr(Client, _name, _function)
    setattr(AsyncClient, _name, _awaited(_function))
