"""`evaluate` with a scorer, a control room and a store that only pretend: which assessment is the reward, and what is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from gyre.ops.evaluate import Evaluate
from gyre.records import Assessment, Batch, ClosedExecution

Row = dict[str, Any]


class World:
    """Every resource of the operator; `score` answers for one closed execution."""

    def __init__(self, score: Callable[[Row], list[Row]], designated: list[Row] | None = None) -> None:
        self.score, self.designated = score, designated or []
        self.stored: list[Row] = []
        self.groups: list[Mapping[str, Any]] = []

    def find(self, name: str, settings: Mapping[str, Any]) -> Any:
        return self._scorer

    async def _scorer(self, closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        return Batch.of(Assessment, [answer for row in closed.rows() for answer in self.score(row)])

    def append(self, table: str, rows: Any) -> None:
        self.stored += rows

    def read(self, table: str, *, where: str | None = None) -> Any:
        return Batch.of(Assessment, self.designated).table

    async def assessed(self, execution_id: str, valid: bool) -> None: ...

    async def over(self) -> bool:
        return False

    async def group_ready(self, group: Mapping[str, Any]) -> None:
        self.groups.append(group)

    async def run(self, *closed: Row, **settings: Any) -> list[Row]:
        resources: Any = {"scorers": self, "control": self, "store": self}

        async def stream() -> AsyncIterator[Batch[ClosedExecution]]:
            for row in closed:
                yield Batch.of(ClosedExecution, [row])

        return [row async for batch in Evaluate(**settings, **resources).run(stream()) for row in batch.rows()]


def closed_row(execution_id: str, *, surplus: int = 0) -> Row:
    return {
        "execution_id": execution_id, "group_id": "g000000", "group_size": 1, "group_surplus": surplus, "query_id": "q", "attempt": 1,
        "dispatch_version": 0, "status": "completed", "task_path": "", "config": "{}", "workspace": "w", "artifact_version": "end",
        "assessable": True, "reason": "", "launched_at_s": 1.0, "finished_at_s": 2.0,
    }  # fmt: skip


def says(row: Row, score: float | None, *, artifact_version: str = "end", branch: str = "", reason: str = "") -> Row:
    return {
        "execution_id": row["execution_id"], "attempt": 1, "designated": False, "valid": score is not None, "score": score,
        "reason": reason, "artifact_version": artifact_version, "artifact_ref": "w", "branch": branch, "try": 1, "created_at_s": 3.0,
    }  # fmt: skip


async def test_intermediate_states_are_kept_beside_the_reward_and_never_are_it() -> None:
    def score(row: Row) -> list[Row]:
        return [says(row, 1.0, artifact_version="draft"), says(row, 0.75, branch="sub-agent"), says(row, 0.25)]

    world = World(score)
    [scored] = await world.run(closed_row("g000000-00"))
    assert scored["reward"] == 0.25
    kept = [(row["designated"], row["artifact_version"], row["branch"], row["score"]) for row in world.stored]
    assert kept == [(False, "draft", "", 1.0), (False, "end", "sub-agent", 0.75), (True, "end", "", 0.25)]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None])
async def test_a_try_without_a_number_is_kept_as_not_valid(score: float | None) -> None:
    world = World(lambda row: [says(row, score) | {"valid": True}])
    [scored] = await world.run(closed_row("g000000-00"), max_tries=1)
    assert (scored["outcome"], scored["reward"]) == ("unresolved", None)
    assert [(row["designated"], row["valid"], row["score"]) for row in world.stored] == [(False, False, None), (True, False, None)]


async def test_surplus_stays_cancelled_after_a_resumption() -> None:
    """The group had its valid outcome and the surplus its record, when the run was killed before the group was trained."""
    rows = [closed_row("g000000-00", surplus=1), closed_row("g000000-01", surplus=1)]
    designated = [says(rows[0], 1.0) | {"designated": True}, says(rows[1], None, reason="cancelled") | {"designated": True}]
    world = World(lambda row: [], designated)
    await world.run(rows[1], rows[0])
    [group] = world.groups
    assert (group["valid"], group["unresolved"], group["cancelled"]) == (1, 0, 1)
    assert world.stored == []
