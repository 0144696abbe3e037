"""Comparison of Arrow schemas: what a batch or an edge offers against what a port needs.

A port is satisfied when every field it needs is there with the same type, and null only where it accepts null, at every depth;
further fields do no harm. Fed by `typed.py` for edges and by the operators' doors for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def compare_schemas(offered: pa.Schema, needed: pa.Schema) -> list[str]:
    """Name every field that is missing, mistyped or wrongly nullable; empty where the schemas fit."""
    return list(_compare_fields(list(offered), list(needed), prefix=""))


def _compare_fields(offered: Iterable[pa.Field], needed: Iterable[pa.Field], *, prefix: str) -> Iterator[str]:
    by_name = {field.name: field for field in offered}
    for field in needed:
        name = f"{prefix}{field.name}"
        if field.name not in by_name:
            yield f"'{name}' ({field.type}) is missing"
        else:
            yield from _compare_field(by_name[field.name], field, name)


def _compare_field(offered: pa.Field, needed: pa.Field, name: str) -> Iterator[str]:
    if pa.types.is_struct(needed.type) and pa.types.is_struct(offered.type):
        yield from _compare_fields(list(offered.type), list(needed.type), prefix=f"{name}.")
    elif pa.types.is_list(needed.type) and pa.types.is_list(offered.type):
        yield from _compare_field(offered.type.value_field, needed.type.value_field, f"{name}[]")
    elif offered.type != needed.type:
        yield f"'{name}' is {offered.type} and must be {needed.type}"
    if offered.nullable and not needed.nullable:
        yield f"'{name}' may be null and must not"
