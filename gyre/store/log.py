"""The log in front of Lance: Arrow IPC streams that one process appends to and everybody reads.

A Lance commit costs some 40 ms; a model call must be durable before its answer ends. So a row is first appended to
`RUN/log/<table>/<writer>-<seq>.arrow` with one `write`, which survives `kill -9` of the process (with `fsync`, a power cut too).
Invariants:

- A segment has one writer, which holds an exclusive `flock` on it for as long as it may grow; a fold takes only unlocked segments.
- A segment appears under its name with its schema already whole, and a name is never used twice.
- A torn last message (the writer died inside a `write`) is not a row: readers stop before it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from gyre.errors import StoreError
from gyre.killpoints import is_armed, kill_point
from gyre.store.columns import check_nulls, log_dir, rows_to_table, stored_schema, table_schema

ROTATE_BYTES = 64 * 2**20
"""A segment is closed at this size, so that a fold during a long run has something to take and a query maps few files."""


class Segment(NamedTuple):
    """One log file, read."""

    name: str
    """File name without its ending; unique in the run's table."""
    path: Path
    """Where it is."""
    rows: pa.Table
    """Its whole rows, in the stored schema."""


class TableLog:
    """Appends rows of one table; one object per table and process, safe to use from several threads.

    >>> import tempfile
    >>> log = TableLog(Path(tempfile.mkdtemp()), "publications", writer="control")
    >>> log.append([{"version": 1, "time_s": 5.0, "engine": "cell0", "confirmed": True}])
    >>> [segment.rows.num_rows for segment in read_segments(log.run_dir, "publications")]
    [1]
    """

    def __init__(self, run_dir: Path, table: str, *, writer: str, fsync: bool = False) -> None:
        self.run_dir = Path(run_dir)
        self.table = table
        self._schema = stored_schema(table)
        self._writer = writer
        self._fsync = fsync
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._name = ""
        self._size_bytes = 0
        self._last_order = 0

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append plain rows; they are durable when this returns.

        Raises:
            StoreError: a row does not fit the table, or the file could not be written (nothing of `rows` is kept then).
        """
        self._append(rows_to_table(self.table, rows))

    def append_table(self, rows: pa.Table) -> None:
        """Append rows that are an Arrow table already; extra columns are refused, their order is free."""
        schema = table_schema(self.table)
        try:
            rows = rows.select(schema.names).cast(schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StoreError(f"table {self.table}: rows do not fit its schema: {error}") from error
        check_nulls(self.table, rows)
        self._append(rows)

    def _append(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        with self._lock:
            if self._fd is None:
                self._open_segment()
            self._write(self._stamped(rows))
            if self._size_bytes >= ROTATE_BYTES:
                self._close_segment()

    def close(self) -> None:
        """Close the open segment, so that a fold may take it; a later append opens a new one."""
        with self._lock:
            self._close_segment()

    def _stamped(self, rows: pa.Table) -> pa.RecordBatch:
        first = max(self._last_order + 1, time.time_ns())
        self._last_order = first + rows.num_rows - 1
        columns = [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in rows.columns]
        columns.append(pa.repeat(pa.scalar(self._name, pa.string()), rows.num_rows))
        columns.append(pa.array(range(first, first + rows.num_rows), pa.int64()))
        return pa.record_batch(columns, schema=self._schema)

    def _write(self, batch: pa.RecordBatch) -> None:
        assert self._fd is not None
        data = memoryview(batch.serialize())
        if is_armed("inside_store_append"):
            os.write(self._fd, data[: len(data) // 2])
            kill_point("inside_store_append")
        try:
            _write_all(self._fd, data)
            if self._fsync:
                os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._size_bytes)
            raise StoreError(
                f"{log_dir(self.run_dir, self.table)}: rows of {self.table} could not be written ({error.strerror}); "
                "make room or repair the disk, then continue with --resume"
            ) from error
        self._size_bytes += len(data)

    def _open_segment(self) -> None:
        folder = log_dir(self.run_dir, self.table)
        hidden: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The time makes a name unique for good: counting files would give a folded segment's name a second time.
            self._name = f"{self._writer}-{max(time.time_ns(), self._last_order + 1):020d}"
            hidden = folder / f".{self._name}.{os.getpid()}"
            fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX)
            data = memoryview(self._schema.serialize())
            _write_all(fd, data)
            os.rename(hidden, folder / f"{self._name}.arrow")
        except OSError as error:
            if hidden is not None:
                hidden.unlink(missing_ok=True)
            raise StoreError(f"{folder}: no log file could be made there ({error.strerror}); check room and rights") from error
        self._fd, self._size_bytes = fd, len(data)

    def _close_segment(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def segment_paths(run_dir: Path, table: str) -> list[Path]:
    """Log files of a table, oldest first."""
    return sorted(log_dir(run_dir, table).glob("*.arrow"), key=lambda path: path.stem.rpartition("-")[2])


def read_segment(path: Path, table: str) -> pa.Table:
    """Read the whole rows of a log file; a torn tail is left out, a file that has just been folded away is empty."""
    schema = stored_schema(table)
    try:
        with pa.memory_map(str(path)) as source:
            return pa.Table.from_batches(_whole_batches(source), schema=schema)
    except FileNotFoundError:
        return schema.empty_table()


def _whole_batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    try:
        reader = pa.ipc.open_stream(source)
        while True:
            yield reader.read_next_batch()
    except (StopIteration, pa.ArrowInvalid, OSError):
        return


def read_segments(run_dir: Path, table: str) -> list[Segment]:
    """Read every log file of a table, oldest first."""
    paths = segment_paths(run_dir, table)
    return [Segment(path.stem, path, read_segment(path, table)) for path in paths]


def try_lock(path: Path) -> int | None:
    """Take the lock of a segment whose writer has closed it or died; None while it may still grow or where it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if not path.exists():
        os.close(fd)
        return None
    return fd
