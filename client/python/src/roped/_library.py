"""libroped_kernels.so, through the plain functions of roped/session.h."""

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roped._errors import Error
from roped._functions import Operator, text_of
from roped._shapes import Kind, Mismatch, outputs

_TEXT_BYTES = 1024


class _Failure(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * _TEXT_BYTES)]


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get("ROPED_KERNELS", str(Path(__file__).with_name("libroped_kernels.so"))))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    checked: dict[str, list[Any]] = {
        "session_open": [text, number, pointer, pointer],
        "work_new": [pointer, text, pointer],
        "work_param": [pointer, text, text],
        "work_input": [pointer, text, text, number, pointer, pointer],
        "work_launch_on": [pointer, pointer],
    }
    for name, arguments in checked.items():
        function = getattr(library, f"roped_{name}")
        function.argtypes, function.restype = [*arguments, pointer], number
    for name in ("work_trust", "work_free"):
        function = getattr(library, f"roped_{name}")
        function.argtypes, function.restype = [pointer], None
    return library


_library = _load()
_launch_on = _library.roped_work_launch_on


def _check(name: str, *arguments: Any) -> None:
    failure = _Failure()
    if getattr(_library, f"roped_{name}")(*arguments, ctypes.byref(failure)):
        raise Error(failure.text.decode())


class Work:
    """One call, for tensors of these types and shapes, as often as wanted."""

    def __init__(self, session: "Session", op: Operator, kinds: Mapping[str, Kind], params: Mapping[str, Any]) -> None:
        self.handle = ctypes.c_void_p()
        _check("work_new", session.handle, op.name.encode(), ctypes.byref(self.handle))
        try:
            for name, value in params.items():
                _check("work_param", self.handle, name.encode(), text_of(value).encode())
            for name, (dtype, shape) in kinds.items():
                dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
                _check("work_input", self.handle, name.encode(), dtype.encode(), len(shape), dims, None)
            if session.is_trusting:
                _library.roped_work_trust(self.handle)
        except Error:
            self.free()
            raise
        ports = [port["name"] for port in op.inputs]
        self.addresses = (ctypes.c_void_p * (len(ports) + len(op.outputs)))()
        self.inputs = [ports.index(name) for name in kinds]
        try:
            made = outputs(op, kinds, params)
        except Mismatch:  # the first launch says what is wrong
            made = {}
        self.outputs = [(n, len(ports) + op.output_names.index(n), *made[n]) for n in made if n not in op.updated]
        self.updated = [name for name in made if name in op.updated]
        self.failure = _Failure()
        self.failure_at = ctypes.byref(self.failure)

    def launch(self) -> None:
        """On the memory at addresses."""
        if _launch_on(self.handle, self.addresses, self.failure_at):
            raise Error(self.failure.text.decode())

    def free(self) -> None:
        _library.roped_work_free(self.handle)


class Session:
    """A device and one stream of it, and the works that were made for it. One
    thread at a time: whoever uses it takes the lock."""

    def __init__(self, backend: str, device: int, stream: int) -> None:
        self.handle = ctypes.c_void_p()
        _check("session_open", backend.encode(), device, ctypes.c_void_p(stream), ctypes.byref(self.handle))
        self.is_trusting = backend != "cpu"  # reading positions back would wait for the stream
        self.works: dict[Any, Work] = {}
        self.lock = threading.RLock()


sessions: dict[Any, Session] = {}
_sessions_lock = threading.Lock()


def session(place: tuple[str, int, int]) -> Session:
    """That of a backend, device and stream; it lives as long as the process."""
    found = sessions.get(place)
    if found is None:
        with _sessions_lock:
            found = sessions.get(place) or Session(*place)
            sessions[place] = found
    return found
