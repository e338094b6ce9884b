"""Tensors of a call in POSIX shared memory that the server has mapped, for large
calls to a server of this host that was started with --allow_client_shm.

A segment is made, registered and unlinked at once, so nothing is left behind
when the process ends. It serves one call at a time, and its outputs as long as
an array of theirs lives; then it waits for the next call."""

import mmap
import os
import threading
import uuid
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from roped._errors import Error
from roped._servers import Servers
from roped._shapes import Kind
from roped._tensors import numpy_dtype

LEAST_BYTES = 256 << 10  # of a call: smaller ones are as fast through the socket
MOST_SEGMENTS = 32  # the server takes 256 of all its clients
SEGMENT_NAME = "roped-python-"
_ALIGNMENT = 64


class Segment:
    def __init__(self, servers: Servers, size: int) -> None:
        self.name = SEGMENT_NAME + uuid.uuid4().hex
        path = f"/dev/shm/{self.name}"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, size)  # now, not as a SIGBUS later
            self.map = mmap.mmap(file, size)
            servers.json("POST", f"/v2/systemsharedmemory/region/{self.name}/register",
                         {"key": f"/{self.name}", "offset": 0, "byte_size": size}, is_kept=True)  # fmt: skip
        finally:
            os.unlink(path)
            os.close(file)

    def array(self) -> Any:
        return np.frombuffer(self.map, np.uint8)


def _nbytes(kind: Kind) -> int:
    n = int(numpy_dtype(kind[0]).itemsize)
    for size in kind[1]:
        n *= size
    return n


def layout(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each tensor begins, and the bytes of all."""
    places, at = {}, 0
    for name, size in sizes.items():
        places[name] = at
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, at


class Segments:
    """Those of one client; is_off where the server wants none, or there are several."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.after_fork()
        is_here = servers.all[0].pool.host in ("127.0.0.1", "localhost", "::1")
        self.is_off = len(servers.all) > 1 or not is_here or not os.path.isdir("/dev/shm")

    def after_fork(self) -> None:
        """In a child, as at the start: segments that were made before are the parent's, which fills them anew. Those
        whose arrays still live are given to its list, and not to this one."""
        self.count, self.lock = 0, threading.Lock()
        self.free: list[Segment] = []

    def _take(self, size: int) -> Segment | None:
        with self.lock:
            fitting = [segment for segment in self.free if size <= len(segment.map) <= 4 * size]
            if fitting:
                best = min(fitting, key=lambda segment: len(segment.map))
                self.free.remove(best)
                return best
            if self.count == MOST_SEGMENTS and self.free:
                self._forget(self.free.pop(0))
            if self.count == MOST_SEGMENTS:
                return None
            self.count += 1
        try:
            return Segment(self.servers, 1 << (size - 1).bit_length())
        except (Error, OSError) as error:
            with self.lock:
                self.count -= 1
            self.is_off = isinstance(error, Error)  # disabled, or it sees another /dev/shm
            return None

    def _forget(self, segment: Segment) -> None:
        self.count -= 1
        try:
            self.servers.json("POST", f"/v2/systemsharedmemory/region/{segment.name}/unregister", is_kept=True)
        except Error:
            pass  # the server forgot it, or is gone

    def take(self, size: int) -> tuple[Segment, Any] | None:
        """A segment and its bytes; it is free again when no array shows them."""
        segment = self._take(max(size, LEAST_BYTES))
        if segment is None:
            return None
        array = segment.array()
        # takes no lock, because the collector calls it at any time
        weakref.finalize(array, self.free.append, segment).atexit = False
        return segment, array

    def place(self, outputs: Mapping[str, Kind]) -> tuple[list[tuple[str, str]], dict[str, Any]] | None:
        """Query and bytes for outputs; None where there is no memory."""
        sizes = {name: _nbytes(kind) for name, kind in outputs.items()}
        places, total = layout(sizes)
        taken = self.take(total)
        if taken is None:
            return None
        segment, array = taken
        query = [(f"into.{name}", f"{segment.name}:{at}") for name, at in places.items()]
        return query, {name: array[at : at + sizes[name]] for name, at in places.items()}

    def fill(self, tensors: Mapping[str, tuple[str, Any, Any]]) -> tuple[list[tuple[str, str]], Any] | None:
        """The query for inputs that were copied into a segment, and what keeps it."""
        places, total = layout({name: data.nbytes for name, (_, _, data) in tensors.items()})
        taken = self.take(total)
        if taken is None:
            return None
        segment, array = taken
        query = []
        for name, (dtype, shape, data) in tensors.items():
            at = places[name]
            array[at : at + data.nbytes] = data
            query += [(f"from.{name}", f"{segment.name}:{at}"), (f"dtype.{name}", dtype)]
            query += [(f"shape.{name}", ",".join(map(str, shape)))]
        return query, array

    def forget(self) -> None:
        with self.lock:
            while self.free:
                self._forget(self.free.pop())

    def close(self) -> None:
        self.is_off = True
        self.forget()
