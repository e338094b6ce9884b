"""A safetensors file in memory: a length, a JSON header, the tensors' bytes."""

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from roped._errors import Error
from roped._shapes import Kind
from roped._tensors import ITEM_BYTES

_MOST_HEADER_BYTES, _MOST_DIMS = 1 << 20, 32
_text_of = json.JSONEncoder(separators=(",", ":")).encode


def pieces(tensors: Mapping[str, tuple[str, tuple[int, ...], Any]]) -> list[Any]:
    """The header and the bytes of each tensor, which are not copied."""
    header, begin = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (begin, begin + data.nbytes)}
        begin += data.nbytes
    text = _text_of(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *(data for _, _, data in tensors.values())]


def _span(name: str, entry: Any, most: int) -> tuple[Kind, int, int]:
    """Type and shape of a tensor, and where its bytes are."""
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise ValueError(f"tensor '{name}' has type {dtype!r}")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS:
        raise ValueError(f"tensor '{name}' has no shape, or one of over {_MOST_DIMS} dims")
    for n in (*shape, begin, end):
        if type(n) is not int or n < 0:
            raise ValueError(f"tensor '{name}' has a dim or an offset that is no integer of 0 or more")
    if not begin <= end <= most or end - begin != ITEM_BYTES[dtype] * prod(shape):
        raise ValueError(f"tensor '{name}' has bytes {begin} to {end} of {most}, which do not fit its shape")
    return (dtype, tuple(shape)), begin, end


def _read(file: Any) -> dict[str, tuple[Kind, Any]]:
    n_bytes, data_start = len(file), 8 + int.from_bytes(file[:8].tobytes(), "little")
    if not 10 <= data_start <= min(n_bytes, 8 + _MOST_HEADER_BYTES):
        raise ValueError(f"its header ends at byte {data_start} of {n_bytes}")
    header = json.loads(file[8:data_start].tobytes())
    header.pop("__metadata__", None)
    found, spans = {}, []
    for name, entry in header.items():
        kind, begin, end = _span(name, entry, n_bytes - data_start)
        found[name] = (kind, file[data_start + begin : data_start + end])
        spans.append((begin, end))
    at = data_start
    for begin, end in sorted(spans):
        if data_start + begin != at:
            raise ValueError(f"a tensor begins at byte {begin}, expected {at - data_start}: no holes, no overlaps")
        at = data_start + end
    if at != n_bytes:
        raise ValueError(f"its tensors end at byte {at} of {n_bytes}")
    return found


def metadata(file: Any) -> dict[str, Any]:
    """What a file that was read says of itself."""
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8].tobytes(), "little")].tobytes())
    found = header.get("__metadata__")
    return found if isinstance(found, dict) else {}


def read(file: Any) -> dict[str, tuple[Kind, Any]]:
    """Type and shape, and the bytes of every tensor: views into the file. Error where it is no such file."""
    try:
        return _read(file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Error(f"the answer is no safetensors file: {type(error).__name__}: {error}") from error
