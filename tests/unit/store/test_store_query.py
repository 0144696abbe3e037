"""`query`: SELECT over Lance and log, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.errors import UserError
from gyre.store.columns import TABLES
from gyre.store.query import query, require_run
from gyre.store.run_store import RunStore


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [{"time_s": 1.0, "kind": "joined", "cell": 1, "detail": "{}"}])
    store.fold()
    store.append("events", [{"time_s": 2.0, "kind": "published", "cell": -1, "detail": '{"version": 3}'}])
    return tmp_path


def test_a_query_sees_lance_and_log(run_dir: Path) -> None:
    rows = query(run_dir, "SELECT kind, cell FROM events ORDER BY time_s").to_pylist()
    assert rows == [{"kind": "joined", "cell": 1}, {"kind": "published", "cell": -1}]
    assert query(run_dir, "SELECT count(*) AS n FROM executions").to_pylist() == [{"n": 0}]
    assert query(run_dir, "SELECT * FROM events").column_names == ["time_s", "kind", "cell", "detail"]


def test_the_tables_can_be_listed(run_dir: Path) -> None:
    assert {row["name"] for row in query(run_dir, "SHOW TABLES").to_pylist()} == set(TABLES)
    columns = query(run_dir, "SELECT column_name FROM information_schema.columns WHERE table_name = 'events'")
    assert columns["column_name"].to_pylist() == ["time_s", "kind", "cell", "detail"]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM nodes", "nodes does not exist"),
        ("SELEC 1", "not SQL"),
        ("DELETE FROM events", "exactly one SELECT"),
        ("SELECT 1; SELECT 2", "exactly one SELECT"),
        ("SELECT * FROM read_csv('secrets.csv')", "disabled by configuration"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(run_dir: Path, sql: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        query(run_dir, sql)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        require_run(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        require_run(tmp_path / "absent")
