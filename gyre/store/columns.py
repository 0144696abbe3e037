"""The tables of a run: their names, their columns and the two columns that the store adds to them.

A table's columns are in `schemas/<table>.v1.json`. In Lance and in the log two more columns travel with every row: `log_segment`,
the log file through which the row came (so that a log file is folded into Lance exactly once, whatever moment the process dies),
and `log_order`, nanoseconds since the epoch at the append, made strictly rising per writer (so that the last write of an execution
wins in whatever order log files are folded). Readers drop both unless they ask for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gyre.errors import StoreError
from gyre.records import load_schema

TABLES = ("executions", "calls", "assessments", "trajectories", "steps", "consumption", "publications", "events")
"""Every table of a run, in the order in which the walk fills them."""

HIDDEN_TABLES = ("trajectory_spans",)
"""Tables that stand behind another one: `trajectories` where a run keeps only spans of them."""

TABLE_KEYS: Mapping[str, str] = {"executions": "execution_id"}
"""Tables whose rows are updated, with the column that names a row; all others only grow."""

SEGMENT_COLUMN = "log_segment"
ORDER_COLUMN = "log_order"
HIDDEN_COLUMNS = (SEGMENT_COLUMN, ORDER_COLUMN)


def table_schema(table: str) -> pa.Schema:
    """Arrow schema of a table's own columns.

    Raises:
        StoreError: there is no such table.
    """
    if table not in TABLES + HIDDEN_TABLES:
        raise StoreError(f"a run has no table {table!r}; its tables are {', '.join(TABLES)}")
    return load_schema(f"{table}.v1")


def stored_schema(table: str) -> pa.Schema:
    """Schema of a table as Lance and the log hold it: its own columns, then the hidden ones."""
    schema = table_schema(table)
    return schema.append(pa.field(SEGMENT_COLUMN, pa.string())).append(pa.field(ORDER_COLUMN, pa.int64()))


def rows_to_table(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Make an Arrow table of plain rows; a missing column is null.

    Raises:
        StoreError: a row has an unknown column, a value of another type, or a null where none may be.
    """
    schema = table_schema(table)
    listed = [dict(row) for row in rows]
    unknown = sorted({name for row in listed for name in row} - set(schema.names))
    if unknown:
        raise StoreError(f"table {table} has no column {', '.join(unknown)}; its columns are {', '.join(schema.names)}")
    try:
        result = pa.Table.from_pylist(listed, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        raise StoreError(f"table {table}: a row does not fit its schema: {error}") from error
    check_nulls(table, result)
    return result


def check_nulls(table: str, rows: pa.Table) -> None:
    """Refuse a null in a column that must not have one.

    Raises:
        StoreError: naming the first such column.
    """
    for column in table_schema(table):
        if not column.nullable and rows.column(column.name).null_count:
            raise StoreError(f"table {table}: column {column.name} must not be null")


def dataset_path(run_dir: Path, table: str) -> Path:
    """Where the Lance dataset of a table is."""
    return run_dir / f"{table}.lance"


def log_dir(run_dir: Path, table: str) -> Path:
    """Where the log files of a table are."""
    return run_dir / "log" / table
