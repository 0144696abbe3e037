"""What a process of a run holds of the store: it appends to the log and reads Lance and log as one table.

Fed by the control actor and by the operators' actors, each with a writer name of its own; read by `query`, `inspect`, `verify` and
the resumption of a run. A read sees every row whose append has returned, once: log files are read first, Lance after them, and
what has been folded in between is taken from Lance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gyre.errors import StoreError
from gyre.store.columns import (
    HIDDEN_COLUMNS,
    HIDDEN_TABLES,
    TABLE_KEYS,
    TABLES,
    dataset_path,
    log_dir,
    rows_to_table,
    stored_schema,
    table_schema,
)
from gyre.store.conditions import matching_rows
from gyre.store.log import Segment, TableLog, read_segment, read_segments, segment_paths, try_lock
from gyre.store.settings import read_settings

if TYPE_CHECKING:
    from lance import LanceDataset as Dataset

FOLD_POLL_S = 0.05
"""Pause between two looks at a segment that its writer has not closed yet."""


class RunStore:
    """The tables of a run, as the `Store` resource (records.py).

    >>> import tempfile
    >>> store = RunStore(Path(tempfile.mkdtemp()), writer="control")
    >>> store.append("events", [{"time_s": 1.0, "kind": "published", "cell": -1, "detail": "{}"}])
    >>> store.read("events", where="kind = 'published'").num_rows
    1
    """

    def __init__(self, run_dir: Path | str, *, writer: str, fsync: bool = False) -> None:
        self._run_dir = Path(run_dir)
        self._writer = writer
        self._fsync = fsync
        self._logs: dict[str, TableLog] = {}

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self._run_dir

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a table; durable when it returns. A row of `executions` replaces the earlier one of its id, whole."""
        if table == "trajectories" and self._keeps_spans:
            self.append_table(table, rows_to_table(table, rows))
        else:
            self._log(table).append(rows)

    def append_table(self, table: str, rows: pa.Table) -> None:
        """Append rows that are an Arrow table already."""
        if table == "trajectories" and self._keeps_spans:
            from gyre.store.spans import SPANS_TABLE, to_spans

            self._log(SPANS_TABLE).append_table(to_spans(rows))
        else:
            self._log(table).append_table(rows)

    def read(self, table: str, *, where: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table as it is now; `where` is an SQL condition over its columns."""
        return read_table(self._run_dir, table, where=where, columns=columns)

    def fold(self, *, wait_s: float = 0.0) -> dict[str, int]:
        """Close this process's segments and fold the log into Lance; see `fold_log`."""
        self.close()
        return fold_log(self._run_dir, wait_s=wait_s)

    def close(self) -> None:
        """Close the log files, so that a fold may take them; a later append opens new ones."""
        for log in self._logs.values():
            log.close()

    @cached_property
    def _keeps_spans(self) -> bool:
        return read_settings(self._run_dir).keeps_spans

    def _log(self, table: str) -> TableLog:
        if table not in self._logs:
            self._logs[table] = TableLog(self._run_dir, table, writer=self._writer, fsync=self._fsync)
        return self._logs[table]


def read_table(run_dir: Path | str, table: str, *, where: str | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table of a run, Lance and log together, in the order of writing within each.

    `where` is an SQL condition over the table's columns; `columns` may name hidden ones too, None means the table's own.

    Raises:
        StoreError: no such table or column, or a condition that is not SQL.
    """
    run_dir = Path(run_dir)
    wanted = list(columns or table_schema(table).names)
    if table in TABLE_KEYS:
        rows = matching_rows(stored_rows(run_dir, table), where)
    elif table == "trajectories" and has_spans(run_dir):
        rows = matching_rows(_with_expanded(run_dir, stored_rows(run_dir, table)), where)
    else:
        rows = stored_rows(run_dir, table, where=where)
    missing = [name for name in wanted if name not in rows.column_names]
    if missing:
        raise StoreError(f"table {table} has no column {', '.join(missing)}; its columns are {', '.join(rows.column_names)}")
    schema = stored_schema(table)
    return pa.table(
        [rows.column(name) for name in wanted],
        schema=pa.schema([schema.field(name) for name in wanted], metadata=schema.metadata),
    )


def stored_rows(run_dir: Path, table: str, *, where: str | None = None) -> pa.Table:
    """Rows of a table with their hidden columns; of a table with a key, the newest write of each row."""
    folded, parts = sources(run_dir, table)
    parts = [matching_rows(rows, where) for rows in parts]
    if folded is not None:
        from gyre.store.tables import scan_rows

        parts.insert(0, scan_rows(folded, table, where=where))
    schema = stored_schema(table)
    loose = pa.schema([field.with_nullable(True) for field in schema], metadata=schema.metadata)
    rows = pa.concat_tables([loose.empty_table()] + [part.cast(loose) for part in parts])
    if table not in TABLE_KEYS or len(parts) == (folded is not None):
        # Lance alone has each row once; a person's double row stays, for verify to see.
        return rows
    from gyre.store.tables import latest_rows

    return latest_rows(rows, TABLE_KEYS[table])


def has_spans(run_dir: Path) -> bool:
    """True where trajectories of this run are kept as spans."""
    from gyre.store.spans import SPANS_TABLE

    return dataset_path(run_dir, SPANS_TABLE).exists() or bool(segment_paths(run_dir, SPANS_TABLE))


def _with_expanded(run_dir: Path, rows: pa.Table) -> pa.Table:
    from gyre.store.spans import SPANS_TABLE, expand_spans

    spans = stored_rows(run_dir, SPANS_TABLE)
    expanded = expand_spans(spans, read_table(run_dir, "calls"))
    for name in HIDDEN_COLUMNS:
        expanded = expanded.append_column(name, spans.column(name))
    return pa.concat_tables([rows, expanded.cast(rows.schema)])


def sources(run_dir: Path, table: str) -> tuple[Dataset | None, list[pa.Table]]:
    """What a table is made of now: its Lance dataset, and the rows of each log segment that is not in it."""
    segments = read_segments(run_dir, table)
    if not dataset_path(run_dir, table).exists():
        return None, [segment.rows for segment in segments]
    from gyre.store import tables

    # One version of the dataset answers for both, or a fold in between would show a segment's rows twice.
    dataset = tables.open_dataset(run_dir, table)
    if dataset is None or table in TABLE_KEYS:
        return dataset, [segment.rows for segment in segments]
    known = tables.folded_segments(dataset, [segment.name for segment in segments])
    return dataset, [segment.rows for segment in segments if segment.name not in known]


def fold_log(run_dir: Path | str, *, wait_s: float = 0.0) -> dict[str, int]:
    """Fold every closed log segment into Lance, one commit per table, and remove it. Makes all datasets, also the empty ones.

    Safe at any moment and after any crash: a segment is in Lance wholly or not at all, and is removed only afterwards.

    Waits up to `wait_s` for segments whose writers are still open; those stay in the log after it. Returns the rows committed
    per table.
    """
    run_dir = Path(run_dir)
    deadline_s = time.monotonic() + wait_s
    behind = [table for table in HIDDEN_TABLES if log_dir(run_dir, table).exists()]
    return {table: _fold_table(run_dir, table, deadline_s) for table in (*TABLES, *behind)}


def _fold_table(run_dir: Path, table: str, deadline_s: float) -> int:
    from gyre.store.tables import commit_segments

    locked = _lock_segments(run_dir, table, deadline_s)
    try:
        segments = [Segment(path.stem, path, read_segment(path, table)) for path in locked]
        num_rows = commit_segments(run_dir, table, segments)
        for path in locked:
            path.unlink(missing_ok=True)
    finally:
        for fd in locked.values():
            os.close(fd)
    return num_rows


def _lock_segments(run_dir: Path, table: str, deadline_s: float) -> dict[Path, int]:
    locked: dict[Path, int] = {}
    for path in segment_paths(run_dir, table):
        fd = try_lock(path)
        while fd is None and path.exists() and time.monotonic() < deadline_s:
            time.sleep(FOLD_POLL_S)
            fd = try_lock(path)
        if fd is not None:
            locked[path] = fd
    return locked
