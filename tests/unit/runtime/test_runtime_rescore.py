"""Rescoring, without a run."""

from __future__ import annotations

from typing import Any

from gyre.records import Assessment, Batch, ClosedExecution
from gyre.runtime.doors import BoundScorer
from gyre.runtime.rescore import _score_all


async def test_a_scorer_that_fails_on_one_workspace_keeps_the_scores_of_the_others() -> None:
    names = [f"g000000-{number:02d}" for number in range(3)]
    words = {"group_id": "g000000", "query_id": "q", "status": "completed", "task_path": "", "config": "{}", "workspace": "w", "reason": ""}
    numbers = {"group_size": 1, "group_surplus": 0, "attempt": 1, "dispatch_version": 0, "finished_at_s": 0.0}
    closed = [{**words, **numbers, "execution_id": name, "artifact_version": "a", "assessable": True} for name in names]

    def score(closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        [row] = closed.rows()
        if row["execution_id"] == names[1]:
            raise ValueError("no such file")
        answer: dict[str, Any] = {"valid": True, "score": 1.0, "reason": "", "artifact_ref": "w", "branch": "", "try": 1}
        same = {name: row[name] for name in ("execution_id", "attempt", "artifact_version")}
        return Batch.of(Assessment, [{**answer, **same, "designated": False, "created_at_s": 0.0}])

    found = await _score_all(BoundScorer(score), "mine", closed)
    assert [(row["execution_id"], row["score"]) for row in found] == [(names[0], 1.0), (names[1], None), (names[2], 1.0)]
    assert found[1]["reason"] == "mine: the scorer failed: ValueError: no such file"
