"""`evaluate`: scores the preserved work of closed executions and emits groups as they become ready (paper section 5.2).

What an outcome means is decided by `gyre.trajectory.outcomes`; here its actions are performed: the scorer is asked, asked again after a
while where it gave nothing valid, and every assessment is stored. One batch out is one ready group. After a resume, executions that
have their designated assessment keep it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gyre.killpoints import kill_point
from gyre.ops._background import Background
from gyre.records import Assessment, Batch, ClosedExecution, Control, ScoredExecution, Scorers, Store, Stream, op
from gyre.trajectory import outcomes as o

Scorer = Callable[[Batch[ClosedExecution]], Awaitable[Batch[Assessment]]]
"""A scorer operator, ready to be called."""
GRACE_S = 1.0
"""An execution that closed at the end of its overall budget still gets its first try."""


@op("evaluate", state="store")
class Evaluate:
    """Score closed executions with a scorer operator and emit ready groups.

    State across batches: outcomes of groups that are not ready; a resumed run rebuilds them from `assessments`.
    """

    def __init__(
        self,
        *,
        scorer: str = "task_verifier",
        scorer_args: dict[str, Any] | None = None,
        budget_s: float = 3600.0,
        max_tries: int | None = None,
        workers: int = 2,
        scorers: Scorers,
        control: Control,
        store: Store,
    ) -> None:
        """Take the settings of evaluation.

        Args:
            scorer: operator from closed executions to assessments: built-in name, `package/name` or `module:attr`.
            scorer_args: its settings.
            budget_s: overall budget of an execution from its launch, in seconds: evaluator retries stop there. An execution that
                closed late still gets one try.
            max_tries: most tries at one artifact; None tries until the budget is over.
            workers: scorings at a time.
            scorers: operators that score, by name.
            control: the scheduler's doors.
            store: the run's tables.
        """
        self.scorer = scorers.find(scorer, scorer_args or {})
        self.budget_s = budget_s
        self.max_tries = max_tries
        self.control = control
        self.store = store
        self._slots = asyncio.Semaphore(workers)
        self._groups: dict[str, o.GroupOutcomes] = {}
        self._closed: dict[str, dict[str, Any]] = {}
        self._earlier: dict[tuple[str, int], dict[str, Any]] = {}
        self._ready: asyncio.Queue[Batch[ScoredExecution] | None] = asyncio.Queue()
        self._background = Background()
        self._tries: dict[asyncio.Task[None], o.GroupOutcomes] = {}
        """Scorings under way and those that wait for their time, with the group they are for."""

    async def run(self, closed: Stream[ClosedExecution]) -> Stream[ScoredExecution]:
        """Emit each group once, when all its executions have their outcome."""
        known = await asyncio.to_thread(self.store.read, "assessments", where="designated")
        self._earlier = {(row["execution_id"], row["attempt"]): row for row in known.to_pylist()}
        self._background.start(self._read(closed))
        try:
            while (batch := await self._background.get(self._ready)) is not None:
                yield batch
        finally:
            await self._background.cancel()

    async def _read(self, closed: Stream[ClosedExecution]) -> None:
        async for batch in closed:
            for row in batch.rows():
                await self._close(row)
        if await self.control.over():
            # Stopped before its end: nobody consumes a group that is not ready by now. The resumed run scores what is left.
            for task, group in list(self._tries.items()):
                if not group.is_ready:
                    task.cancel()
        await self._background.drain(but=asyncio.current_task())
        await self._ready.put(None)

    async def _close(self, row: dict[str, Any]) -> None:
        execution_id = row["execution_id"]
        group = self._groups.get(row["group_id"])
        if group is None:
            size, surplus = row["group_size"], row["group_surplus"]
            group = o.GroupOutcomes(row["group_id"], size=size, num_surplus=surplus, max_tries=self.max_tries)
            self._groups[row["group_id"]] = group
        self._closed[execution_id] = row
        actions = group.closed(
            execution_id,
            row["status"],
            assessable=row["assessable"],
            artifact_version=row["artifact_version"],
            budget_until_s=max((row["launched_at_s"] or row["finished_at_s"]) + self.budget_s, row["finished_at_s"] + GRACE_S),
            now_s=time.time(),
        )
        earlier = self._earlier.get((execution_id, row["attempt"]))
        if earlier is not None and any(isinstance(action, o.Assess) for action in actions):
            actions = self._repeat(group, row, earlier)
        elif not actions and execution_id in group.outcomes:
            # Surplus whose outcome was decided while its harness still ran: its record is written now that it is closed.
            actions = (group.outcomes[execution_id],)
        await self._perform(group, actions)

    def _repeat(self, group: o.GroupOutcomes, row: dict[str, Any], earlier: Mapping[str, Any]) -> tuple[o.Action, ...]:
        """Take the designated assessment that was made before the resume instead of asking again."""
        if earlier["reason"] == "cancelled":
            return group.cancelled(row["execution_id"])
        if not earlier["valid"]:
            return group.budget_expired(row["execution_id"], now_s=float("inf"))
        return group.assessed(
            row["execution_id"],
            valid=True,
            score=earlier["score"],
            reason=earlier["reason"],
            artifact_version=row["artifact_version"],
            now_s=time.time(),
        )

    async def _perform(self, group: o.GroupOutcomes, actions: tuple[o.Action, ...]) -> None:
        for action in actions:
            match action:
                case o.Assess():
                    task = self._background.start(self._assess(group, action))
                    self._tries[task] = group
                    task.add_done_callback(self._tries.pop)
                case o.Designate():
                    await self._designate(action)
                case o.GroupReady():
                    await self._emit(group, action)
                case o.CancelRest():
                    pass

    async def _assess(self, group: o.GroupOutcomes, action: o.Assess) -> None:
        row = self._closed[action.execution_id]
        await asyncio.sleep(action.wait_s)
        async with self._slots:
            kill_point("between_harness_end_and_score")
            found, others = await self._ask(row)
        found["try"] = action.try_number
        actions = group.assessed(
            action.execution_id,
            valid=found["valid"],
            score=found["score"],
            reason=found["reason"],
            artifact_version=row["artifact_version"],
            now_s=time.time(),
        )
        # A late score, of surplus whose group was ready before it came, decides nothing and is kept as well.
        is_used = any(isinstance(a, o.Designate) and a.execution_id == action.execution_id and a.valid for a in actions)
        beside = others if is_used else [*others, found]
        if beside:
            self.store.append("assessments", [_not_designated(assessment) for assessment in beside])
        await self._perform(group, actions)

    async def _ask(self, row: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Ask the scorer once: what it says of the preserved work, and of intermediate states beside it.

        A scorer that fails, or says nothing of the preserved work, has not scored: that is a reason, not a crash.
        """
        answered, failure = await ask_scorer(self.scorer, row)
        reason = failure or "the scorer answered nothing for this execution"
        said = [a for a in answered if a["execution_id"] == row["execution_id"]]
        whole = next((a for a in said if a["artifact_version"] == row["artifact_version"] and not a["branch"]), None)
        others = [a for a in said if a is not whole]
        if whole is not None:
            return whole, others
        if others:
            reason = "the scorer assessed other states of this execution, not the preserved one"
        return make_assessment(row, valid=False, score=None, reason=reason, tries=1), others

    async def _designate(self, action: o.Designate) -> None:
        row = self._closed.get(action.execution_id)
        if row is None:
            return
        await self.control.assessed(action.execution_id, action.valid)
        if (action.execution_id, row["attempt"]) in self._earlier:
            return
        designated = make_assessment(
            row,
            valid=action.valid,
            score=action.reward,
            reason=action.reason,
            tries=action.try_number,
            designated=True,
        )
        self.store.append("assessments", [designated])

    async def _emit(self, group: o.GroupOutcomes, action: o.GroupReady) -> None:
        rows = []
        for execution_id, outcome in group.outcomes.items():
            closed = self._closed.get(execution_id)
            if closed is None:  # cancelled while it was still running: its record is closed when it comes
                continue
            rows.append(
                {
                    "execution_id": execution_id,
                    "group_id": group.group_id,
                    "query_id": closed["query_id"],
                    "attempt": closed["attempt"],
                    "dispatch_version": closed["dispatch_version"],
                    "outcome": outcome.outcome,
                    "reward": outcome.reward,
                }
            )
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        await self._ready.put(Batch.of(ScoredExecution, sorted(rows, key=lambda r: r["execution_id"])))
        await self.control.group_ready(
            {
                "group_id": group.group_id,
                "valid": action.num_valid,
                "unresolved": action.unresolved,
                "placeholders": action.placeholders,
                "cancelled": action.cancelled,
                "reward_sum": float(sum(rewards)),
            }
        )


async def ask_scorer(scorer: Scorer, row: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """What a scorer says of a closed execution, and how it failed if it did. A scorer that fails has not scored: it is no crash."""
    try:
        return (await scorer(Batch.of(ClosedExecution, [row]))).rows(), ""
    except Exception as error:
        return [], f"the scorer failed: {type(error).__name__}: {error}"


def make_assessment(
    row: Mapping[str, Any], *, valid: bool, score: float | None, reason: str, tries: int, designated: bool = False
) -> dict[str, Any]:
    """An assessment of a closed execution's preserved work."""
    return {
        "execution_id": row["execution_id"],
        "attempt": row["attempt"],
        "designated": designated,
        "valid": valid,
        "score": score,
        "reason": reason,
        "artifact_version": row["artifact_version"],
        "artifact_ref": row["workspace"],
        "branch": "",
        "try": tries,
        "created_at_s": time.time(),
    }


def _has_score(assessment: Mapping[str, Any]) -> bool:
    return bool(assessment["valid"]) and assessment["score"] is not None and math.isfinite(assessment["score"])


def _not_designated(assessment: Mapping[str, Any]) -> dict[str, Any]:
    is_valid = _has_score(assessment)
    return {**assessment, "designated": False, "valid": is_valid, "score": assessment["score"] if is_valid else None}
