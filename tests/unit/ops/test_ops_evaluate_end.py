"""How an evaluation ends: with scores that come late, and with groups that nobody consumes any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gyre.ops.evaluate import Evaluate
from gyre.records import Assessment, Batch, ClosedExecution
from gyre.store.run_store import RunStore

ANSWER = {"attempt": 1, "designated": False, "reason": "", "artifact_ref": "w", "branch": "", "try": 1, "created_at_s": 0.0}


class Doors:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.is_over = False
        self.ready: list[dict[str, Any]] = []

    async def over(self) -> bool:
        return self.is_over

    async def assessed(self, execution_id: str, valid: bool) -> None: ...

    async def group_ready(self, group: Mapping[str, Any]) -> None:
        self.ready.append(dict(group))


class Scoring:
    """One evaluation at work on groups of one execution, and perhaps one of surplus."""

    def __init__(self, run_dir: Path, answer: Callable[[str], Any], *, surplus: int = 0) -> None:
        self.doors = Doors()
        self.store = RunStore(run_dir, writer="evaluate")
        self.closed: asyncio.Queue[Batch[ClosedExecution] | None] = asyncio.Queue()
        self.surplus = surplus

        class Scorers:
            def find(self, name: str, settings: Mapping[str, Any]) -> Any:
                async def score(closed: Batch[ClosedExecution]) -> Batch[Assessment]:
                    execution_id = closed.rows()[0]["execution_id"]
                    answered = answer(execution_id)
                    rows = await answered if asyncio.iscoroutine(answered) else answered
                    return Batch.of(Assessment, [{**ANSWER, "execution_id": execution_id, **row} for row in rows])

                return score

        doors: Any = self.doors
        self.operator = Evaluate(scorers=Scorers(), control=doors, store=self.store)

    def close(self, execution_id: str) -> None:
        words = {"group_id": "g0", "query_id": "q", "status": "completed", "task_path": "", "config": "{}", "workspace": "w", "reason": ""}
        numbers = {"group_size": 1, "group_surplus": self.surplus, "attempt": 1, "dispatch_version": 0, "finished_at_s": 0.0}
        row = {**words, **numbers, "execution_id": execution_id, "artifact_version": "end", "assessable": True}
        self.closed.put_nowait(Batch.of(ClosedExecution, [row]))

    async def run(self) -> list[float | None]:
        """Evaluate to the end of the closed executions; the rewards of ready groups."""

        async def closed() -> AsyncIterator[Batch[ClosedExecution]]:
            while (batch := await self.closed.get()) is not None:
                yield batch

        async with asyncio.timeout(20):
            return [row["reward"] async for batch in self.operator.run(closed()) for row in batch.rows()]  # pyright: ignore

    def stored(self, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in columns) for row in self.store.read("assessments").to_pylist())


async def test_a_late_score_of_surplus_is_kept_and_not_used(tmp_path: Path) -> None:
    may_answer = asyncio.Event()

    async def late() -> list[dict[str, Any]]:
        await may_answer.wait()
        return [{"valid": True, "score": 1.0, "artifact_version": "end"}]

    def answer(execution_id: str) -> Any:
        return late() if execution_id == "g0-00" else [{"valid": True, "score": 0.5, "artifact_version": "end"}]

    scoring = Scoring(tmp_path, answer, surplus=1)
    running = asyncio.ensure_future(scoring.run())
    scoring.close("g0-00")
    scoring.close("g0-01")
    async with asyncio.timeout(20):
        while not scoring.doors.ready:
            await asyncio.sleep(0.001)
    may_answer.set()
    scoring.closed.put_nowait(None)
    assert [reward for reward in await running if reward is not None] == [0.5]
    stored = scoring.stored("execution_id", "designated", "score")
    assert stored == [("g0-00", False, 1.0), ("g0-00", True, None), ("g0-01", True, 0.5)]


@pytest.mark.parametrize("score", [float("nan"), None])
async def test_a_stopped_run_does_not_wait_for_scores_that_nobody_uses(score: float | None, tmp_path: Path) -> None:
    """An evaluator that never gives a valid score is asked again for as long as the budget lasts; a stop must not wait for that."""
    scoring = Scoring(tmp_path, lambda execution_id: [{"valid": True, "score": score, "artifact_version": "end"}])
    scoring.operator.budget_s = 1e12
    scoring.close("g0-00")
    running = asyncio.ensure_future(scoring.run())
    async with asyncio.timeout(20):
        while not scoring.stored("try"):
            await asyncio.sleep(0.001)
    scoring.doors.is_over = True
    scoring.closed.put_nowait(None)
    assert await running == []
    assert scoring.stored("valid", "designated")[0] == (False, False)
