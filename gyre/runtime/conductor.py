"""Performs the decisions that concern cells, in order: roles, joins, steps, publications (paper sections 4.2 to 4.4).

Feeds on decisions from the control room, answers with the events that the scheduler waits for. One decision is performed at a time;
training itself runs beside, as cells claim micro-steps from the pure `ClaimQueue` that lives here. A failure of a cell or of a
transfer ends the run before anything is committed: the version is raised by the checkpoint and by nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from gyre.errors import RunError, TransferError
from gyre.killpoints import kill_point
from gyre.records import Store
from gyre.scheduler import decisions as d
from gyre.scheduler.claims import ClaimQueue
from gyre.scheduler.config import cell_engine
from gyre.scheduler.waterlevel import CORE

PUBLISH_TRIES = 3
"""Tries at bringing a version to one engine before the run stops, resumable."""
PUBLISH_BACKOFF_S = 0.5
"""Wait before the second try; doubled each time."""


class CellHandle(Protocol):
    """What the conductor asks of a cell; in a run, Ray calls (see `gyre.runtime.cells.Cell` for what each does)."""

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the cell and wait for its answer."""
        ...


class Room(Protocol):
    """What the conductor asks of the control room."""

    scheduler: Any

    def decide(self, decisions: tuple[d.Decision, ...]) -> None:
        """Perform what the scheduler decided."""
        ...

    def published(self, version: int) -> None:
        """Tell of a confirmed version."""
        ...

    def is_last(self, version: int) -> bool:
        """Whether the run ends with this version, though its horizon is open."""
        ...

    def finish(self) -> None:
        """End the run."""
        ...

    async def record_event(self, kind: str, cell: int, detail: Mapping[str, Any]) -> None:
        """Write an event."""
        ...


@dataclass(kw_only=True, slots=True)
class Step:
    """A training batch in progress."""

    version: int
    """The version it makes."""
    started_s: float
    """When it began."""
    claims: ClaimQueue
    """Its micro-steps."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Payload of each micro-step, by its id."""
    groups: list[Mapping[str, Any]] = field(default_factory=list)
    """Groups consumed so far, with their outcome counts."""
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Results of finished gradient micro-steps, by id and hence once each."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a claim may succeed that did not before."""
    descriptor: Mapping[str, Any] | None = None
    """Where the core's snapshot is."""
    is_exhausted: bool = False
    """Whether the scheduler was told that no claim is left."""
    is_drained: bool = False
    """Whether the scheduler was told that all micro-steps are finished."""
    training: dict[int, asyncio.Task[int]] = field(default_factory=dict)
    """Running claim loops, by cell."""
    claimed_s: dict[str, float] = field(default_factory=dict)
    """When each claimed micro-step was claimed."""
    busy_s: float = 0.0
    """Time of all cells together from claims to results; what a simulation is fitted to."""

    @property
    def num_executions(self) -> int:
        """|E|: valid executions of the batch."""
        return sum(group["valid"] for group in self.groups)


class Conductor:
    """Tells cells what to do."""

    def __init__(
        self,
        *,
        cells: Sequence[CellHandle],
        engines: Mapping[str, CellHandle],
        reroute: Callable[[Mapping[str, str]], Awaitable[None]],
        put_object: Callable[[Any], Any],
        store: Store,
        clip_bounds: tuple[float, float],
        keep_checkpoints: int | None,
        max_unclaimed: int = 8,
    ) -> None:
        """Take handles.

        Args:
            cells: cells in their order.
            engines: every rollout engine by name, those of cells included.
            reroute: rewrites the proxy's routes.
            put_object: puts a micro-step where cells can fetch it.
            store: the run's tables.
            clip_bounds: bounds of the execution clip, for executions that span rows.
            keep_checkpoints: newest checkpoints that are kept, beside the published version's; None keeps all.
            max_unclaimed: micro-steps that may wait unclaimed before the packing operator is held back.
        """
        self._cells = cells
        self._engines = engines
        self._reroute = reroute
        self._put_object = put_object
        self._store = store
        self._clip_bounds = clip_bounds
        self._keep = keep_checkpoints
        self._max_unclaimed = max_unclaimed
        self._jobs: asyncio.Queue[d.Decision | None] = asyncio.Queue()
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._step: Step | None = None
        self._room: Any = None
        self.steps: list[dict[str, Any]] = []
        """Committed steps of this process, as their table rows."""

    # Decisions

    def put(self, decision: d.Decision) -> None:
        """Queue a decision about cells. A step exists from the moment it is decided, so that groups can be counted into it."""
        if isinstance(decision, d.BeginStep):
            low, high = self._clip_bounds
            claims = ClaimQueue(clip_low=low, clip_high=high)
            claims.open(decision.version)
            self._step = Step(version=decision.version, started_s=time.time(), claims=claims)
        self._jobs.put_nowait(decision)

    def stop(self) -> None:
        """Perform what is queued, then end; nobody waits any longer for micro-steps, or for room for them."""
        self._is_stopped = True
        self._jobs.put_nowait(None)
        if self._step is not None:
            self._step.changed.set()

    async def run(self, room: Room) -> None:
        """Perform decisions until told to stop; raises what went wrong with a cell."""
        self._room = room
        while (decision := await self._jobs.get()) is not None:
            await self._perform(decision)
        if self._step is not None:
            for task in self._step.training.values():
                task.cancel()
        if self._failure is not None:
            raise self._failure

    async def _perform(self, decision: d.Decision) -> None:
        match decision:
            case d.ToTraining():
                await self._to_training(decision)
            case d.BeginStep():
                await self._begin_step(decision)
            case d.Join():
                self._start_training(decision.cell, joins=True)
            case d.CloseWindow():
                pass
            case d.Reduce():
                await self._reduce(decision)
            case d.Broadcast():
                await self._broadcast(decision)
            case d.ToRollout():
                await self._to_rollout(decision.cell)
            case d.Publish():
                await self._publish(decision.version)
            case d.Reroute():
                await self._reroute(dict(decision.moves))
            case d.RetainCore():
                pass
            case d.Fail():
                raise RunError(decision.reason)
            case _:
                raise AssertionError(f"nobody performs {decision}")

    def _tell(self, event: Callable[..., tuple[d.Decision, ...]], *args: Any) -> None:
        self._room.decide(event(*args, now_s=time.time()))

    async def _to_training(self, decision: d.ToTraining) -> None:
        cell = self._cells[decision.cell]
        await cell.call("close_gate")
        await self._reroute(dict(decision.moves))
        await cell.call("to_training")
        self._tell(self._room.scheduler.switched_to_training, decision.cell)

    async def _to_rollout(self, cell: int) -> None:
        """Bring a cell back; within a publication its engine gets the new weights with all others, else the published ones now."""
        scheduler = self._room.scheduler
        await self._cells[cell].call("to_rollout")
        if scheduler.phase == "publishing":
            return
        if scheduler.version == scheduler.published_version:
            descriptor = await self._cells[CORE].call("expose", scheduler.version)
            await self._load_published(cell_engine(cell), descriptor)
        else:
            await self._cells[cell].call("load_checkpoint", scheduler.published_version)
        self._tell(scheduler.switched_to_rollout, cell)

    # A step

    async def _begin_step(self, decision: d.BeginStep) -> None:
        step = self._current(decision.version)
        step.descriptor = await self._cells[CORE].call("expose", decision.version - 1)
        for cell in decision.cells:
            self._start_training(cell, joins=False)

    def _start_training(self, cell: int, *, joins: bool) -> None:
        step = self._step
        assert step is not None, "a cell trains in a step"
        call = self._cells[cell].call("train", step.version, step.descriptor if joins else None)
        task = asyncio.ensure_future(call)
        task.add_done_callback(self._training_ended)
        step.training[cell] = task

    def _training_ended(self, task: asyncio.Task[int]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        self._failure = task.exception()
        self.stop()

    def consume(self, version: int, last: bool, group: Mapping[str, Any]) -> None:
        """Count a group into the running step."""
        self._current(version).groups.append(group)

    async def enqueue(self, microsteps: pa.Table) -> None:
        """Put micro-steps into the running step's queue; waits while more than enough are unclaimed."""
        step = self._step
        assert step is not None, "micro-steps come while a step runs"
        while step.claims.num_unclaimed >= self._max_unclaimed and not self._is_stopped:
            step.changed.clear()
            await step.changed.wait()
        for i in range(microsteps.num_rows):
            row = microsteps.slice(i, 1)
            item_id = row.column("microstep_id")[0].as_py()
            segments = row.column("segments")[0].as_py()
            step.rows[item_id] = await asyncio.to_thread(self._put_object, row.combine_chunks())
            spanning = {s["execution_id"]: s["advantage"] for s in segments if not s["whole"]}
            kind = row.column("kind")[0].as_py()
            step.claims.enqueue(item_id, kind=kind, cost=len(row.column("input_ids")[0]), spanning=spanning)
        step.changed.set()

    def close_stream(self, version: int) -> None:
        """All micro-steps of the step's groups are in the queue."""
        step = self._current(version)
        step.claims.close()
        step.changed.set()
        self._look_for_end(step)

    async def claim(self, cell: int, version: int) -> Mapping[str, Any] | None:
        """Wait for a micro-step; None when this step has no more for anybody, or the run is being stopped."""
        step = self._current(version)
        while (item := None if self._is_stopped else step.claims.claim(cell)) is None:
            if self._is_stopped or step.claims.is_exhausted:
                return None
            step.changed.clear()
            await step.changed.wait()
        step.changed.set()
        step.claimed_s[item.item_id] = time.time()
        kill_point("after_claim")
        self._look_for_end(step)
        return {**item._asdict(), "row": [step.rows[item.item_id]]}

    def microstep_done(self, cell: int, item_id: str, result: Mapping[str, Any]) -> None:
        """Take a result, once per micro-step."""
        step = self._step
        assert step is not None, "results come while a step runs"
        if "ratios" in result:
            for execution_id, (sum_log_r, count) in result["ratios"].items():
                step.claims.report_ratio(execution_id, row_id=item_id, sum_log_r=sum_log_r, count=count)
        if step.claims.finish(cell, item_id):
            step.busy_s += time.time() - step.claimed_s[item_id]
            if "ratios" not in result:
                step.results[item_id] = result
        step.changed.set()
        self._look_for_end(step)

    def _look_for_end(self, step: Step) -> None:
        if step.claims.is_exhausted and not step.is_exhausted:
            step.is_exhausted = True
            self._tell(self._room.scheduler.stream_exhausted)
        if step.claims.is_drained and not step.is_drained:
            step.is_drained = True
            self._tell(self._room.scheduler.drained)

    def _current(self, version: int) -> Step:
        assert self._step is not None and self._step.version == version, f"step {version} is not running"
        return self._step

    # The end of a step

    async def _reduce(self, decision: d.Reduce) -> None:
        step, drained_s = self._current(decision.version), time.time()
        await asyncio.gather(*(step.training[cell] for cell in decision.cells))
        await asyncio.gather(*(self._cells[cell].call("reduce", len(decision.cells)) for cell in decision.cells))
        kill_point("after_reduction")
        grad_norm = await self._cells[CORE].call("update", step.num_executions, len(step.results))
        kill_point("between_update_and_checkpoint")
        row, consumption = self._rows_of(step, decision, grad_norm)
        state = {"step": row, "consumption": consumption}
        published = self._room.scheduler.published_version
        await self._cells[CORE].call("save_checkpoint", step.version, state, self._keep, published)
        kill_point("between_checkpoint_and_steps_row")
        self._store.append("consumption", consumption)
        self._store.append("steps", [row])
        self.steps.append(row)
        cost = {"busy_s": step.busy_s, "microsteps": len(step.claimed_s), "commit_s": time.time() - drained_s}
        await self._room.record_event("updated", 0, {"version": step.version, "cells": list(decision.cells), **cost})
        self._step = None
        if self._room.is_last(step.version):
            self._room.finish()
            return
        self._tell(self._room.scheduler.updated, step.version)

    def _rows_of(self, step: Step, decision: d.Reduce, grad_norm: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        now_s = time.time()
        v_t = step.version - 1
        valid = sum(group["valid"] for group in step.groups)
        clipped = {name for result in step.results.values() for name in result["clipped"]}
        clipped |= {name for name, fixed in step.claims.ratios.fixed.items() if not fixed.mask}
        row = {
            "version": step.version,
            "group_ids": [group["group_id"] for group in step.groups],
            "executions": step.num_executions,
            "target_tokens": sum(result["target_tokens"] for result in step.results.values()),
            "loss": sum(result["loss_sum"] for result in step.results.values()) / max(step.num_executions, 1),
            "grad_norm": grad_norm,
            "reward_mean": sum(group["reward_sum"] for group in step.groups) / valid if valid else None,
            "staleness_mean": sum(v_t - group["v_d"] for group in step.groups) / len(step.groups),
            "duration_s": now_s - step.started_s,
            "cells": list(decision.cells),
            "clipped": len(clipped),
            "time_s": now_s,
        }
        consumption = [
            {
                "group_id": group["group_id"],
                "step_version": step.version,
                "v_d": group["v_d"],
                "v_t": v_t,
                **{name: group[name] for name in ("valid", "unresolved", "placeholders", "cancelled")},
            }
            for group in step.groups
        ]
        return row, consumption

    async def _broadcast(self, decision: d.Broadcast) -> None:
        descriptor = await self._cells[CORE].call("expose", decision.version)
        await asyncio.gather(*(self._cells[cell].call("pull", descriptor) for cell in decision.cells if cell != CORE))
        self._tell(self._room.scheduler.broadcast_done, decision.version)

    # Publication

    async def _publish(self, version: int) -> None:
        kill_point("between_steps_row_and_publication")
        descriptor = await self._cells[CORE].call("expose", version)
        roles = dict(enumerate(self._room.scheduler.roles))
        away = {cell_engine(cell) for cell, role in roles.items() if role not in ("rollout", "returning")}
        # With every engine in training there is still one that must confirm before groups are admitted under this version.
        serving = [name for name in self._engines if name not in away] or [cell_engine(CORE)]
        await asyncio.gather(*(self._load_published(name, descriptor) for name in serving))
        for cell in [cell for cell, role in roles.items() if role == "returning"]:
            self._tell(self._room.scheduler.switched_to_rollout, cell)
        await self._room.record_event("published", -1, {"version": version})
        kill_point("between_publication_and_dispatch")
        self._room.published(version)
        self._tell(self._room.scheduler.published, version)

    async def _load_published(self, name: str, descriptor: Mapping[str, Any]) -> None:
        """Bring a version to one engine; until the engine confirms it, it is not published there."""
        version = descriptor["version"]
        for number in range(1, PUBLISH_TRIES + 1):
            try:
                confirmed = await self._engines[name].call("load_published", descriptor)
                if confirmed != version:
                    raise TransferError(f"engine {name} confirms version {confirmed} instead of {version}")
                break
            except TransferError as error:
                row = {"version": version, "time_s": time.time(), "engine": name, "confirmed": False}
                self._store.append("publications", [row])
                if number == PUBLISH_TRIES:
                    raise TransferError(f"version {version} could not be published to {name}: {error}") from error
                await asyncio.sleep(PUBLISH_BACKOFF_S * 2 ** (number - 1))
        self._store.append("publications", [{"version": version, "time_s": time.time(), "engine": name, "confirmed": True}])


def ray_cell(handle: Any) -> CellHandle:
    """Speak to a cell that is a Ray actor."""
    return _RayCell(handle)


class _RayCell:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def call(self, method: str, *args: Any) -> Any:
        return await partial(getattr(self._handle, method).remote, *args)()
