"""libroped_kernels.so, through the plain functions of roped/session.h."""

import ctypes
import os
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roped._errors import Error
from roped._functions import Operator, text_of
from roped._operators import CODES
from roped._shapes import Kind

_TEXT_BYTES = 1024
_CODES = list(CODES)  # of each status


def refusal(status: int, text: str) -> Error:
    return Error(text, code=_CODES[status])


class _Failure(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * _TEXT_BYTES)]

    def error(self) -> Error:
        return refusal(self.status, self.text.decode())


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get("ROPED_KERNELS", str(Path(__file__).with_name("libroped_kernels.so"))))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    checked: dict[str, list[Any]] = {
        "session_open": [text, number, pointer, pointer],
        "work_new": [pointer, text, pointer],
        "work_param": [pointer, text, text],
        "work_input": [pointer, text, text, number, pointer, pointer],
        "work_input_stride": [pointer, text, ctypes.c_int64],
        "work_output_stride": [pointer, text, ctypes.c_int64],
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
launch_on = _library.roped_work_launch_on
launch_address: Any = ctypes.cast(launch_on, ctypes.c_void_p).value


def _check(name: str, *arguments: Any) -> None:
    failure = _Failure()
    if getattr(_library, f"roped_{name}")(*arguments, ctypes.byref(failure)):
        raise failure.error()


class Work:
    """One call, for tensors of these types, shapes and strides (of inputs, of places), as often as wanted."""

    def __init__(
        self, session: "Session", op: Operator, kinds: Mapping[str, Kind], params: Mapping[str, Any],
        strides: Mapping[str, int], place_strides: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.handle, self.lock = ctypes.c_void_p(), session.lock
        self.is_kept = session.is_trusting  # a graph may hold it
        _check("work_new", session.handle, op.name.encode(), ctypes.byref(self.handle))
        try:
            for name, value in params.items():
                _check("work_param", self.handle, name.encode(), text_of(value).encode())
            for name, (dtype, shape) in kinds.items():
                dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
                _check("work_input", self.handle, name.encode(), dtype.encode(), len(shape), dims, None)
            for name, stride in strides.items():
                _check("work_input_stride", self.handle, name.encode(), stride)
            for name, stride in place_strides.items():
                _check("work_output_stride", self.handle, name.encode(), stride)
            if session.is_trusting:
                _library.roped_work_trust(self.handle)
        except Error:
            self.free()
            raise
        self.addresses = array("Q", bytes(8 * (len(op.inputs) + len(op.outputs))))  # inputs', then outputs'
        self.failure = _Failure()
        self.address = self.handle.value
        self.arguments = (self.address, self.addresses.buffer_info()[0], ctypes.addressof(self.failure))

    def error(self) -> Error:
        """What launch_on(*arguments) says where it returns other than 0."""
        return self.failure.error()

    def free(self, free: Any = _library.roped_work_free) -> None:
        free(self.handle)  # by this name it is there until the interpreter has ended
        self.handle.value = None

    def __del__(self) -> None:
        if not self.is_kept:
            self.free()


class Session:
    """A device and one stream of it, and the calls that were prepared for it. One
    thread at a time: whoever uses it takes the lock."""

    def __init__(self, backend: str, device: int, stream: int) -> None:
        self.handle = ctypes.c_void_p()
        _check("session_open", backend.encode(), device, ctypes.c_void_p(stream), ctypes.byref(self.handle))
        self.is_trusting = backend != "cpu"  # reading positions back would wait for the stream
        self.calls: dict[Any, Any] = {}  # prepared ones, by their form
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
