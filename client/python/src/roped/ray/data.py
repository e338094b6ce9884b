"""An operator over the rows of a Ray dataset, with the kernels in Ray's own workers.

    import ray.data
    from roped.ray.data import map_batches

    rows = ray.data.read_parquet("activations")                      # columns id, hidden
    rows = map_batches(rows, "rmsnorm_quantize", {"x": "hidden", "weight": weight})
    rows.write_parquet("quantized")                                  # columns id, y, scale

A column of numbers is a tensor of a number for each row; one of lists, all of one
length, has a dimension more. Parquet has neither BF16 nor FP8: such tensors are
columns of their bits, uint16 and uint8.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

from roped._functions import TABLE, Operator
from roped._tensors import NAMES, numpy_dtype

_TYPES = {kind: name for name, kind in NAMES.items()}


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def to_numpy(column: Any, name: str) -> Any:
    """A column as an array, without a copy where it has one piece."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no pieces, or of an extension type
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    shape = [len(array)]
    while True:
        if array.null_count:
            raise ValueError(f"column '{name}': {array.null_count} nulls, expected a value in every row")
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):  # tensors of Ray and of Arrow
            shape += getattr(kind, "shape", ())
            array = array.storage
            while _is_list(array.type):
                array = array.flatten()
            break
        if not _is_list(kind):
            break
        rows, array = array, array.flatten()
        width = getattr(kind, "list_size", None)
        if width is None:
            widths = np.unique(np.diff(rows.offsets.to_numpy()))
            if len(widths) > 1:
                raise ValueError(f"column '{name}': rows of {widths[0]} to {widths[-1]} values, expected one length")
            width = int(widths[0]) if len(widths) else 0
        shape.append(width)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise TypeError(f"column '{name}': {array.type}, expected numbers, or lists of numbers")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def to_arrow(array: Any) -> Any:
    """An array as a column: lists of fixed length within each other, of bits where Arrow has no such type."""
    values = np.ascontiguousarray(array).reshape(-1)
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        values = values.view(f"u{array.dtype.itemsize}")
    column = pa.array(values)
    for width in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, width)
    return column


class _Map:
    """What Ray calls with each batch."""

    def __init__(
        self, op: Operator, columns: dict[str, str], fixed: dict[str, Any], types: Mapping[str, str],
        names: dict[str, str], params: dict[str, Any],
    ) -> None:  # fmt: skip
        self.op, self.columns, self.fixed, self.params = op, columns, fixed, params
        self.types, self.names = dict(types), names

    def _input(self, table: Any, name: str, column: str) -> Any:
        if column not in table.column_names:
            raise KeyError(f"no column '{column}', expected one of {', '.join(table.column_names)}")
        array = to_numpy(table.column(column), column)
        if name not in self.types:
            return array
        dtype = numpy_dtype(self.types[name])
        if array.dtype.itemsize != dtype.itemsize:
            raise TypeError(f"column '{column}': {array.dtype.name}, expected the bits of {self.types[name]}")
        return array.view(dtype)

    def __call__(self, table: Any) -> Any:
        from roped import ops

        if table.num_rows == 0:
            return table  # of lists whose length is not known
        tensors = {name: self._input(table, name, column) for name, column in self.columns.items()}
        result = getattr(ops, self.op.name)(**tensors, **self.fixed, **self.params)
        results = result if isinstance(result, tuple) else (result,)
        made = table.drop_columns([*{*self.columns.values()}])
        for output, array in zip(self.op.output_names, results):
            if array is None:
                continue
            if array.ndim == 0 or len(array) != table.num_rows:
                shape = ", ".join(map(str, array.shape))
                raise ValueError(f"output '{output}': [{shape}], expected {table.num_rows} rows, as many as the inputs have")
            name = self.names.get(output, output)
            if name in made.column_names:
                raise ValueError(f"output '{output}': there is a column '{name}', expected another in outputs")
            made = made.append_column(name, to_arrow(array))
        return made


def map_batches(
    dataset: Any, op: str, tensors: Mapping[str, Any], *, outputs: Mapping[str, str] | None = None,
    types: Mapping[str, str] | None = None, ray_options: Mapping[str, Any] | None = None, **params: Any,
) -> Any:  # fmt: skip
    """The dataset with an operator's outputs in place of the columns that it reads; other columns stay.

    tensors: an input's name, and the column that it comes from; or an array that is the same for every row.
    outputs: names of columns, where they shall not be those of the outputs.
    types: of inputs whose column holds the bits: {"x": "BF16"}.
    ray_options: for Dataset.map_batches: batch_size (default: a block), num_cpus (1), concurrency, ...

    A kernel uses as many threads as the environment variable OMP_NUM_THREADS says, which Ray sets to num_cpus.
    """
    if op not in TABLE:
        raise ValueError(f"no operator '{op}', expected one of {', '.join(TABLE)}")
    operator = TABLE[op]
    operator.bound((), {**tensors, **params})  # refuses names that it does not know, and tensors that are missing
    columns = {name: value for name, value in tensors.items() if isinstance(value, str)}
    if updated := [name for name in operator.updated if name in tensors]:
        raise ValueError(f"{op}: updates '{updated[0]}' in place, expected an operator that makes rows of rows")
    if not columns:
        raise ValueError("tensors: no column, expected the name of one for an input")
    _check_names("outputs", outputs or {}, operator.output_names)
    _check_names("types", types or {}, [*columns])
    for name, kind in (types or {}).items():
        if kind not in _TYPES:
            raise ValueError(f"types: '{name}' is {kind}, expected one of {', '.join(_TYPES)}")
    fixed = {name: np.asarray(value) for name, value in tensors.items() if name not in columns}
    function = _Map(operator, columns, fixed, types or {}, dict(outputs or {}), params)
    options = {"batch_size": None, "zero_copy_batch": True, **(ray_options or {})}
    return dataset.map_batches(function.__call__, batch_format="pyarrow", **options)


def _check_names(what: str, given: Mapping[str, str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{what}: '{name}', expected one of {', '.join(known)}")
