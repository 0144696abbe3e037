"""The scheduler: events in, decisions out (paper section 4). The live runtime and the simulator drive this same class.

Every event takes the clock as `now_s`, changes the facts, and then `_settle` applies the rules in a fixed order: places for executions
whose engine is gone, departures of cells, steps, launches, rescue, end. Decisions are returned in the order to perform; an executor
may perform them concurrently where they concern different cells.

| decision | events that must follow, any time later |
|---|---|
| Dispatch | `admitted` for each of its groups, in order of index |
| Launch | `launched`, then `finished`; or `finished` alone where the harness could not be started |
| Cancel | `finished(status='cancelled')`, unless it had finished before |
| ToTraining | `switched_to_training(cell)` |
| ToRollout | `switched_to_rollout(cell)` once its engine has confirmed the newest published version |
| BeginStep | `want_group()` whenever the packing buffer is low; `stream_exhausted()`; `drained()` |
| Discard | `drained()` again |
| Reduce | `updated(version)` when the step is committed |
| Broadcast | `broadcast_done(version)` |
| Publish | `published(version)` once every serving engine has confirmed |

A wish for a group stays until it is met. When all executions of a group have an outcome, `group_ready` comes from the evaluation. The
events `assessed`, `cell_lost`, `cell_recovered`, `engine_down`, `engine_up` and `tick` may come at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.scheduler.burst import Burst, Phase
from gyre.scheduler.config import SchedulerConfig, cell_engine
from gyre.scheduler.counters import Counters, Group, Ledger
from gyre.scheduler.decisions import (
    Cancel,
    Decision,
    Dispatch,
    Fail,
    Finish,
    Launch,
    Reroute,
    RetainCore,
    ToRollout,
    ToTraining,
)
from gyre.scheduler.launching import LaunchQueue
from gyre.scheduler.placement import make_placement
from gyre.scheduler.restore import RestoredGroup, RestoredState
from gyre.scheduler.routing import RouteTable
from gyre.scheduler.staleness import StalenessAccount
from gyre.scheduler.supply import ReadyGroups, SupplyCheck
from gyre.scheduler.waterlevel import CORE, CellOrder, Role

Decisions = tuple[Decision, ...]


class Scheduler:
    """All scheduling state of a run.

    >>> scheduler = Scheduler(SchedulerConfig(groups_per_step=1, group_size=2, steps=1, cells=(1, 2)))
    >>> scheduler.start(now_s=0.0)
    (Dispatch(reason='1 of 1 groups are due under version 0', num_groups=1, first_group_index=0, version=0),)
    >>> [d.engine for d in scheduler.admitted("g0", 0, ["g0-0", "g0-1"], version=0, now_s=0.0)]
    ['cell1', 'cell0']
    >>> scheduler.counters, scheduler.waterlevel
    (Counters(dispatched=2, launched=0, finished=0), 2)
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.cells = CellOrder(config)
        self.ledger = Ledger()
        self.routes = RouteTable(config)
        self.ready = ReadyGroups()
        self.staleness = StalenessAccount()
        self.burst = Burst(config, cells=self.cells, ready=self.ready, ledger=self.ledger, account=self.staleness)
        self._queue = LaunchQueue(config.launch_order)
        self._supply = SupplyCheck(config.min_ready_groups, config.hold_s)
        self._placement = make_placement(config)
        self._num_ordered = 0
        """Groups whose admission has been ordered, in the whole run."""
        self._num_admitted = 0
        self._unpublished: set[str] = set()
        """Engines that will accept once the running publication is confirmed."""
        self._now_s = 0.0

    # ---- queries ---------------------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """d, p, f."""
        return self.ledger.counters

    @property
    def waterlevel(self) -> int:
        """Queued and running executions."""
        return self.ledger.waterlevel

    @property
    def demand(self) -> int:
        """The waterlevel, and executions of groups whose admission has been ordered."""
        return self.waterlevel + (self._num_ordered - self._num_admitted) * self.config.executions_per_group

    @property
    def queue_length(self) -> int:
        """Executions that wait for a place."""
        return len(self._queue)

    @property
    def num_ready(self) -> int:
        """Ready groups that no step has taken."""
        return len(self.ready)

    @property
    def num_dispatched_groups(self) -> int:
        """Groups whose admission has been ordered, in the whole run."""
        return self._num_ordered

    @property
    def phase(self) -> Phase:
        """State of the burst."""
        return self.burst.phase

    @property
    def version(self) -> int:
        """Steps committed."""
        return self.burst.version

    @property
    def published_version(self) -> int:
        """Version that the engines serve."""
        return self.burst.published_version

    @property
    def members(self) -> tuple[int, ...]:
        """Cells that may claim micro-steps of the running step."""
        return tuple(self.burst.members)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Role of each cell."""
        return tuple(self.cells.roles)

    @property
    def is_over(self) -> bool:
        """True after Finish or Fail."""
        return self.phase in ("finished", "failed")

    @property
    def is_supplied(self) -> bool:
        """True while the supply check holds."""
        return self._supply.holds(now_s=self._now_s)

    @property
    def is_between_bursts(self) -> bool:
        """True while the core is in rollout, or was asked back to it."""
        return self.phase == "rollout"

    @property
    def can_use_satellites(self) -> bool:
        """True while a satellite that leaves now finds groups of this burst to train on."""
        return self.burst.can_use_satellites

    @property
    def num_burst_groups_left(self) -> int:
        """Groups that the burst, running or next, has still to consume."""
        return self.burst.num_groups_left

    def capacity(self, num_training: int) -> int:
        """C(m): executions that can be served with the first m living cells in training."""
        return self.cells.capacity(num_training)

    def find_route(self, execution_id: str) -> str | None:
        """Engine that serves an execution; None while it has no place."""
        return self.routes.find_route(execution_id)

    def find_wake_s(self) -> float | None:
        """When `tick` should come if nothing else does; None: no rule waits for the clock."""
        return self._supply.find_wake_s(now_s=self._now_s)

    # ---- start -----------------------------------------------------------------------------------------------------------------

    def start(self, *, now_s: float) -> Decisions:
        """Begin a new run: every engine serves version 0."""
        self._open_engines()
        return (*self._dispatch(), *self._settle(now_s))

    def restore(self, state: RestoredState, *, now_s: float) -> Decisions:
        """Begin where an interrupted run was: every cell is in rollout, every engine serves the published version.

        A burst that was under way goes on at once: its capacity rule held when it began, and the waterlevel has not risen since.
        """
        self.burst.version, self.burst.published_version = state.version, state.published_version
        self.burst.num_consumed = state.num_consumed_groups
        self._num_ordered = self._num_admitted = state.num_consumed_groups + len(state.groups)
        consumed = state.num_consumed_groups * self.config.executions_per_group
        self.ledger.dispatched = self.ledger.launched = self.ledger.finished = consumed
        for group in state.groups:
            self._restore_group(group)
        self.staleness.restart(version=state.version)
        self._open_engines()
        if self.config.train and state.published_version == self.config.steps:
            self.burst.phase = "ending"
        return (*self._dispatch(), *self._resume_burst(), *self._settle(now_s))

    def _restore_group(self, restored: RestoredGroup) -> None:
        ids = [execution.execution_id for execution in restored.executions]
        group = self.ledger.admit(group_id=restored.group_id, index=restored.group_index, version=restored.version, execution_ids=ids)
        group.num_valid = restored.num_valid
        self.staleness.admit(version=group.version, num_groups=1)
        for execution in restored.executions:
            self.ledger.executions[execution.execution_id].attempts = execution.attempts
            if execution.status != "queued":
                self.ledger.launch(execution.execution_id)
            if execution.status == "closed":
                self.ledger.close(execution.execution_id)
            else:
                is_relaunch = execution.status == "running"
                self._queue.add(execution.execution_id, version=group.version, expected_s=restored.expected_s, is_relaunch=is_relaunch)
        if restored.is_ready:
            self._add_ready(group)

    def _resume_burst(self) -> Iterator[Decision]:
        if self.version > self.published_version:
            cells = self.cells.order if self.config.policy == "colocate" else [CORE]
            yield from self._send_to_training(cells, "the interrupted burst goes on")

    def _open_engines(self) -> None:
        for name in self.routes.engines:
            self.routes.open(name)

    # ---- events of rollout -----------------------------------------------------------------------------------------------------

    def admitted(
        self,
        group_id: str,
        group_index: int,
        execution_ids: Sequence[str],
        version: int,
        *,
        now_s: float,
        expected_s: float = 0.0,
    ) -> Decisions:
        """A group entered the queue; a group that a resumed run knows already changes nothing.

        Args:
            group_id: the group.
            group_index: its position in the order of admission.
            execution_ids: its N (and surplus) executions.
            version: v_d, the version that its Dispatch named.
            now_s: the clock.
            expected_s: expected duration of an execution of its query, in seconds; 0: unknown.
        """
        if group_index >= self._num_admitted:
            self.ledger.admit(group_id=group_id, index=group_index, version=version, execution_ids=execution_ids)
            self._num_admitted += 1
            for execution_id in execution_ids:
                self._queue.add(execution_id, version=version, expected_s=expected_s)
        return self._settle(now_s)

    def launched(self, execution_id: str, *, now_s: float) -> Decisions:
        """The harness of an execution was started."""
        self.ledger.launch(execution_id)
        return self._settle(now_s)

    def finished(self, execution_id: str, status: str, *, now_s: float) -> Decisions:
        """The harness of an execution ended (completed, failed, timeout, cancelled), or will never start. Once counts."""
        if self.ledger.close(execution_id):
            self._queue.discard(execution_id)
            self.routes.release(execution_id)
        return self._settle(now_s)

    def assessed(self, execution_id: str, *, valid: bool, now_s: float) -> Decisions:
        """An execution has its outcome. Needed under oversampling only: N valid outcomes cancel the surplus."""
        execution = self.ledger.executions.get(execution_id)
        if execution is None or not valid or not self.config.oversample:
            return self._settle(now_s)
        execution.group.num_valid += 1
        surplus = tuple(self._cancel_surplus(execution.group)) if execution.group.num_valid == self.config.group_size else ()
        return (*surplus, *self._settle(now_s))

    def _cancel_surplus(self, group: Group) -> Iterator[Decision]:
        for execution in self.ledger.open_executions(group):
            self._queue.discard(execution.execution_id)
            yield Cancel(execution_id=execution.execution_id, reason=f"group {group.group_id} has {group.num_valid} valid outcomes")

    def group_ready(self, group_id: str, *, now_s: float) -> Decisions:
        """Every execution of a group has its outcome."""
        group = self.ledger.groups.get(group_id)
        if group is not None and not group.is_ready:
            assert group.num_open == 0, f"group {group_id} is ready with {group.num_open} open executions"
            self._add_ready(group)
        return self._settle(now_s)

    def _add_ready(self, group: Group) -> None:
        group.is_ready = True
        if self.config.train:
            self.ready.add(group.group_id, version=group.version)
        else:
            self.ledger.forget(group.group_id)

    # ---- events of cells and engines -------------------------------------------------------------------------------------------

    def switched_to_training(self, cell: int, *, now_s: float) -> Decisions:
        """A cell has released its engine's memory and restored its learner."""
        if self.cells.roles[cell] != "leaving":
            return self._settle(now_s)
        self.cells.roles[cell] = "training"
        entered = tuple(self.burst.enter_training()) if cell == CORE else ()
        return (*entered, *self._settle(now_s))

    def switched_to_rollout(self, cell: int, *, now_s: float) -> Decisions:
        """A cell serves again: its engine has confirmed the newest published version, or the one being published."""
        if self.cells.roles[cell] != "returning":
            return self._settle(now_s)
        self.cells.roles[cell] = "rollout"
        return self.engine_up(cell_engine(cell), now_s=now_s)

    def engine_down(self, engine: str, *, now_s: float) -> Decisions:
        """An engine does not answer; its executions wait for another place."""
        self.cells.down.add(engine)
        self._unpublished.discard(engine)
        self.routes.lose(engine)
        return self._settle(now_s)

    def engine_up(self, engine: str, *, now_s: float) -> Decisions:
        """An engine answers and has confirmed the newest published version, or the one being published."""
        self.cells.down.discard(engine)
        if not self._is_serving(engine):
            return self._settle(now_s)
        if self.phase == "publishing":
            self._unpublished.add(engine)
        else:
            self.routes.open(engine)
        return self._settle(now_s)

    def _is_serving(self, engine: str) -> bool:
        return all(cell_engine(cell) != engine or role == "rollout" for cell, role in enumerate(self.cells.roles))

    def cell_lost(self, cell: int, *, now_s: float) -> Decisions:
        """A cell is gone with everything in it. Without the core, sole owner of the optimizer, a training run cannot go on."""
        if self.cells.roles[cell] == "lost":
            return self._settle(now_s)
        if cell == CORE and self.config.train:
            return self._fail("the core cell is lost: resume the run from its last checkpoint")
        members = self.burst.members
        later = members[members.index(cell) + 1 :] if cell in members and self.phase in ("stepping", "reducing") else []
        dropped = tuple(self.burst.drop(cell))
        self.cells.lose(cell)
        self._unpublished.discard(cell_engine(cell))
        self.routes.lose(cell_engine(cell))
        returned = self._return_cells(later, f"cell {cell} before it is lost") if self._placement.returns_satellites else ()
        return (*dropped, *returned, *self._settle(now_s))

    def cell_recovered(self, cell: int, *, now_s: float) -> Decisions:
        """A lost cell is being started again; `switched_to_rollout` follows. It may train from the next burst on."""
        if self.cells.roles[cell] == "lost":
            self.cells.roles[cell] = "returning"
            if self.is_between_bursts:
                self.cells.rebuild_order()
        return self._settle(now_s)

    def tick(self, *, now_s: float) -> Decisions:
        """Look at the clock."""
        return self._settle(now_s)

    # ---- events of training ----------------------------------------------------------------------------------------------------

    def want_group(self, *, now_s: float) -> Decisions:
        """The packing buffer is low: the next ready group, now or when there is one."""
        self.burst.wants_group = True
        return self._settle(now_s)

    def stream_exhausted(self, *, now_s: float) -> Decisions:
        """The stream is closed and every micro-step claimed."""
        closed = tuple(self.burst.close_window("the stream is exhausted")) if self.phase == "stepping" else ()
        return (*closed, *self._settle(now_s))

    def drained(self, *, now_s: float) -> Decisions:
        """The stream is closed and every micro-step finished by a living participant."""
        return (*self.burst.reduce(), *self._settle(now_s))

    def updated(self, version: int, *, now_s: float) -> Decisions:
        """The step is committed (also one without any gradient)."""
        committed = tuple(self.burst.commit_step(version))
        return (*self._return_satellites(), *committed, *self._settle(now_s))

    def broadcast_done(self, version: int, *, now_s: float) -> Decisions:
        """Satellites in training have the weights of a nonfinal update."""
        self.burst.finish_broadcast(version)
        return self._settle(now_s)

    def published(self, version: int, *, now_s: float) -> Decisions:
        """Every serving engine has confirmed the version: dispatch, then decide whether the core stays."""
        self.burst.expect("published", "publishing")
        self.burst.published_version = version
        for engine in sorted(self._unpublished):
            self.routes.open(engine)
        self._unpublished.clear()
        self.cells.rebuild_order()
        self._observe_supply(now_s)
        return (*self._dispatch(), *self._begin_next_burst(), *self._settle(now_s))

    def _begin_next_burst(self) -> Iterator[Decision]:
        if self.published_version == self.config.steps:
            self.burst.phase = "ending"
        elif self._placement.keeps_core(self):
            self.burst.phase = "waiting"
            if self._placement.returns_satellites:
                reason = f"supply holds and waterlevel {self.demand} <= {self.capacity(1)} places without the core"
                yield RetainCore(version=self.version, reason=reason)
        else:
            self.burst.phase = "rollout"
            self.burst.members = []
            yield from self._return_cells([CORE], "supply or capacity for a burst is missing")

    # ---- rules -----------------------------------------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> Decisions:
        self._observe_supply(now_s)
        if self.is_over:
            return ()
        out: list[Decision] = [*self._reroute(), *self._depart(), *self._train(), *self._launch(), *self._rescue(), *self._end()]
        return tuple(out)

    def _observe_supply(self, now_s: float) -> None:
        self._now_s = now_s
        self._supply.observe(len(self.ready) + len(self.burst.consumed), now_s=now_s)

    def _dispatch(self) -> Iterator[Decision]:
        due = self.config.groups_due(self.published_version)
        if self.config.dispatch == "continuous" and self.config.train:
            due = min(self.config.groups_due(0) + self.burst.num_consumed, self.config.total_groups or 2**62)
        num_groups, first = due - self._num_ordered, self._num_ordered
        if num_groups <= 0:
            return
        self._num_ordered = due
        self.staleness.admit(version=self.published_version, num_groups=num_groups)
        reason = f"{num_groups} of {due} groups are due under version {self.published_version}"
        yield Dispatch(num_groups=num_groups, first_group_index=first, version=self.published_version, reason=reason)

    def _reroute(self) -> Iterator[Decision]:
        if self.routes.parked and (moves := self.routes.place_parked()):
            yield Reroute(moves=moves, reason="their engine is gone and places are free")

    def _depart(self) -> Iterator[Decision]:
        while self.config.train and self.phase != "ending":
            departure = self._placement.find_departure(self)
            sent = tuple(self._send_to_training(departure.cells, departure.reason))
            if not sent:
                return
            yield from sent

    def _send_to_training(self, cells: Sequence[int], reason: str) -> Iterator[Decision]:
        names = [cell_engine(cell) for cell in cells]
        if not cells or self.routes.find_moves(leaving=names) is None:
            return
        for name in names:
            self.routes.close(name)
        for cell, name in zip(cells, names, strict=True):
            moves = self.routes.find_moves(leaving=[name])
            assert moves is not None, f"the places that were counted for {name} are gone"
            self.routes.apply_moves(moves)
            self.cells.roles[cell] = "leaving"
            if cell == CORE:
                self.burst.phase = "switching"
            yield ToTraining(cell=cell, moves=moves, reason=reason)

    def _train(self) -> Iterator[Decision]:
        if self.phase == "waiting" and self._placement.may_begin_step(self):
            yield self.burst.begin_step()
        yield from self._return_satellites()
        yield from self.burst.join_satellites()
        for consumed in self.burst.take_group():
            yield consumed
            if self.config.dispatch == "continuous":
                yield from self._dispatch()

    def _return_satellites(self) -> Iterator[Decision]:
        if self._placement.returns_satellites and not self.burst.is_running:
            training = [cell for cell, role in enumerate(self.cells.roles) if role == "training" and cell != CORE]
            yield from self._return_cells(training, "the burst is over")

    def _return_cells(self, cells: Sequence[int], reason: str) -> Decisions:
        for cell in cells:
            self.cells.roles[cell] = "returning"
        return tuple(ToRollout(cell=cell, reason=reason) for cell in cells)

    def _launch(self) -> Iterator[Decision]:
        while len(self._queue) and (engine := self.routes.find_least_loaded()) is not None:
            execution = self.ledger.executions[self._queue.take()]
            self.routes.place(execution.execution_id)
            execution.attempts += 1
            if execution.status == "queued":
                execution.status = "launching"
            yield Launch(
                execution_id=execution.execution_id,
                engine=engine.name,
                attempt=execution.attempts,
                reason="the least loaded engine has a place",
            )

    def _rescue(self) -> Iterator[Decision]:
        """Lost cells can leave a burst without rollout capacity for the groups it needs: bring a satellite back, or stop."""
        if not self.demand or self.cells.can_ever_serve or "leaving" in self.cells.roles:
            return
        if self.config.train and self.burst.num_groups_left <= self.ledger.num_closed_groups:
            return
        if self.phase not in ("waiting", "stepping") and self.config.train:
            return
        satellites = [cell for cell, role in enumerate(self.cells.roles) if role == "training" and cell != CORE]
        if satellites and self._placement.returns_satellites:
            yield from self.burst.drop(satellites[-1])
            yield from self._return_cells(satellites[-1:], "no other cell can serve rollouts")
        else:
            yield from self._fail(f"no cell is left to serve {self.demand} executions: resume the run with more cells")

    def _fail(self, reason: str) -> Decisions:
        self.burst.phase = "failed"
        return (Fail(reason=reason),)

    def _end(self) -> Iterator[Decision]:
        if self.config.train:
            is_complete = self.phase == "ending" and not self.cells.is_changing
        else:
            is_complete = not self.ledger.groups and self._num_admitted == self._num_ordered == self.config.total_groups
        if is_complete:
            self.burst.phase = "finished"
            yield Finish(reason=f"{self._num_ordered} groups are done at version {self.version}")
