"""The Lance datasets of a run. The only file that imports `lance`.

One dataset per table at `RUN/<table>.lance`, in the schema of `schemas/<table>.v1.json` and the two hidden columns of `columns.py`.
Datasets are written by folds of the log, by rescoring and by the reconciliation of a resumed run, always under the run's lock;
they are read by everybody at any time, since a Lance commit is atomic and a reader keeps the version that it opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa

from gyre.errors import StoreError
from gyre.store.columns import (
    HIDDEN_COLUMNS,
    ORDER_COLUMN,
    SEGMENT_COLUMN,
    TABLE_KEYS,
    dataset_path,
    stored_schema,
)

if TYPE_CHECKING:
    from gyre.store.log import Segment


def open_dataset(run_dir: Path, table: str) -> lance.LanceDataset | None:
    """Open a table's newest version; None where nothing was folded yet.

    Raises:
        StoreError: the dataset is there but cannot be read.
    """
    path = dataset_path(run_dir, table)
    if not path.exists():
        return None
    try:
        return lance.dataset(str(path))
    except ValueError as error:
        # A folder without a manifest: the process died inside the dataset's first commit. Nothing was folded.
        if not any((path / "_versions").glob("*")):
            return None
        raise StoreError(f"{path} cannot be opened as a Lance dataset: {error}") from error


def scan_rows(dataset: lance.LanceDataset, table: str, *, where: str | None = None) -> pa.Table:
    """Read rows of an open dataset in the stored schema; `where` is an SQL condition, pushed down to the scan.

    Raises:
        StoreError: the condition is not SQL over the table's columns, or a file cannot be read.
    """
    wanted = [name for name in stored_schema(table).names if name in dataset.schema.names]
    try:
        rows = dataset.to_table(columns=wanted, filter=where, scan_in_order=True)
    except (ValueError, OSError) as error:
        raise StoreError(f"table {table} cannot be read where {where or 'everything'}: {error}") from error
    return _with_stored_columns(rows, table)


def _with_stored_columns(rows: pa.Table, table: str) -> pa.Table:
    """Fill hidden columns that a dataset lacks (one that a person rewrote); any other missing column is an error."""
    schema = stored_schema(table)
    for field in schema:
        if field.name not in rows.column_names:
            if field.name not in HIDDEN_COLUMNS:
                raise StoreError(f"table {table} has no column {field.name}; this run is of another version of gyre")
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names)


def folded_segments(dataset: lance.LanceDataset, names: Sequence[str]) -> set[str]:
    """Which of these log segments are in this version of a dataset already."""
    if not names or SEGMENT_COLUMN not in dataset.schema.names:
        return set()
    listed = ", ".join(f"'{name}'" for name in names)
    found = dataset.to_table(columns=[SEGMENT_COLUMN], filter=f"{SEGMENT_COLUMN} IN ({listed})")
    return {str(name) for name in found.column(SEGMENT_COLUMN).to_pylist()}


def commit_segments(run_dir: Path, table: str, segments: Sequence[Segment]) -> int:
    """Put log segments into a table with one commit; those that are there already are left out. Returns the rows committed.

    A table with a key is merged: of two writes of a row the later one stays, so a repeated fold changes nothing.
    """
    schema = stored_schema(table)
    path = str(dataset_path(run_dir, table))
    try:
        dataset = open_dataset(run_dir, table)
        if dataset is None:
            dataset = lance.write_dataset(schema.empty_table(), path, schema=schema, mode="create")
        known = set() if table in TABLE_KEYS else folded_segments(dataset, [s.name for s in segments])
        rows = pa.concat_tables([schema.empty_table()] + [s.rows for s in segments if s.name not in known])
        if rows.num_rows == 0:
            return 0
        if table in TABLE_KEYS:
            _merge(dataset, latest_rows(rows, TABLE_KEYS[table]), TABLE_KEYS[table])
        else:
            lance.write_dataset(rows, path, mode="append")
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: the log could not be folded into it: {error}; make room, then use --resume") from error
    return rows.num_rows


def _merge(dataset: lance.LanceDataset, rows: pa.Table, key: str) -> None:
    newer = f"target.{ORDER_COLUMN} IS NULL OR target.{ORDER_COLUMN} < source.{ORDER_COLUMN}"
    dataset.merge_insert(key).when_matched_update_all(newer).when_not_matched_insert_all().execute(rows)


def latest_rows(rows: pa.Table, key: str) -> pa.Table:
    """Keep, of all writes of each row, the one with the highest `log_order`; in the order of first appearance."""
    newest: dict[str, tuple[int, int]] = {}
    orders = rows.column(ORDER_COLUMN).to_pylist()
    for index, name in enumerate(rows.column(key).to_pylist()):
        order = orders[index] if orders[index] is not None else -1
        if name not in newest or order >= newest[name][0]:
            newest[name] = (order, index)
    return rows.take(pa.array([index for _, index in newest.values()], pa.int64()))


def delete_rows(run_dir: Path, table: str, where: str) -> int:
    """Delete rows of a table that meet an SQL condition; returns how many."""
    dataset = open_dataset(run_dir, table)
    if dataset is None:
        return 0
    doomed = dataset.count_rows(filter=where)
    if doomed:
        dataset.delete(where)
    return doomed
