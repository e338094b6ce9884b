"""Arrays of any library as type, shape and bytes, and back. The types are those
of safetensors. BF16 and FP8 of numpy are those of ml_dtypes."""

import sys
from importlib import import_module
from typing import Any

import numpy as np

NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32",
    "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
ITEM_BYTES = {name: 1 if name == "BOOL" else int(name.lstrip("BFIU").partition("_")[0]) // 8 for name in NAMES.values()}
_DLPACK_CUDA = 2
_OF_NAME = {name: numpy_name for numpy_name, name in NAMES.items()}
_numpy_dtypes: dict[str, Any] = {}
_names: dict[Any, str] = {}


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def dtype_name(dtype: Any) -> str:
    """numpy's float32, or torch's: F32."""
    name = _names.get(dtype)
    if name is None:
        text = str(dtype).removeprefix("torch.")
        if text not in NAMES:
            raise TypeError(f"a tensor has type {text}, expected one of {', '.join(NAMES)}")
        name = _names[dtype] = NAMES[text]
    return name


def numpy_dtype(name: str) -> Any:
    """F32: numpy's float32."""
    if name not in _numpy_dtypes:
        text = _OF_NAME[name]
        if not hasattr(np, text):
            try:
                import ml_dtypes
            except ImportError:
                raise ImportError(f"numpy has {name} with ml_dtypes only: pip install ml_dtypes") from None
            _numpy_dtypes[name] = np.dtype(getattr(ml_dtypes, text))
        else:
            _numpy_dtypes[name] = np.dtype(text)
    return _numpy_dtypes[name]


def torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], _OF_NAME[name])


def as_array(tensor: Any, name: str) -> Any:
    """The tensor itself where it is numpy's or torch's, else a view by DLPack."""
    if isinstance(tensor, np.ndarray) or is_torch(tensor):
        return tensor
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"tensor '{name}': {type(tensor).__name__}, expected an array of numpy, torch or DLPack")
    if tensor.__dlpack_device__()[0] != _DLPACK_CUDA:
        return np.from_dlpack(tensor)
    try:
        torch: Any = import_module("torch")
    except ImportError:
        raise ImportError(f"tensor '{name}' is on a GPU, which takes torch: pip install torch") from None
    return torch.from_dlpack(tensor)


def host_bytes(tensor: Any) -> Any:
    """All bytes of a tensor in order, as one row of uint8; a view where that is possible."""
    if is_torch(tensor):
        torch = sys.modules["torch"]
        return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def from_bytes(data: Any, dtype: str, shape: Any, like: Any) -> Any:
    """A tensor that is a view of these bytes, of the library and device of like."""
    if is_torch(like):
        tensor = sys.modules["torch"].from_numpy(data).view(torch_dtype(dtype)).reshape(shape)
        return tensor.to(like.device)
    return data.view(numpy_dtype(dtype)).reshape(shape)
