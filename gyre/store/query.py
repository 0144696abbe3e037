"""`gyre query`: SQL over the tables of a run with DuckDB, while it runs or afterwards. Read-only.

Each table is a view over its Lance dataset and what is still in its log. The database lives in memory and may neither read nor
write files, so no statement can change the run.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from gyre.errors import UserError
from gyre.store.columns import TABLE_KEYS, TABLES, dataset_path, log_dir, stored_schema, table_schema
from gyre.store.run_store import has_spans, read_table, sources

_CATALOG = {"show", "information_schema", "duckdb_tables", "duckdb_views", "duckdb_columns"}
"""Words of a statement that asks which tables there are; no row of theirs is read for it."""


def require_run(run_dir: Path | str) -> Path:
    """The run's directory as a path.

    Raises:
        UserError: there is no run.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise UserError(f"{path} does not exist", hint="give the directory that `gyre run` printed first and last")
    has_table = any(dataset_path(path, table).exists() or log_dir(path, table).exists() for table in TABLES)
    if not has_table and not (path / "spec.json").exists():
        raise UserError(f"{path} holds no run", hint="give the directory that `gyre run` printed first and last")
    return path


def query(run: Path | str, sql: str) -> pa.Table:
    """Run one SELECT over the tables of a run.

    Raises:
        UserError: no such run, or the statement is not a SELECT over its tables.
    """
    run_dir = require_run(run)
    with duckdb.connect() as connection:
        names = _table_names(connection, sql)
        for table in TABLES:
            if table in names:
                _register(connection, run_dir, table)
            elif names & _CATALOG:
                connection.register(table, table_schema(table).empty_table())
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise UserError(f"the query failed: {error}", hint=_hint(error)) from error


def _register(connection: duckdb.DuckDBPyConnection, run_dir: Path, table: str) -> None:
    """Make a view of a table. A growing table is a union over Lance, so that DuckDB reads only the columns and rows it needs."""
    if table in TABLE_KEYS or (table == "trajectories" and has_spans(run_dir)):
        connection.register(table, read_table(run_dir, table))
        return
    dataset, parts = sources(run_dir, table)
    schema = table_schema(table)
    connection.register(f"{table}_in_log", pa.concat_tables([stored_schema(table).empty_table(), *parts]))
    columns = ", ".join(f'"{name}"' for name in schema.names)
    body = f"SELECT {columns} FROM {table}_in_log"
    if dataset is not None:
        connection.register(f"{table}_in_lance", dataset)
        body = f"SELECT {columns} FROM {table}_in_lance UNION ALL {body}"
    connection.execute(f"CREATE VIEW {table} AS {body}")


def _table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise UserError(f"the query is not SQL: {error}", hint="see docs/query.md for examples") from error
    allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in allowed:
        raise UserError("a query is exactly one SELECT", hint="a run is read-only; write SELECT … FROM a table of the run")
    return {word.strip('"').lower() for word in _words(sql)}


def _words(sql: str) -> list[str]:
    return "".join(char if char.isalnum() or char == "_" else " " for char in sql).split()


def _hint(error: duckdb.Error) -> str:
    if isinstance(error, duckdb.CatalogException):
        return f"the tables are {', '.join(TABLES)}; `DESCRIBE executions` style questions: `gyre schema executions.v1`"
    return "see docs/query.md for examples"
