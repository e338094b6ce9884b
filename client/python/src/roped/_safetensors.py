"""A safetensors file in memory: a length, a JSON header, the tensors' bytes."""

import json
from collections.abc import Mapping
from typing import Any

from roped._shapes import Kind

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


def read(file: Any) -> dict[str, tuple[Kind, Any]]:
    """Type and shape, and the bytes of every tensor: views into the file."""
    data_start = 8 + int.from_bytes(file[:8].tobytes(), "little")
    header = json.loads(file[8:data_start].tobytes())
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        found[name] = ((entry["dtype"], tuple(entry["shape"])), file[data_start + begin : data_start + end])
    return found
