"""Rollout in virtual time: launches, deadlines, moves between engines, outcomes, ready groups.

Performs the scheduler's decisions about executions and tells it what follows. An execution ends by itself, at the harness deadline, by
cancellation or by a crash; its outcome follows after the evaluation, or at the end of the overall budget. A group is ready with the
last outcome of its executions, or at N valid ones once the harnesses of its surplus have ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine
from gyre.scheduler.scheduler import Scheduler
from gyre.sim.clock import VirtualClock
from gyre.sim.engines import EngineModel, Running
from gyre.sim.faults import FaultDraws, Faults
from gyre.sim.journal import Journal
from gyre.sim.workload import GroupDraw, Workload

Tell = Callable[..., None]
"""Tells the scheduler an event and performs what it decides: `tell(scheduler.finished, 'g0-0', 'completed')`."""


@dataclass(slots=True)
class _OpenGroup:
    draw: GroupDraw
    num_open: int
    """Executions without an outcome."""
    num_running: int
    """Executions whose harness has not ended."""
    num_valid: int = 0
    """Valid outcomes so far."""
    longest_s: float = 0.0
    is_ready: bool = False


class RolloutModel:
    """Everything that happens to executions."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        workload: Workload,
        scheduler: Scheduler,
        clock: VirtualClock,
        journal: Journal,
        faults: FaultDraws,
        tell: Tell,
    ) -> None:
        self.engines: dict[str, EngineModel] = {}
        """By name."""
        self._config = config
        self._workload = workload
        self._settings = workload.settings
        self._scheduler = scheduler
        self._clock = clock
        self._journal = journal
        self._faults = faults
        self._tell = tell
        self._groups: dict[str, _OpenGroup] = {}
        self._running: dict[str, Running] = {}
        self._evaluators_free_s: list[float] = []
        """Heap of the times at which the evaluators that ever worked are free again."""
        # Without faults and contention no execution is ever slower than in a full engine.
        self._may_be_late = self._settings.contention > 0 or faults.faults != Faults()
        self._changed: dict[EngineModel, None] = {}
        """Engines whose next end has to be found again."""
        capacities = {cell_engine(i): c for i, c in enumerate(config.cells)}
        capacities |= {standalone_engine(i): c for i, c in enumerate(config.standalone)}
        for name, capacity in capacities.items():
            self.engines[name] = EngineModel(name, capacity=capacity, load_share=self._settings.load_share)

    # ---- decisions -------------------------------------------------------------------------------------------------------------

    def dispatch(self, decision: d.Dispatch) -> None:
        """Admit the groups, one event each."""
        for index in range(decision.first_group_index, decision.first_group_index + decision.num_groups):
            self._clock.after(0.0, self._admit, (index, decision.version))

    def launch(self, decision: d.Launch) -> None:
        """Start the harness of an execution."""
        execution_id, now_s = decision.execution_id, self._clock.now_s
        group_id, _, number = execution_id.rpartition("-")
        draw = self._groups[group_id].draw
        running = Running(
            execution_id=execution_id,
            group_id=group_id,
            launched_s=now_s,
            left_s=draw.lengths_s[int(number)] + self._settings.launch_s,
            is_unresolved=draw.is_unresolved[int(number)],
        )
        self._running[execution_id] = running
        self._scheduler.launched(execution_id, now_s=now_s)
        self._put(running, decision.engine)
        if self._settings.deadline_s is not None and (self._may_be_late or running.left_s > self._settings.deadline_s):
            self._clock.after(self._settings.deadline_s, self._reach_deadline, running)
        if self._faults.happens(self._faults.faults.harness_share):
            self._clock.after(running.left_s * self._faults.part(), self._crash, running)

    def move(self, moves: Iterable[d.Move]) -> None:
        """Serve executions by other engines from now on."""
        for execution_id, engine in moves:
            running = self._running.get(execution_id)
            if running is not None:
                self._take(running)
                self._put(running, engine)

    def cancel(self, decision: d.Cancel) -> None:
        """End an execution whose group has enough valid outcomes."""
        self._clock.after(0.0, self._cancel, decision.execution_id)

    def lose_engine(self, name: str) -> None:
        """Nobody is served by an engine that is gone; its executions keep their harness and wait."""
        for running in self._running.values():
            if running.engine is not None and running.engine.name == name:
                self._take(running)

    # ---- what happens ----------------------------------------------------------------------------------------------------------

    def _admit(self, admission: tuple[int, int]) -> None:
        index, version = admission
        draw = self._workload.draw(index)
        group_id = f"g{index:06d}"
        ids = tuple(f"{group_id}-{number:02d}" for number in range(len(draw.lengths_s)))
        self._groups[group_id] = _OpenGroup(draw, len(ids), len(ids))
        self._tell(self._scheduler.admitted, group_id, index, ids, version, expected_s=draw.expected_s)

    def _reach_deadline(self, running: Running) -> None:
        self._finish(running, "timeout")

    def _crash(self, running: Running) -> None:
        self._finish(running, "failed")

    def _cancel(self, execution_id: str) -> None:
        running, known = self._running.get(execution_id), self._scheduler.ledger.executions.get(execution_id)
        if running is not None:
            self._finish(running, "cancelled")
        elif known is not None and known.status == "queued":  # else it has ended, and its group may be consumed
            group_id = execution_id.rpartition("-")[0]
            self._groups[group_id].num_running -= 1
            self._tell(self._scheduler.finished, execution_id, "cancelled")
            self._count_outcome(group_id, is_valid=False)

    def _look_for_end(self, appointment: tuple[EngineModel, int]) -> None:
        engine, number = appointment
        if number == engine.stale_before:
            self._changed[engine] = None
            self._finish(engine.pop_done(now_s=self._clock.now_s), "completed")

    def _finish(self, running: Running, status: str) -> None:
        if running.is_closed:
            return
        running.is_closed = True
        now_s = self._clock.now_s
        self._take(running)
        del self._running[running.execution_id]
        duration_s = now_s - running.launched_s
        self._journal.slot_s += duration_s
        self._journal.ends[status] += 1
        self._await_outcome(running, status, duration_s)
        self._groups[running.group_id].num_running -= 1
        self._tell(self._scheduler.finished, running.execution_id, status)
        self._tell_ready(running.group_id)

    def _await_outcome(self, running: Running, status: str, duration_s: float) -> None:
        s = self._settings
        delay_s = 0.0
        if running.is_unresolved and status != "cancelled":
            budget_s = s.budget_s if s.budget_s is not None else s.deadline_s
            delay_s = max(0.0, (budget_s or 0.0) - duration_s)
            self._journal.ends["unresolved"] += 1
            duration_s += delay_s
        if status != "cancelled":
            self._journal.durations_s.append(duration_s)
            group = self._groups[running.group_id]
            group.longest_s = max(group.longest_s, duration_s)
        if status == "cancelled":
            self._clock.after(0.0, self._get_outcome, (running, status))
        else:
            self._evaluate(running, status, not_before_s=delay_s)

    def _evaluate(self, running: Running, status: str, *, not_before_s: float) -> None:
        """Score an execution when an evaluator is free; one that stays unresolved has its outcome at the end of its budget."""
        evaluation_s = self._settings.evaluation_s
        if self._faults.happens(self._faults.faults.evaluator_share):
            evaluation_s *= 2
        slots = self._settings.evaluation_slots
        if slots is None:
            self._clock.after(max(evaluation_s, not_before_s), self._get_outcome, (running, status))
            return
        now_s = self._clock.now_s
        free_s = max(now_s, heapq.heappop(self._evaluators_free_s)) if len(self._evaluators_free_s) >= slots else now_s
        heapq.heappush(self._evaluators_free_s, free_s + evaluation_s)
        self._clock.at(max(free_s + evaluation_s, now_s + not_before_s), self._get_outcome, (running, status))

    def _get_outcome(self, closed: tuple[Running, str]) -> None:
        running, status = closed
        if self._config.oversample and status != "cancelled":
            self._tell(self._scheduler.assessed, running.execution_id, valid=not running.is_unresolved)
        self._count_outcome(running.group_id, is_valid=status != "cancelled" and not running.is_unresolved)

    def _count_outcome(self, group_id: str, *, is_valid: bool) -> None:
        group = self._groups.get(group_id)
        if group is not None:  # else a step has taken it: its N valid outcomes were enough
            group.num_open -= 1
            group.num_valid += is_valid
            self._tell_ready(group_id)

    def _tell_ready(self, group_id: str) -> None:
        group = self._groups[group_id]
        has_enough = group.num_valid >= self._config.group_size and group.num_running == 0
        if group.is_ready or (group.num_open and not has_enough):
            return
        group.is_ready = True
        self._journal.group_maxima_s.append(group.longest_s)
        if not self._config.train:
            self._journal.length_s += group.draw.work_s
        self._tell(self._scheduler.group_ready, group_id)

    # ---- engines ---------------------------------------------------------------------------------------------------------------

    def take_draw(self, group_id: str) -> GroupDraw:
        """The draw of a group that a step consumes; the group is forgotten."""
        return self._groups.pop(group_id).draw

    def _put(self, running: Running, name: str) -> None:
        engine = self.engines[name]
        engine.add(running, now_s=self._clock.now_s)
        self._changed[engine] = None

    def _take(self, running: Running) -> None:
        if running.engine is not None:
            self._changed[running.engine] = None
            running.engine.remove(running, now_s=self._clock.now_s)

    def share(self, slowdowns: dict[str, float]) -> None:
        """Let engines run slower or faster by what they share with others."""
        for name, slowdown in slowdowns.items():
            engine = self.engines[name]
            if engine.slowdown != slowdown:
                engine.set_slowdown(slowdown, now_s=self._clock.now_s)
                self._changed[engine] = None

    def appoint(self) -> None:
        """After an event: find the next end of every engine whose load or speed has changed."""
        for engine in self._changed:
            engine.stale_before += 1
            end_s = engine.next_end_s(now_s=self._clock.now_s)
            if end_s is not None:
                self._clock.at(end_s, self._look_for_end, (engine, engine.stale_before))
        self._changed.clear()

    def close(self) -> None:
        """The simulation ends: what still runs has held its place until now."""
        self._journal.slot_s += sum(self._clock.now_s - running.launched_s for running in self._running.values())

    def describe_waiting(self) -> str:
        """Who holds a place and who waits for one, for an error."""
        parked = [running.execution_id for running in self._running.values() if running.engine is None]
        loads = ", ".join(f"{name} serves {engine.num_running}" for name, engine in self.engines.items())
        return f"{len(self._running)} executions run ({loads}), {len(parked)} of them wait for a place"
