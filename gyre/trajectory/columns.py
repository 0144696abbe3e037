"""Arrow list columns made from numpy arrays, without going through Python numbers.

Token payload is large (a paper-scale path has 10^5 tokens), so tables of trajectories and micro-steps are built by column:
one flat value array plus offsets. Used by `tree`, `sampling` and `packing`.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (pyarrow has no type stubs)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SPAN_TYPE = pa.struct([pa.field("version", pa.int64()), pa.field("start", pa.int32()), pa.field("end", pa.int32())])


def list_column(arrays: Sequence[NDArray[Any]], value_type: pa.DataType, *, valid: Sequence[NDArray[np.bool_]] | None = None) -> pa.Array:
    """A `list<value_type>` column with one list per array; where `valid` is false the value is null."""
    values = np.concatenate(arrays) if arrays else np.empty(0)
    mask = ~np.concatenate(valid) if valid else None
    return pa.ListArray.from_arrays(_offsets(arrays), pa.array(values, type=value_type, mask=mask))


def span_column(spans: Sequence[Sequence[tuple[int, int, int]]]) -> pa.Array:
    """A `list<struct<version, start, end>>` column with one list of spans per row."""
    flat = [{"version": version, "start": start, "end": end} for row in spans for version, start, end in row]
    return pa.ListArray.from_arrays(_offsets(spans), pa.array(flat, type=SPAN_TYPE))


def list_values(table: pa.Table, name: str) -> list[NDArray[Any]]:
    """The lists of one column as arrays; a null inside a list of floats reads as NaN."""
    # Chunk by chunk: the tokens of a large run are more than the 32-bit offsets of one list column can count.
    lists: list[NDArray[Any]] = []
    for chunk in table[name].chunks:
        if len(chunk):
            ends = np.cumsum(chunk.value_lengths().to_numpy(zero_copy_only=False))
            lists += np.split(chunk.flatten().to_numpy(zero_copy_only=False), ends[:-1])
    return lists


def _offsets(lists: Sequence[Any]) -> pa.Array:
    lengths = np.fromiter((len(item) for item in lists), dtype=np.int64, count=len(lists))
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{ends[-1]} values do not fit one list column; make smaller batches")
    return pa.array(ends, type=pa.int32())
