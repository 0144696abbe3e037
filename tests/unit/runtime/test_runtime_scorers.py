"""Scorers of the user's own that fail, answer with something else, or need what is not there."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typeguard

from gyre.errors import UserError
from gyre.records import Assessment, Batch, ClosedExecution
from gyre.runtime.doors import BoundScorer
from gyre.runtime.rescore import _score_all, rescore
from gyre.runtime.wiring import build_scorer

CLOSED: dict[str, Any] = {
    "execution_id": "g000000-00",
    "group_id": "g000000",
    "group_size": 1,
    "group_surplus": 0,
    "query_id": "q",
    "attempt": 2,
    "dispatch_version": 0,
    "status": "completed",
    "task_path": "",
    "config": "{}",
    "workspace": "workspaces/g000000-00/2",
    "artifact_version": "a",
    "assessable": True,
    "reason": "",
    "launched_at_s": 0.0,
    "finished_at_s": 1.0,
}


def find(name: str) -> BoundScorer:
    return BoundScorer(build_scorer(name, {}, {"Store": None}, base_dir=Path()))


def test_an_answer_of_another_kind_is_refused_at_the_door():
    with pytest.raises(typeguard.TypeCheckError, match="execution_id is missing"):
        asyncio.run(find("runtime_toy_scorers:mistaken")(Batch.of(ClosedExecution, [CLOSED])))


@pytest.mark.parametrize(("name", "reason"), [("failing", "RuntimeError: no luck"), ("mistaken", "does not hold assessment.v1")])
def test_a_scorer_that_fails_in_a_rescore_gives_an_invalid_assessment(name, reason):
    scorer = f"runtime_toy_scorers:{name}"
    [row] = asyncio.run(_score_all(find(scorer), scorer, [CLOSED]))
    assert (row["execution_id"], row["attempt"], row["valid"], row["score"], row["designated"]) == ("g000000-00", 2, False, None, False)
    assert row["reason"].startswith(f"{scorer}: the scorer failed: ")
    assert reason in row["reason"]
    assert len(Batch.of(Assessment, [row])) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("pack", "operator 'pack' is not a scorer"), ("runtime_toy_scorers:needy", "scorer 'runtime_toy_scorers:needy' needs Engines")],
)
def test_what_cannot_score_is_the_users_mistake(name, sentence):
    with pytest.raises(UserError, match=sentence):
        find(name)


def test_a_rescore_finds_operators_beside_the_pipelines_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = "from gyre.records import Batch, Task, op\n\n@op('none')\ndef none() -> Batch[Task]:\n    return Batch.of(Task, [])\n"
    (tmp_path / "runtime_beside_ops.py").write_text(source)
    document = {"base_dir": str(tmp_path), "pipeline": {"ops": {"tasks": {"op": "runtime_beside_ops:none"}}}, "settings": {"tasks": {}}}
    run = tmp_path / "run"
    run.mkdir()
    (run / "spec.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="has no closed execution to score"):
        rescore(run, scorer="task_verifier")
    (run / "spec.json").write_text("{")
    with pytest.raises(UserError, match=r"spec\.json cannot be read"):
        rescore(run, scorer="task_verifier")
