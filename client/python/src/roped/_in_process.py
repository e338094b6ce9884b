"""Operators in this process. The first call of a form (parameters, and types,
shapes and devices of tensors) is checked and prepared. The next ones of that form
put addresses in a row and launch: those of torch in _fast, an extension module, where
it was built and torch has DLPack's table of functions (2.10)."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from roped._errors import Error
from roped._functions import TABLE, Operator, described
from roped._library import Session, Work, launch_address, launch_on, refusal, session, sessions
from roped._shapes import Kind, Mismatch, outputs, stride, token_dims
from roped._tensors import as_array, dtype_name, is_torch, numpy_dtype, torch_dtype

try:
    from roped import _fast
except ImportError:  # built without Python's headers
    _fast = None  # type: ignore[assignment]

_MOST_CALLS = 1024  # prepared for one stream; past it the CPU's are forgotten
_HOST = ("cpu", 0, 0)

Maker = tuple[Callable[..., Any], tuple[Any, ...]]  # makes an output, with these arguments


class _ArrayInterface(ctypes.Structure):
    """What numpy's __array_struct__ points to."""

    _fields_ = [("two", ctypes.c_int), ("rank", ctypes.c_int), ("kind", ctypes.c_char), ("item_size", ctypes.c_int),
                ("flags", ctypes.c_int), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("data", ctypes.c_void_p)]  # fmt: skip


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_interface_at = _ArrayInterface.from_address


class _Numpy:
    """What a call asks of a library of tensors; here numpy, on the CPU."""

    types: tuple[type, ...] = (np.ndarray,)

    def form(self, values: tuple[Any, ...]) -> list[Any]:
        """What a prepared call depends on: strides, too, where a tensor is not packed."""
        return [
            (value.shape, value.dtype, value.flags.c_contiguous or value.strides)
            if (kind := type(value)) is np.ndarray
            else tuple(value) if kind is list else value
            for value in values
        ]  # fmt: skip

    def is_watched(self, values: tuple[Any, ...]) -> bool:
        return False

    def address(self, tensor: Any) -> int:
        capsule = tensor.__array_struct__  # half the time of __array_interface__
        return _interface_at(_pointer_of(capsule, None)).data or 0

    def is_packed(self, tensor: Any) -> bool:
        return tensor.flags.c_contiguous  # type: ignore[no-any-return]

    def strides(self, tensor: Any) -> tuple[int, ...] | None:
        """In elements; None where they are no whole ones."""
        size = tensor.itemsize
        return None if any(n % size for n in tensor.strides) else tuple(n // size for n in tensor.strides)

    def view(self, tensor: Any) -> Any:
        return np.asarray(tensor)

    def packed(self, tensor: Any) -> Any:
        return np.asarray(tensor, order="C")

    def device(self, tensor: Any) -> Any:
        return None

    def place(self, tensor: Any) -> tuple[str, int, int]:
        return _HOST

    def maker(self, kind: Kind, values: tuple[Any, ...]) -> Maker:
        return np.empty, (kind[1], numpy_dtype(kind[0]))

    def remember(self, *call: Any) -> None:
        """The next such call is made here again."""


class _Torch:
    """The same of torch, on the CPU and on CUDA devices."""

    def __init__(self, torch: Any) -> None:
        from roped import _torch  # registers the operators

        _torch.run = run
        self.empty = _torch.empty
        self.is_watched, self.wants, self.dispatch = _torch.is_watched, _torch.wants, _torch.dispatch
        self.types = (torch.Tensor, torch.nn.Parameter)
        self.address = torch.Tensor.data_ptr
        self.stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self.current_device = getattr(torch._C, "_cuda_getDevice", None)
        self.use_device = torch.cuda.device

    def form(self, values: tuple[Any, ...]) -> list[Any]:
        plain, parameter = self.types
        return [
            (value.shape, value.dtype, value.get_device(), value.is_contiguous() or value.stride())
            if (kind := type(value)) is plain or kind is parameter
            else tuple(value) if kind is list else value
            for value in values
        ]  # fmt: skip

    def is_packed(self, tensor: Any) -> bool:
        return tensor.is_contiguous()  # type: ignore[no-any-return]

    def strides(self, tensor: Any) -> tuple[int, ...] | None:
        return tensor.stride()  # type: ignore[no-any-return]

    def view(self, tensor: Any) -> Any:
        return tensor.as_subclass(self.types[0])

    def packed(self, tensor: Any) -> Any:
        return self.view(tensor.contiguous())

    def device(self, tensor: Any) -> Any:
        return tensor.device

    def place(self, tensor: Any) -> tuple[str, int, int]:
        if tensor.is_cpu:
            return _HOST
        if not tensor.is_cuda or self.stream is None:
            raise ValueError(f"tensors are on {tensor.device}, expected the CPU or a CUDA device")
        index = tensor.get_device()
        return ("cuda", index, self.stream(index))

    def maker(self, kind: Kind, values: tuple[Any, ...]) -> Maker:
        like = next(value for value in values if type(value) in self.types)
        return self.empty(kind[1], torch_dtype(kind[0]), like.device)

    def remember(
        self, op: Operator, prepared: "_Prepared", arguments: tuple[Any, ...], out: Any, named: dict[str, Any]
    ) -> None:
        """The next such call is _fast's."""
        if _fast is None or _launch is None:
            return
        key, forms = _fast.key(arguments, out, named), _forms[op.name]
        if key is None or key in forms:
            return
        if len(forms) >= _MOST_CALLS:
            forms.clear()  # it comes back when this form is called again
        result_type = op.result_type if len(op.outputs) > 1 else None
        forms[key] = _fast.Form(
            prepared.work, prepared.n_values, prepared.given, prepared.made, prepared.returned, result_type
        )


_forms: dict[str, dict[bytes, Any]] = {name: {} for name in TABLE}  # _fast's, by operator
_launch: Callable[..., Any] | None = None  # _fast's, when torch is known
_is_traced: Callable[[], bool] = bool  # by torch.compile, to which _fast is opaque
_libraries: dict[type, Any] = dict.fromkeys(_Numpy.types, _Numpy())


def know_torch() -> Any:
    """torch's library, and its operators registered."""
    torch: Any = sys.modules["torch"]
    if torch.Tensor not in _libraries:
        own = _Torch(torch)
        _libraries.update(dict.fromkeys(own.types, own))
        _know_fast(torch, own)
    return _libraries[torch.Tensor]


def _know_fast(torch: Any, library: _Torch) -> None:
    global _launch, _is_traced
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if _fast is None or table is None:
        return
    from roped._torch import is_recording, watchers

    _fast.know_torch(
        launch_on=launch_address, error=refusal, table=table, tensor_types=library.types, watchers=watchers,
        is_recording=is_recording, current_device=library.current_device or int,
    )  # fmt: skip
    _is_traced = torch.compiler.is_dynamo_compiling
    _launch = _fast.launch


def library_of(tensor: Any) -> Any:
    """What a call asks of this tensor's library: its address, whether it is packed, ..."""
    return know_torch() if is_torch(tensor) else _libraries[np.ndarray]


# ---------------------------------------------------------- the first call
class _Prepared:
    """A call of one form: whose addresses go where, what is made, what is returned."""

    def __init__(self, work: Work, address: Callable[[Any], int], n_values: int) -> None:
        self.work, self.address, self.n_values = work, address, n_values
        self.given: list[tuple[int, int]] = []  # a slot of addresses, and the index of its value
        self.made: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []  # a slot, and its Maker
        self.returned: list[int] = []  # indexes: of values, then of what is made; -1: None

    def launch(self, values: tuple[Any, ...]) -> list[Any]:
        """The outputs in order; values as the caller wrote them."""
        work, address, found = self.work, self.address, [*values]
        addresses = work.addresses
        for slot, i in self.given:
            addresses[slot] = address(values[i])
        for slot, make, arguments in self.made:
            place = make(*arguments)
            addresses[slot] = address(place)
            found.append(place)
        if launch_on(*work.arguments):
            raise work.error()
        found.append(None)
        return [found[i] for i in self.returned]


def _check_parameters(params: dict[str, Any]) -> None:
    """The value of an array is no part of a form."""
    for name, value in params.items():
        if not isinstance(value, int | float | str | list | tuple):
            raise TypeError(f"parameter '{name}': {type(value).__name__}, expected a number or text")


def _check_inputs(library: Any, tensors: dict[str, Any], params: dict[str, Any]) -> None:
    devices = {library.device(tensor) for tensor in tensors.values()}
    if len(devices) > 1:
        raise ValueError(f"tensors are on different devices: {', '.join(sorted(map(str, devices)))}")
    _check_parameters(params)


def _check_places(library: Any, places: dict[str, Any], made: dict[str, Kind], like: Any) -> None:
    """Is out= of the caller what this call writes?"""
    for name, place in places.items():
        if name not in made:
            raise ValueError(f"output '{name}': not made by this call, expected {' or '.join(made)}")
        dtype, shape = made[name]
        if dtype_name(place.dtype) != dtype or tuple(place.shape) != shape:
            found = f"{dtype_name(place.dtype)} of {list(place.shape)}"
            raise ValueError(f"output '{name}': {found}, expected {dtype} of {list(shape)}")
        if library.device(place) != library.device(like):
            raise ValueError(f"output '{name}': on {place.device}, expected memory of the inputs' device {like.device}")


def _check_writable(op: Operator, arguments: tuple[Any, ...], places: dict[str, Any], named: dict[str, Any]) -> None:
    """numpy knows memory that is not to be written: of bytes, of a file. A kernel would write it all the same."""
    given = dict(zip(op.positional, arguments)) | named
    written: list[tuple[str, str, Any]] = [("tensor", name, given.get(name)) for name in op.updated]
    for title, name, tensor in written + [("output", *item) for item in places.items()]:
        if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
            raise ValueError(f"{title} '{name}': read-only, and written in place")


def _first(op: Operator, tensors: dict[str, Any]) -> Any:
    """Of those that are given, in the operator's order: an operator may have several forms."""
    return next((tensors[name] for name in op.tensors if tensors.get(name) is not None), None)


def _outputs(op: Operator, library: Any, tensors: dict[str, Any], places: dict[str, Any], params: Any) -> Any:
    """Types and shapes of what the call makes; none where the launch will say what is wrong."""
    kinds = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    try:
        made = outputs(op, kinds, params)
    except Mismatch:
        return {}, kinds
    own = {name: kind for name, kind in made.items() if name not in op.updated}
    _check_places(library, places, own, _first(op, tensors))
    return made, kinds


def _token_dims(op: Operator, tensors: dict[str, Any], params: dict[str, Any]) -> dict[str, int]:
    try:
        kinds = {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
        return token_dims(op, kinds, params)
    except Mismatch:
        return {}  # the launch will say what is wrong


def _stride(library: Any, tensor: Any, n_dims: int) -> int | None:
    """Of a tensor that is not packed; None where it is no slice of wider rows."""
    strides = library.strides(tensor) if n_dims else None
    return None if strides is None else stride(tuple(tensor.shape), strides, n_dims)


def _strides(
    op: Operator, library: Any, arguments: tuple[Any, ...], places: dict[str, Any], named: dict[str, Any]
) -> list[dict[str, int]] | None:
    """Of inputs and of places that are slices of wider rows; None where others are not packed, or not the library's."""
    values = (*arguments, *named.values(), *places.values())
    tensors = [value for value in values if hasattr(value, "__dlpack__")]
    if not all(type(tensor) in library.types for tensor in tensors):
        return None
    if all(map(library.is_packed, tensors)):
        return [{}, {}]
    bound, params = op.bound(arguments, named)
    dims = _token_dims(op, bound, params)
    found: list[dict[str, int]] = []
    for group in (bound, places):
        loose = {name: tensor for name, tensor in group.items() if not library.is_packed(tensor)}
        strides = {name: _stride(library, tensor, dims.get(name, 0)) for name, tensor in loose.items()}
        if None in strides.values():
            return None
        found.append(strides)  # type: ignore[arg-type]
    return found


def _prepare(
    owner: Session, op: Operator, library: Any,
    arguments: tuple[Any, ...], places: dict[str, Any], named: dict[str, Any], strides: list[dict[str, int]],
) -> _Prepared:  # fmt: skip
    tensors, params = op.bound(arguments, named)
    _check_inputs(library, tensors, params)
    made, kinds = _outputs(op, library, tensors, places, params)
    values = (*arguments, *named.values(), *places.values())
    names = [*op.positional[: len(arguments)], *named]
    at = {name: i for i, name in enumerate(names) if values[i] is not None}
    place_at = {name: len(names) + i for i, name in enumerate(places)}
    prepared = _Prepared(Work(owner, op, kinds, params, *strides), library.address, len(values))
    prepared.given = [(op.input_names.index(name), at[name]) for name in tensors]
    for slot, name in enumerate(op.output_names, len(op.inputs)):
        if name not in made:
            prepared.returned.append(-1)
        elif name in op.updated:
            prepared.returned.append(at[name])
        elif name in places:
            prepared.given.append((slot, place_at[name]))
            prepared.returned.append(place_at[name])
        else:
            prepared.returned.append(len(values) + len(prepared.made))
            prepared.made.append((slot, *library.maker(made[name], values)))
    return prepared


def _refuse_in_capture(place: tuple[str, int, int]) -> None:
    """Preparing allocates and waits, which ends a capture."""
    if place != _HOST and sys.modules["torch"].cuda.is_current_stream_capturing():
        raise Error("a graph is captured: make this call once on this stream before, with these shapes and parameters")


def _forget_if_many(owner: Session) -> None:
    if len(owner.calls) >= _MOST_CALLS and not owner.is_trusting:  # a graph may hold those of a GPU
        owner.calls.clear()


# ------------------------------------------------------------ every call
def _run(
    op: Operator, library: Any, arguments: tuple[Any, ...], places: dict[str, Any], named: dict[str, Any]
) -> tuple[_Prepared, list[Any]] | None:
    """What is prepared, and the outputs in order; None where _strides says so."""
    values = (*arguments, *named.values(), *places.values())
    place = library.place(arguments[0] if arguments else _first(op, named))
    if place is not _HOST and library.current_device() != place[1]:
        with library.use_device(place[1]):  # a launch makes its device the current one: torch's stays what it was
            return _run(op, library, arguments, places, named)
    owner = sessions.get(place)
    if owner is None:
        _refuse_in_capture(place)
        owner = session(place)
    form = (op.name, *named, "out", *places, *library.form(values))
    with owner.lock:
        try:
            found = owner.calls.get(form)
        except TypeError:  # what cannot be hashed is an array of another library
            return None
        if found is not None:
            return found, found.launch(values)
        strides = _strides(op, library, arguments, places, named)
        if strides is None:
            return None
        _refuse_in_capture(place)
        _forget_if_many(owner)
        prepared = _prepare(owner, op, library, arguments, places, named, strides)
        try:
            results = prepared.launch(values)
        except BaseException:
            prepared.work.free()
            raise
        owner.calls[form] = prepared
        return prepared, results


def _arrays(library: Any, title: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Tensors of one library."""
    arrays = {name: as_array(tensor, name) for name, tensor in tensors.items()}
    for name, array in arrays.items():
        if library_of(array) is not library:
            raise TypeError(f"{title} '{name}': {type(tensors[name]).__name__}, expected tensors of one library")
    return arrays


def _packed(library: Any, title: str, arrays: dict[str, Any], written: list[str], dims: dict[str, int]) -> Any:
    """Each packed, or a slice of wider rows. Those that are written must be so already."""
    packed = {}
    for name, array in arrays.items():
        is_slice = not library.is_packed(array) and _stride(library, array, dims.get(name, 0)) is not None
        if name in written and not is_slice and not library.is_packed(array):
            raise ValueError(f"{title} '{name}': not contiguous, and written in place")
        packed[name] = library.view(array) if is_slice else library.packed(array)
    return packed


def run(op: Operator, tensors: dict[str, Any], places: dict[str, Any], params: dict[str, Any]) -> list[Any]:
    """The outputs in order, into places where these are given."""
    _check_parameters(params)
    library = library_of(as_array(_first(op, tensors), op.tensors[0]))
    arrays, places = _arrays(library, "tensor", tensors), _arrays(library, "output", places)
    dims = _token_dims(op, arrays, params)
    places = _packed(library, "output", places, [*places], dims)
    found = _run(op, library, (), places, _packed(library, "tensor", arrays, op.updated, dims) | params)
    assert found is not None
    return found[1]


def _as_before(value: Any, tensor: Any) -> Any:
    """A result as an array of the caller's own library."""
    if value is None or isinstance(tensor, np.ndarray) or is_torch(tensor):
        return value
    return tensor.__array_namespace__().from_dlpack(value)


def _with_care(op: Operator, arguments: tuple[Any, ...], places: dict[str, Any], named: dict[str, Any]) -> list[Any]:
    """Any call: through torch where that watches, and with tensors of any library, packed here."""
    tensors, params = op.bound(arguments, named)
    first = _first(op, tensors)
    if is_torch(first) and know_torch().wants([*tensors.values(), *places.values()]):
        return know_torch().dispatch(op, tensors, places, params)  # type: ignore[no-any-return]
    return [_as_before(value, first) for value in run(op, tensors, places, params)]


def _call(op: Operator, arguments: tuple[Any, ...], out: Any, named: dict[str, Any]) -> Any:
    library = _libraries.get(type(arguments[0] if arguments else _first(op, named)))
    places = {} if out is None else op.places(out)
    if places or op.updated:
        _check_writable(op, arguments, places, named)
    if library is not None and not library.is_watched((*arguments, *named.values(), *places.values())):
        found = _run(op, library, arguments, places, named)
        if found is not None:
            library.remember(op, found[0], arguments, out, named)
            return op.result(found[1])
    return op.result(_with_care(op, arguments, places, named))


def _function(op: Operator) -> Any:
    forms = _forms[op.name]

    def function(*arguments: Any, out: Any = None, **named: Any) -> Any:
        if _launch is not None and not _is_traced():
            result = _launch(forms, arguments, out, named)
            if result is not NotImplemented:
                return result
        return _call(op, arguments, out, named)

    return described(function, op, [], [])


functions = {name: _function(op) for name, op in TABLE.items()}
