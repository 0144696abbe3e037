"""The scheduler: events in, decisions out (paper section 4). The live runtime and the simulator drive this same class.

Every event takes the clock as `now_s`, changes the facts, and then `_settle` applies the rules in a fixed order: places for executions
whose engine is gone, departures of cells, rescue, steps, launches, end. Decisions are returned in the order to perform; an executor
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
events `assessed`, `cell_lost`, `cell_recovered`, `engine_down`, `engine_up` and `tick` may come at any time; before `start` or `restore`
no event decides anything, and after Finish or Fail every event is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.scheduler.burst import Burst, Phase
from gyre.scheduler.config import SchedulerConfig, cell_engine
from gyre.scheduler.counters import Counters, Group, Ledger
from gyre.scheduler.decisions import Decision, Discard, Fail, Finish, RetainCore, ToRollout, ToTraining
from gyre.scheduler.lifecycle import Lifecycle
from gyre.scheduler.placement import make_placement
from gyre.scheduler.restore import RestoredState
from gyre.scheduler.routing import RouteTable
from gyre.scheduler.staleness import StalenessAccount
from gyre.scheduler.supply import ReadyGroups, SupplyCheck
from gyre.scheduler.waterlevel import CORE, CellOrder, Role

Decisions = tuple[Decision, ...]


class Scheduler:
    """All scheduling state of a run.

    >>> scheduler = Scheduler(SchedulerConfig(groups_per_step=1, group_size=2, steps=1, cells=(1, 2)))
    >>> [(d.num_groups, d.version) for d in scheduler.start(now_s=0.0)]
    [(1, 0)]
    >>> [d.engine for d in scheduler.admitted("g0", 0, ["g0-0", "g0-1"], version=0, now_s=0.0)]
    ['cell1', 'cell0']
    >>> scheduler.counters, scheduler.waterlevel
    (Counters(dispatched=2, launched=0, finished=0), 2)
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.cells = CellOrder(config)
        """Roles, order and capacities of the cells."""
        self.ledger = Ledger()
        """Counters, outstanding executions and groups."""
        self.routes = RouteTable(config)
        """Engines, and who has a place in which."""
        self.staleness = StalenessAccount()
        """v_t − v_d of every consumed group."""
        self.ready = ReadyGroups()
        """The trajectory buffer."""
        self.burst = Burst(config, cells=self.cells, ready=self.ready, ledger=self.ledger, account=self.staleness)
        """Steps and participants."""
        self.lifecycle = Lifecycle(config, ledger=self.ledger, routes=self.routes, staleness=self.staleness)
        """Dispatch, admission and launch."""
        self._supply = SupplyCheck(config.min_ready_groups, config.hold_s)
        self._placement = make_placement(config)
        self._unpublished: set[str] = set()
        """Engines that will accept once the running publication is confirmed."""
        self._now_s = 0.0
        self._has_begun = False

    # ---- queries ---------------------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """d, p, f."""
        return self.ledger.counters

    @property
    def waterlevel(self) -> int:
        """Queued and running executions, d − f."""
        return self.ledger.waterlevel

    @property
    def demand(self) -> int:
        """The waterlevel, and executions of groups whose admission has been ordered."""
        return self.lifecycle.demand

    @property
    def num_ready(self) -> int:
        """Ready groups that no step has taken."""
        return len(self.ready)

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
        self._has_begun = True
        self._open_engines()
        return (*self._dispatch(), *self._settle(now_s))

    def restore(self, state: RestoredState, *, now_s: float) -> Decisions:
        """Begin where an interrupted run was: every cell is in rollout, every engine serves the published version.

        A burst that was under way goes on, with its remaining steps, as soon as the policy lets the core leave again. If only its
        publication is missing the core leaves at once: nothing runs yet, so nobody is displaced.
        """
        self._has_begun = True
        self.burst.restore(version=state.version, published_version=state.published_version, num_consumed=state.num_consumed_groups)
        for group in self.lifecycle.restore(state):
            self._add_ready(group)
        self._open_engines()
        return (*self._dispatch(), *self._resume_publication(), *self._settle(now_s))

    def _resume_publication(self) -> Decisions:
        is_missing = self.version > self.published_version and self.version == self.burst.end
        return self._send_to_training([CORE], "the interrupted burst has to be published") if is_missing else ()

    def _open_engines(self) -> None:
        for name in self.routes.engines:
            self.routes.open(name)

    # ---- events of rollout -----------------------------------------------------------------------------------------------------

    def admitted(
        self, group_id: str, group_index: int, execution_ids: Sequence[str], version: int, *, now_s: float, expected_s: float = 0.0
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
        self.lifecycle.admit(group_id, group_index, execution_ids, version=version, expected_s=expected_s)
        return self._settle(now_s)

    def launched(self, execution_id: str, *, now_s: float) -> Decisions:
        """The harness of an execution was started; no rule depends on p."""
        self.ledger.launch(execution_id)
        self._now_s = now_s
        return ()

    def finished(self, execution_id: str, status: str, *, now_s: float) -> Decisions:
        """The harness of an execution ended (completed, failed, timeout, cancelled), or will never start; only the first counts."""
        self.lifecycle.close(execution_id)
        return self._settle(now_s)

    def assessed(self, execution_id: str, *, valid: bool, now_s: float) -> Decisions:
        """An execution has its outcome. Needed under oversampling only: N valid outcomes cancel the surplus."""
        cancelled = tuple(self.lifecycle.count_valid(execution_id)) if valid else ()
        return (*cancelled, *self._settle(now_s))

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
        if self.is_over or self.cells.roles[cell] != "leaving":
            return ()
        self.cells.roles[cell] = "training"
        entered = tuple(self.burst.enter_training()) if cell == CORE else ()
        return (*entered, *self._settle(now_s))

    def switched_to_rollout(self, cell: int, *, now_s: float) -> Decisions:
        """A cell serves again: its engine has confirmed the newest published version, or the one being published."""
        if self.cells.roles[cell] != "returning":
            return ()
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
        if self.cells.is_serving(engine):
            if self.phase == "publishing":
                self._unpublished.add(engine)
            else:
                self.routes.open(engine)
        return self._settle(now_s)

    def cell_lost(self, cell: int, *, now_s: float) -> Decisions:
        """A cell is gone with everything in it. Without the core, sole owner of the optimizer, a training run cannot go on."""
        if self.is_over or self.cells.roles[cell] == "lost":
            return ()
        if cell == CORE and self.config.train:
            return self._fail("the core cell is lost: resume the run from its last checkpoint")
        dropped = tuple(self.burst.drop(cell))
        self.cells.lose(cell)
        self._unpublished.discard(cell_engine(cell))
        self.routes.lose(cell_engine(cell))
        later = [other for decision in dropped if isinstance(decision, Discard) for other in decision.cells[1:]]
        returned = self._return_cells(later, f"cell {cell} before it is lost") if self._placement.returns_satellites else ()
        return (*dropped, *returned, *self._settle(now_s))

    def cell_recovered(self, cell: int, *, now_s: float) -> Decisions:
        """A lost cell is being started again; `switched_to_rollout` follows. It may train from the next burst on."""
        if self.cells.roles[cell] == "lost":
            self.cells.roles[cell] = "returning"
            if self.burst.is_before_start:
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
        return () if self.is_over else (*self.burst.reduce(), *self._settle(now_s))

    def updated(self, version: int, *, now_s: float) -> Decisions:
        """The step is committed (also one without any gradient)."""
        if self.is_over:
            return ()
        committed = tuple(self.burst.commit_step(version))
        return (*self._return_satellites(), *committed, *self._settle(now_s))

    def broadcast_done(self, version: int, *, now_s: float) -> Decisions:
        """Satellites in training have the weights of a nonfinal update."""
        self.burst.finish_broadcast(version)
        return self._settle(now_s)

    def published(self, version: int, *, now_s: float) -> Decisions:
        """Every serving engine has confirmed the version: dispatch, then decide whether the core stays."""
        if self.is_over:
            return ()
        self.burst.confirm_publication(version)
        for engine in sorted(self._unpublished):
            self.routes.open(engine)
        self._unpublished.clear()
        self.cells.rebuild_order()
        self._observe_supply(now_s)
        return (*self._dispatch(), *self._begin_next_burst(), *self._settle(now_s))

    # ---- rules -----------------------------------------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> Decisions:
        self._observe_supply(now_s)
        if self.is_over or not self._has_begun:
            return ()
        # Asked after every event, and most events decide nothing: a rule that cannot apply is not even entered.
        decisions: list[Decision] = []
        if self.routes.parked:
            decisions += self.lifecycle.reroute()
        decisions += self._depart()
        decisions += self._rescue()
        if self.burst.phase != "rollout" or "training" in self.cells.roles:
            decisions += self._train()
        if len(self.lifecycle.queue):
            decisions += self.lifecycle.launch()
        decisions += self._end()
        return tuple(decisions)

    def _observe_supply(self, now_s: float) -> None:
        self._now_s = now_s
        self._supply.observe(len(self.ready) + len(self.burst.consumed), now_s=now_s)

    def _dispatch(self) -> Decisions:
        return tuple(self.lifecycle.dispatch(published_version=self.published_version, num_consumed=self.burst.num_consumed))

    def _begin_next_burst(self) -> Decisions:
        is_last = self.version == self.config.steps
        if is_last or self._placement.keeps_core(self):
            self.burst.keep_core()
            if is_last or not self._placement.returns_satellites:
                return ()
            reason = f"supply holds and waterlevel {self.demand} <= {self.capacity(1)} places without the core"
            return (RetainCore(version=self.version, reason=reason),)
        self.burst.release_core()
        return self._return_cells([CORE], "supply or capacity for the next burst is missing")

    def _depart(self) -> Iterator[Decision]:
        while self.config.train and self.phase != "ending":
            departure = self._placement.find_departure(self)
            sent = self._send_to_training(departure.cells, departure.reason)
            if not sent:
                return
            yield from sent

    def _send_to_training(self, cells: Sequence[int], reason: str) -> Decisions:
        names = [cell_engine(cell) for cell in cells]
        moves = self.routes.find_moves(leaving=names) if cells else None
        if moves is None:
            return ()
        sent: list[Decision] = []
        for cell, name in zip(cells, names, strict=True):
            mine = tuple(move for move in moves if self.routes.find_route(move.execution_id) == name)
            self.routes.close(name)
            self.routes.apply_moves(mine)
            self.cells.roles[cell] = "leaving"
            if cell == CORE:
                self.burst.phase = "switching"
            sent.append(ToTraining(cell=cell, moves=mine, reason=reason))
        return tuple(sent)

    def _train(self) -> Iterator[Decision]:
        if self.phase == "waiting" and self._placement.may_begin_step(self):
            yield self.burst.begin_step()
        yield from self._return_satellites()
        yield from self.burst.join_satellites()
        for consumed in self.burst.take_group():
            yield consumed
            yield from self._dispatch()

    def _return_satellites(self) -> Decisions:
        if self.burst.is_running or not self._placement.returns_satellites:
            return ()
        return self._return_cells(self.cells.find_satellites_in_training(), "the burst is over")

    def _return_cells(self, cells: Sequence[int], reason: str) -> Decisions:
        for cell in cells:
            self.cells.roles[cell] = "returning"
        return tuple(ToRollout(cell=cell, reason=reason) for cell in cells)

    def _rescue(self) -> Iterator[Decision]:
        """Lost cells can leave a burst without rollout capacity for the groups it needs: bring a satellite back, or stop."""
        if self.cells.can_ever_serve or "leaving" in self.cells.roles or not self.demand:
            return
        if self.config.train and not self._is_starved:
            return
        satellites = self.cells.find_satellites_in_training()
        if satellites and self._placement.returns_satellites:
            yield from self.burst.drop(satellites[-1])
            yield from self._return_cells(satellites[-1:], "no other cell can serve rollouts")
        else:
            yield from self._fail(f"no cell is left to serve {self.demand} executions: resume the run with more cells")

    @property
    def _is_starved(self) -> bool:
        return self.phase in ("waiting", "stepping") and self.burst.num_groups_left > self.ledger.num_closed_groups

    def _fail(self, reason: str) -> Decisions:
        self.burst.phase = "failed"
        return (Fail(reason=reason),)

    def _end(self) -> Iterator[Decision]:
        is_settled = self.phase == "ending" and not self.cells.is_changing
        if is_settled if self.config.train else self.lifecycle.is_complete:
            self.burst.phase = "finished"
            yield Finish(reason=f"{self.lifecycle.num_admitted} groups are done at version {self.version}")
