"""SQL conditions over Arrow tables, for the part of a table that is still in the log.

Lance filters its own rows; DuckDB finds the matching rows of the log, of which only the numbers are taken, so that column types
stay exactly those of the schema.
"""

from __future__ import annotations

import pyarrow as pa

from gyre.errors import StoreError


def matching_rows(rows: pa.Table, where: str | None) -> pa.Table:
    """Keep the rows that meet an SQL condition; None: all.

    Raises:
        StoreError: the condition is not SQL over these columns.
    """
    if where is None or rows.num_rows == 0:
        return rows
    import duckdb

    with duckdb.connect() as connection:
        numbered = rows.append_column("row_number", pa.array(range(rows.num_rows), pa.int64()))
        connection.register("candidates", numbered)
        try:
            found = connection.execute(f"SELECT row_number FROM candidates WHERE {where} ORDER BY row_number").fetchall()
        except duckdb.Error as error:
            raise StoreError(f"the condition {where!r} cannot be read: {error}") from error
    return rows.take(pa.array([number for (number,) in found], pa.int64()))
