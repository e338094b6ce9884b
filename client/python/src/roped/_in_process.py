"""Operators in this process. What a call prepares is kept by operator, types,
shapes and parameters, so that the next one with these only launches."""

import sys
from typing import Any

import numpy as np

from roped._errors import Error
from roped._functions import Operator, functions
from roped._library import Session, Work, session, sessions
from roped._tensors import as_array, dtype_name, is_torch, numpy_dtype, torch_dtype

_MOST_WORKS = 1024  # of one stream; past it the CPU's are forgotten
_HOST = ("cpu", 0, 0)


class _Numpy:
    """What run() asks of a library of tensors; here numpy, on the CPU."""

    @staticmethod
    def address(tensor: Any) -> int:
        return tensor.__array_interface__["data"][0]  # type: ignore[no-any-return]

    @staticmethod
    def is_packed(tensor: Any) -> bool:
        return tensor.flags.c_contiguous  # type: ignore[no-any-return]

    packed = staticmethod(np.ascontiguousarray)

    @staticmethod
    def device(tensor: Any) -> Any:
        return None

    @staticmethod
    def place(tensor: Any) -> tuple[str, int, int]:
        return _HOST

    @staticmethod
    def empty(dtype: str, shape: tuple[int, ...], like: Any) -> Any:
        return np.empty(shape, numpy_dtype(dtype))


class _Torch:
    """The same of torch, on the CPU and on CUDA devices."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.address = torch.Tensor.data_ptr
        self.is_packed = torch.Tensor.is_contiguous
        self.packed = torch.Tensor.contiguous
        self.stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def device(self, tensor: Any) -> Any:
        return tensor.device

    def place(self, tensor: Any) -> tuple[str, int, int]:
        if tensor.is_cuda and self.stream:
            return ("cuda", tensor.device.index, self.stream(tensor.device.index))
        if not tensor.is_cpu:
            raise ValueError(f"tensors are on {tensor.device}, expected the CPU or a CUDA device")
        return _HOST

    def empty(self, dtype: str, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_empty(shape, dtype=torch_dtype(dtype))


_libraries: dict[type, Any] = {np.ndarray: _Numpy}


def _library_of(tensor: Any) -> Any:
    found: Any = _libraries.get(type(tensor))
    if found is None and is_torch(tensor):  # all of torch's types are one library
        torch = sys.modules["torch"]
        found = _libraries.get(torch.Tensor) or _libraries.setdefault(torch.Tensor, _Torch(torch))
        _libraries[type(tensor)] = found
    return found or _Numpy


def _packed(library: Any, op: Operator, tensors: dict[str, Any]) -> dict[str, Any]:
    """Tensors of one library, each contiguous."""
    packed = {}
    for name, tensor in tensors.items():
        array = as_array(tensor, name)
        if _library_of(array).__class__ is not library.__class__:
            raise TypeError(f"tensor '{name}': {type(tensor).__name__}, expected tensors of one library")
        if not library.is_packed(array):
            if name in op.updated:
                raise ValueError(f"tensor '{name}': not contiguous, and updated in place")
            array = library.packed(array)
        packed[name] = array
    return packed


def _refuse_in_capture(place: tuple[str, int, int]) -> None:
    """Preparing allocates and waits, which ends a capture."""
    if place != _HOST and sys.modules["torch"].cuda.is_current_stream_capturing():
        raise Error("a graph is captured: make this call once on this stream before, with these shapes and parameters")


def _new_work(owner: Session, library: Any, op: Operator, tensors: dict[str, Any], params: dict[str, Any]) -> Work:
    devices = {library.device(tensor) for tensor in tensors.values()}
    if len(devices) > 1:
        raise ValueError(f"tensors are on different devices: {', '.join(sorted(map(str, devices)))}")
    if len(owner.works) >= _MOST_WORKS and not owner.is_trusting:  # a graph may hold those of a GPU
        while owner.works:
            owner.works.popitem()[1].free()
    kinds = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    return Work(owner, op, kinds, params)


def _checked(library: Any, name: str, place: Any, dtype: str, shape: tuple[int, ...], like: Any) -> Any:
    """out= of the caller, where it is what this call writes."""
    if dtype_name(place.dtype) != dtype or tuple(place.shape) != shape:
        found = f"{dtype_name(place.dtype)} of {list(place.shape)}"
        raise ValueError(f"output '{name}': {found}, expected {dtype} of {list(shape)}")
    if not library.is_packed(place) or library.device(place) != library.device(like):
        raise ValueError(f"output '{name}': expected contiguous memory of the inputs' device")
    return place


def _launch(work: Work, library: Any, op: Operator, tensors: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    address, addresses = library.address, work.addresses
    for i, tensor in zip(work.inputs, tensors.values()):
        addresses[i] = address(tensor)
    values = {name: tensors[name] for name in work.updated} if work.updated else {}
    like = tensors[op.tensors[0]]
    for name, i, dtype, shape in work.outputs:
        place = places.get(name) if places else None
        if place is None:
            place = library.empty(dtype, shape, like)
        else:
            place = _checked(library, name, place, dtype, shape, like)
        values[name] = place
        addresses[i] = address(place)
    work.launch()
    return values


def run(op: Operator, tensors: dict[str, Any], places: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """The outputs by name, into places where these are given."""
    first = tensors[op.tensors[0]]
    library = _library_of(first)
    key: list[Any] = [op.name, *params.items()]
    for name, tensor in tensors.items():
        own: Any = _libraries.get(type(tensor))
        if own is not library or not own.is_packed(tensor):
            return run(op, _packed(_library_of(as_array(first, "")), op, tensors), places, params)
        key += (name, tensor.shape, tensor.dtype, library.device(tensor))
    place = library.place(first)
    if place not in sessions:
        _refuse_in_capture(place)
    owner = session(place)
    with owner.lock:
        found = owner.works.get(tuple(key))
        if found is not None:
            return _launch(found, library, op, tensors, places)
        _refuse_in_capture(place)
        work = _new_work(owner, library, op, tensors, params)
        try:
            values = _launch(work, library, op, tensors, places)
        except BaseException:
            work.free()
            raise
        owner.works[tuple(key)] = work
        return values


def _as_before(value: Any, tensor: Any) -> Any:
    """A result as an array of the caller's own library."""
    if value is None or isinstance(tensor, np.ndarray) or is_torch(tensor):
        return value
    return tensor.__array_namespace__().from_dlpack(value)


def _torch() -> Any:
    """roped._torch, which registers the operators; imported when torch is used."""
    found = sys.modules.get("roped._torch")
    if found is None:
        from roped import _torch as found
    return found


def _call(_: Any, op: Operator, tensors: dict[str, Any], out: Any, params: dict[str, Any]) -> Any:
    first = tensors[op.tensors[0]]
    places = op.places(out) if out is not None else {}
    for name, value in params.items():
        if isinstance(value, list):
            params[name] = tuple(value)
    if type(first) is np.ndarray:
        return op.result(run(op, tensors, places, params))
    if is_torch(first):
        if not places and _torch().is_watched(tensors):
            return op.result(_torch().dispatch(op, tensors, params))
        return op.result(run(op, tensors, places, params))
    values = run(op, tensors, places, params)
    return op.result({name: _as_before(value, first) for name, value in values.items()})


class InProcess:
    """Has a method for each operator."""


for _name, _function in functions(_call, []):
    setattr(InProcess, _name, _function)
