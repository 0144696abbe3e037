"""The control room: owns the scheduler's state, and is the only place that does.

Others tell it what happened (admitted, launched, finished, group ready, micro-step done) and wait at its doors for what comes next
(groups to admit, executions to launch, groups to consume, micro-steps to train on, published versions). Each event goes to the pure
scheduler; the decisions that come back are performed in order: those for a waiting operator are put at its door, those for cells go
to the conductor. Executions' rows and all events are written from here, so the tables and the counters cannot disagree.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from gyre.ops.harness_proxy import FINISHED
from gyre.records import Store
from gyre.runtime.conductor import Conductor
from gyre.runtime.resume import ResumeState
from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.estimates import DurationEstimates
from gyre.scheduler.restore import RestoredState
from gyre.scheduler.scheduler import Scheduler

T = TypeVar("T")

EVENT_KINDS: dict[type[d.Decision], str] = {
    d.Dispatch: "dispatched",
    d.ToTraining: "to_training",
    d.ToRollout: "to_rollout",
    d.Join: "joined",
    d.RetainCore: "core_retained",
    d.CloseWindow: "window_closed",
}
"""Decisions that the events table keeps as they are taken; published and updated are written when they have come true."""


class Door(Generic[T]):
    """A queue at which one operator waits; closed for good when the run is over."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, item: T) -> None:
        """Lay an item at the door; at a closed one nobody is to start anything more."""
        if not self._is_closed:
            self._items.append(item)
            self._changed.set()

    def close(self) -> None:
        """Nothing more will come."""
        self._is_closed = True
        self._changed.set()

    async def get(self) -> T | None:
        """Wait for the next item; None when there will be none."""
        while not self._items:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()


class ControlRoom:
    """Implements the `Control` protocol in the process that has the scheduler."""

    def __init__(
        self,
        *,
        config: SchedulerConfig,
        store: Store,
        conductor: Conductor,
        resume: ResumeState | None,
        last_step: int | None = None,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.config = config
        self.store = store
        self.conductor = conductor
        self.executions: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self._durations = DurationEstimates()
        self._dispatches: Door[dict[str, Any]] = Door()
        self._launches: Door[dict[str, Any]] = Door()
        self._groups_to_consume: Door[dict[str, Any]] = Door()
        self._cancelled: Door[str] = Door()
        self._versions: Door[dict[str, Any]] = Door()
        self._ready: set[str] = set()
        self._is_over = False
        self._is_stopping = False
        self._resume = resume
        self._last_step = last_step

    # The run

    async def start(self) -> None:
        """Take the first decisions, of a new run or of a resumed one."""
        now_s = time.time()
        if self._resume is None:
            self._decide(self.scheduler.start(now_s=now_s))
            return
        await self.record_event("resumed", -1, {"version": self._resume.version})
        self.executions = {row["execution_id"]: dict(row) for row in self._resume.executions}
        for row in self.executions.values():
            self._learn_duration(row)
        for group in self._resume.outstanding:
            self._dispatches.put(
                {
                    "num_groups": 1,
                    "first_group_index": group.group_index,
                    "version": group.version,
                    "restored": True,
                }
            )
        self._versions.put({"version": self._resume.published_version, "time_s": now_s})
        self._decide(self.scheduler.restore(self._with_estimates(self._resume.scheduler_state()), now_s=now_s))

    def _with_estimates(self, state: RestoredState) -> RestoredState:
        """Expect of the outstanding groups what was learned before the interruption."""
        query_of = {row["group_id"]: row["query_id"] for row in self.executions.values()}
        groups = (replace(g, expected_s=self._durations.expect(query_of.get(g.group_id, ""))) for g in state.groups)
        return replace(state, groups=tuple(groups))

    async def run(self) -> None:
        """Perform decisions for cells until the run is over; raises what made the run fail."""
        await self.conductor.run(self)

    def is_last(self, version: int) -> bool:
        """Whether a run with an open horizon ends with the step that made this version; groups may be outstanding then."""
        return self._last_step is not None and version >= self._last_step

    def finish(self) -> None:
        """Close every door: the run is complete, or it is being stopped."""
        self._is_over = True
        for door in (self._dispatches, self._launches, self._groups_to_consume, self._cancelled, self._versions):
            door.close()
        self.conductor.stop()

    async def over(self) -> bool:
        """True when the run is complete or being stopped."""
        return self._is_over

    def status(self, num_seen: int = 0) -> dict[str, Any]:
        """What the terminal shows; of the committed steps of this process those after the first `num_seen`."""
        s = self.scheduler
        return {
            "dispatched": s.counters.dispatched,
            "launched": s.counters.launched,
            "finished": s.counters.finished,
            "waterlevel": s.waterlevel,
            "version": s.version,
            "published_version": s.published_version,
            "roles": [str(role) for role in s.roles],
            "ready_groups": s.num_ready,
            "steps": self.conductor.steps[num_seen:],
            "is_over": self._is_over,
            "is_complete": self._is_over and not self._is_stopping,
        }

    async def stop(self) -> None:
        """Stop before the run is complete; it can be resumed."""
        self._is_stopping = True
        self.finish()

    # Decisions

    def decide(self, decisions: tuple[d.Decision, ...]) -> None:
        """Perform what the scheduler decided."""
        self._decide(decisions)

    def _decide(self, decisions: tuple[d.Decision, ...]) -> None:
        for decision in decisions:
            self._note(decision)
            self._perform(decision)

    def _perform(self, decision: d.Decision) -> None:
        match decision:
            case d.Dispatch():
                self._dispatches.put(
                    {
                        "num_groups": decision.num_groups,
                        "first_group_index": decision.first_group_index,
                        "version": decision.version,
                        "restored": False,
                    }
                )
            case d.Launch():
                self._launches.put({"execution_id": decision.execution_id, "engine": decision.engine, "attempt": decision.attempt})
            case d.Consume():
                order = {"group_id": decision.group_id, "version": decision.version, "last": decision.last}
                self._groups_to_consume.put(order)
                self.conductor.consume(decision.version, decision.last, self.groups[decision.group_id])
            case d.Cancel():
                self._cancelled.put(decision.execution_id)
            case d.Finish():
                self.finish()
            case _:
                self.conductor.put(decision)

    def _note(self, decision: d.Decision) -> None:
        kind = EVENT_KINDS.get(type(decision))
        if kind is None:
            return
        detail = {name: getattr(decision, name) for name in decision.__dataclass_fields__ if name not in ("moves", "cell")}
        self._write_event(kind, getattr(decision, "cell", 0 if isinstance(decision, d.RetainCore) else -1), detail)
        for execution_id, engine in getattr(decision, "moves", ()):
            self._write_event("rerouted", getattr(decision, "cell", -1), {"execution_id": execution_id, "engine": engine})

    def _write_event(self, kind: str, cell: int, detail: Mapping[str, Any]) -> None:
        row = {"time_s": time.time(), "kind": kind, "cell": cell, "detail": json.dumps(dict(detail))}
        self.store.append("events", [row])

    # Doors of dispatch, elastic and the proxy

    async def next_dispatch(self) -> Mapping[str, Any] | None:
        """See `gyre.records.Control`."""
        return await self._dispatches.get()

    async def next_launch(self) -> Mapping[str, Any] | None:
        """See `gyre.records.Control`."""
        return await self._launches.get()

    async def next_cancelled(self) -> str | None:
        """See `gyre.records.Control`."""
        return await self._cancelled.get()

    async def next_version(self) -> Mapping[str, Any] | None:
        """See `gyre.records.Control`."""
        return await self._versions.get()

    async def next_group(self) -> Mapping[str, Any] | None:
        """See `gyre.records.Control`; asking is what tells the scheduler that the packing buffer is low."""
        if not self._is_over:
            self._decide(self.scheduler.want_group(now_s=time.time()))
        return await self._groups_to_consume.get()

    async def execution_state(self, execution_id: str) -> Mapping[str, Any] | None:
        """See `gyre.records.Control`."""
        return self.executions.get(execution_id)

    async def admitted(self, executions: pa.Table) -> None:
        """See `gyre.records.Control`."""
        rows = executions.to_pylist()
        fresh = [row for row in rows if row["execution_id"] not in self.executions]
        for row in fresh:
            self.executions[row["execution_id"]] = {
                "execution_id": row["execution_id"],
                "group_id": row["group_id"],
                "query_id": row["query_id"],
                "dispatch_version": row["dispatch_version"],
                "status": "queued",
                "dispatched_at_s": row["dispatched_at_s"],
                "launched_at_s": None,
                "finished_at_s": None,
                "attempts": 0,
                "group_index": row["group_index"],
                "workspace": "",
                "reason": "",
            }
        if fresh:
            self.store.append("executions", [self.executions[row["execution_id"]] for row in fresh])
        members: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            members.setdefault(row["group_id"], []).append(row)
        for group_id, listed in members.items():
            self.groups[group_id] = {"group_id": group_id, "v_d": listed[0]["dispatch_version"]}
            self._decide(
                self.scheduler.admitted(
                    group_id,
                    listed[0]["group_index"],
                    tuple(row["execution_id"] for row in listed),
                    listed[0]["dispatch_version"],
                    now_s=time.time(),
                    expected_s=self._durations.expect(listed[0]["query_id"]),
                )
            )

    async def launched(self, execution_id: str, workspace: str) -> None:
        """See `gyre.records.Control`."""
        row = self.executions[execution_id]
        row.update(status="running", launched_at_s=time.time(), attempts=row["attempts"] + 1, workspace=workspace)
        self.store.append("executions", [row])
        self._decide(self.scheduler.launched(execution_id, now_s=time.time()))

    async def finished(self, execution_id: str, status: str, reason: str) -> None:
        """See `gyre.records.Control`; only the first end of an execution counts."""
        row = self.executions[execution_id]
        if row["status"] in FINISHED:
            return
        row.update(status=status, finished_at_s=time.time(), reason=reason)
        self._learn_duration(row)
        self.store.append("executions", [row])
        self._decide(self.scheduler.finished(execution_id, status, now_s=time.time()))
        self._tell_ready(row["group_id"])

    def _learn_duration(self, row: Mapping[str, Any]) -> None:
        if row["status"] != "cancelled" and row["launched_at_s"] is not None and row["finished_at_s"] is not None:
            self._durations.add(row["query_id"], row["finished_at_s"] - row["launched_at_s"])

    async def assessed(self, execution_id: str, valid: bool) -> None:
        """See `gyre.records.Control`."""
        self._decide(self.scheduler.assessed(execution_id, valid=valid, now_s=time.time()))

    async def group_ready(self, group: Mapping[str, Any]) -> None:
        """See `gyre.records.Control`."""
        self.groups[group["group_id"]].update(group)
        self._ready.add(group["group_id"])
        self._tell_ready(group["group_id"])

    def _tell_ready(self, group_id: str) -> None:
        """A group with enough valid outcomes is ready once its surplus, cancelled, has ended too."""
        group = self.scheduler.ledger.groups.get(group_id)
        if group_id in self._ready and (group is None or group.num_open == 0):
            self._ready.discard(group_id)
            self._decide(self.scheduler.group_ready(group_id, now_s=time.time()))

    async def tick(self) -> None:
        """See `gyre.records.Control`."""
        if not self._is_over:
            self._decide(self.scheduler.tick(now_s=time.time()))

    async def record_event(self, kind: str, cell: int, detail: Mapping[str, Any]) -> None:
        """See `gyre.records.Control`."""
        self._write_event(kind, cell, detail)

    # Doors of train_cell and the cells

    async def enqueue(self, microsteps: pa.Table) -> None:
        """See `gyre.records.Control`."""
        await self.conductor.enqueue(microsteps)

    async def close_stream(self, step_version: int) -> None:
        """See `gyre.records.Control`."""
        self.conductor.close_stream(step_version)

    async def claim(self, cell: int, version: int) -> Mapping[str, Any] | None:
        """Wait for a micro-step to train on; None when the step has no more for this cell."""
        return await self.conductor.claim(cell, version)

    async def microstep_done(self, cell: int, item_id: str, result: Mapping[str, Any]) -> None:
        """Take the result of a claimed micro-step."""
        self.conductor.microstep_done(cell, item_id, result)

    def published(self, version: int) -> None:
        """Tell the feedback edge of a version that every engine has confirmed."""
        self._versions.put({"version": version, "time_s": time.time()})
