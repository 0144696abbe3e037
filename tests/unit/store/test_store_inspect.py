"""`inspect`: the list of executions, and one of them with its trees, targets, reward and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_run import make_tiny_run
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gyre.errors import UserError
from gyre.store.inspect import describe_execution, inspect, list_executions
from gyre.store.run_store import RunStore


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny_run(tmp_path_factory.mktemp("inspect") / "run")
    logs = path / "logs" / "g000002-01"
    logs.mkdir(parents=True)
    (logs / "attempt-2.err").write_text("\n".join(f"line {number}" for number in range(50)), encoding="utf-8")
    return path


def test_the_list_has_every_execution_with_its_figures(run_dir: Path) -> None:
    rows = list_executions(run_dir)
    assert len(rows) == 18
    first = rows[0]
    assert (first["execution_id"], first["status"], first["reward"], first["step"]) == ("g000000-00", "completed", 0.0, 1)
    assert (first["calls"], first["tokens"], first["targets"]) == (3, 14, 7)
    by_id = {row["execution_id"]: row for row in rows}
    assert by_id["g000001-02"]["reward"] is None
    assert by_id["g000002-01"]["calls"] == 3
    assert by_id["g000004-00"]["calls"] == 0


def test_one_execution_has_trees_of_all_attempts_targets_and_logs(run_dir: Path) -> None:
    found = describe_execution(run_dir, "g000002-01")
    assert [attempt["attempt"] for attempt in found["attempts"]] == [1, 2]
    nodes = found["attempts"][1]["nodes"]
    assert [(node["node_id"], node["parent_node_id"], node["role"], node["targets"]) for node in nodes] == [
        (0, None, "main", 3),
        (1, 0, "main", 2),
        (2, 0, "sub-agent", 2),
    ]
    assert sum(node["targets"] for node in found["attempts"][0]["nodes"]) == 0
    assert sorted(tuple(row["path"]) for row in found["trajectories"]) == [(0, 1), (0, 2)]
    assert found["step"] == 2
    tail = found["logs"]["logs/g000002-01/attempt-2.err"].splitlines()
    assert (len(tail), tail[-1]) == (20, "line 49")


def test_the_picture_names_what_matters(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(run_dir)
    assert "18 executions" in capsys.readouterr().out
    inspect(run_dir, "g000002-01")
    shown = capsys.readouterr().out
    for word in ("g000002-01", "timeout", "attempt 2: 3 calls", "sub-agent", "trained in step 2", "line 49", "advantage"):
        assert word in shown


def test_json_is_one_document(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(run_dir, as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 18
    inspect(run_dir, "g000000-00", as_json=True)
    assert json.loads(capsys.readouterr().out)["execution"]["query_id"] == "kata-0"


def test_a_running_run_can_be_looked_at(tmp_path: Path) -> None:
    row = {
        "execution_id": "g000000-00", "group_id": "g000000", "query_id": "q", "dispatch_version": 0, "status": "queued",
        "dispatched_at_s": 1.0, "attempts": 0, "group_index": 0, "workspace": "", "reason": "",
    }  # fmt: skip
    RunStore(tmp_path, writer="control").append("executions", [row])
    assert list_executions(tmp_path)[0]["status"] == "queued"
    assert describe_execution(tmp_path, "g000000-00")["attempts"] == []


def test_tokens_are_shown_as_text_where_the_checkpoint_has_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make_tiny_run(tmp_path / "run")
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
    tokenizer.save(str(run_dir / "checkpoints" / "0" / "model" / "tokenizer.json"))
    node = describe_execution(run_dir, "g000000-00")["attempts"][0]["nodes"][0]
    assert node["input_text"].startswith("w1 w2 w3")
    inspect(run_dir, "g000000-00")
    assert "w1 w2 w3" in capsys.readouterr().out


def test_an_unknown_execution_is_a_users_mistake(run_dir: Path) -> None:
    with pytest.raises(UserError, match='has no execution "it\'s"'):
        describe_execution(run_dir, "it's")
