"""Commands on the tables of a run: JSON documents and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_run import make_tiny_run

from gyre.cli import run_cli
from gyre.store.run_store import RunStore


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tiny"
    make_tiny_run(run)
    return run


def test_a_query_gives_a_list_of_row_objects(tiny_run, capsys):
    assert run_cli(["query", str(tiny_run), "SELECT count(*) AS n, 'nan'::DOUBLE AS odd FROM executions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 18, "odd": None}]
    assert run_cli(["query", str(tiny_run), "SELECT version, repeat('x', 300) AS wide FROM steps ORDER BY version"]) == 0
    text = capsys.readouterr().out
    assert "x" * 300 in text
    assert "(3 rows)" in text


def test_sums_of_whole_numbers_are_numbers(tiny_run, capsys):
    sql = "SELECT sum(version) AS total, sum(version) / 4 AS part, 0.5 AS half FROM steps"
    assert run_cli(["query", str(tiny_run), sql, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"total": 6, "part": 1.5, "half": 0.5}]
    assert [type(value) for value in rows[0].values()] == [int, float, float]


def test_brackets_in_a_cell_are_text(tiny_run, capsys):
    assert run_cli(["query", str(tiny_run), "SELECT 'test_sort[reverse] /bin/sh[/]' AS query_id"]) == 0
    assert "test_sort[reverse] /bin/sh[/]" in capsys.readouterr().out


def test_inspect_shows_brackets_and_says_null_for_what_is_no_number(tmp_path, capsys):
    run = make_tiny_run(tmp_path / "run")
    store = RunStore(run, writer="control")
    [row] = store.read("executions", where="execution_id = 'g000000-00'").to_pylist()
    store.append("executions", [row | {"query_id": "sort[/]", "launched_at_s": float("nan")}])
    assert run_cli(["inspect", str(run)]) == 0
    assert "sort[/]" in capsys.readouterr().out
    assert run_cli(["inspect", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)[0]["seconds"] is None


def test_brackets_in_a_table_are_shown_as_they_are(tiny_run, capsys):
    sql = "SELECT '[main 1] [/b] [red]x' AS said, 1 AS \"[bold]n\""
    assert run_cli(["query", str(tiny_run), sql]) == 0
    text = capsys.readouterr().out
    assert "[main 1] [/b] [red]x" in text
    assert "[bold]n" in text


def test_sums_are_numbers_and_equal_names_lose_no_column(tiny_run, capsys):
    sql = "SELECT sum(attempts) AS n, avg(0.5::DECIMAL(5, 2)) AS half, 1.25::DECIMAL(5, 2) AS d, 1 AS a, 2 AS a, 3 AS a_1 FROM executions"
    assert run_cli(["query", str(tiny_run), sql, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row == {"n": row["n"], "half": 0.5, "d": 1.25, "a": 1, "a_2": 2, "a_1": 3}
    assert isinstance(row["n"], int)
    assert run_cli(["query", str(tiny_run), "SELECT 1 AS a, 2 AS a"]) == 0
    assert capsys.readouterr().out.split()[:4] == ["a", "a_1", "1", "2"]


def test_a_bad_query_is_the_users_mistake(tiny_run, capsys):
    assert run_cli(["query", str(tiny_run), "SELEC"]) == 2
    assert run_cli(["query", str(tiny_run / "none"), "SELECT 1"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_verify_holds_and_says_so(tiny_run, capsys):
    assert run_cli(["verify", str(tiny_run), "--no-logprobs"]) == 0
    assert "everything holds" in capsys.readouterr().out
    assert run_cli(["verify", str(tiny_run), "--no-logprobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_inspect_shows_executions_and_one_of_them(tiny_run, capsys):
    assert run_cli(["inspect", str(tiny_run), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 18
    assert run_cli(["inspect", str(tiny_run), listed[0]["execution_id"], "--json"]) == 0
    shown = capsys.readouterr().out
    assert isinstance(json.loads(shown), dict)
    assert listed[0]["execution_id"] in shown
    assert run_cli(["inspect", str(tiny_run), "g999999-99"]) == 2


def test_a_reader_that_has_seen_enough_is_no_failure(tiny_run):
    command = [sys.executable, "-m", "gyre.cli", "query", str(tiny_run), "SELECT repeat('x', 1000) FROM range(3000)"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
