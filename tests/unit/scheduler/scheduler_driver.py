"""A small executor in virtual time: performs every decision with random latencies, and breaks things if asked.

It keeps its own books (places, routes, consumed groups) and compares them with the scheduler's after each event, so that a property
test only has to choose a configuration and a seed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gyre.scheduler import decisions as d
from gyre.scheduler.claims import ClaimQueue
from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine
from gyre.scheduler.restore import RestoredExecution, RestoredGroup, RestoredState
from gyre.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class Run:
    """What survives a crash: the store of a run."""

    executions: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Status and attempts."""
    groups: dict[str, tuple[int, int, list[str]]] = field(default_factory=dict)
    """Index, v_d, execution ids."""
    outcomes: set[str] = field(default_factory=set)
    """Executions with an outcome."""
    valid: set[str] = field(default_factory=set)
    """Executions with a valid one."""
    consumed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Groups of committed steps: v_d, v_t."""
    version: int = 0
    published_version: int = 0

    def to_state(self, config: SchedulerConfig) -> RestoredState:
        outstanding = [
            RestoredGroup(
                group_id=group_id,
                group_index=index,
                version=version,
                executions=tuple(
                    RestoredExecution(
                        execution_id=e, status=self.executions[e][0], attempts=self.executions[e][1], is_valid=e in self.valid
                    )
                    for e in ids
                ),
                is_ready=self.is_ready(group_id),
            )
            for group_id, (index, version, ids) in self.groups.items()
            if group_id not in self.consumed and (config.train or not self.is_ready(group_id))
        ]
        return RestoredState(
            version=self.version,
            published_version=self.published_version,
            num_consumed_groups=len(self.groups) - len(outstanding),
            groups=tuple(outstanding),
        )

    def is_ready(self, group_id: str) -> bool:
        return all(self.executions[e][0] == "closed" and e in self.outcomes for e in self.groups[group_id][2])


class Driver:
    """Performs decisions of one scheduler until it is over, or until a crash."""

    def __init__(self, config: SchedulerConfig, seed: int, *, faults: float = 0.0, run: Run | None = None) -> None:
        self.config = config
        self.rng = random.Random(seed)
        self.faults = faults
        self.run = run or Run()
        self.scheduler = Scheduler(config)
        self.queue = ClaimQueue()
        self.now_s = 0.0
        self.log: list[d.Decision] = []
        self.is_finished = False
        self.failure = ""
        self.num_steps_here = 0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._seq = 0
        self._route: dict[str, str] = {}
        self._capacity = {cell_engine(i): c for i, c in enumerate(config.cells)}
        self._capacity |= {standalone_engine(i): c for i, c in enumerate(config.standalone)}
        self._open = {e: None for e, (status, _) in self.run.executions.items() if status != "closed"}
        self._lost: set[int] = set()
        self._down: set[str] = set()
        self._epoch: Counter[int] = Counter()
        self._busy: dict[int, str] = {}
        self._consumed_here: list[str] = []
        self._step_groups: list[tuple[str, int]] = []
        self._told = {"exhausted": False, "drained": False}
        self._reduce = 0

    # ---- time ----

    def after(self, mean_s: float, what: Callable[[], object]) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (self.now_s + self.rng.expovariate(1 / mean_s), self._seq, what))

    def play(self, *, max_events: int = 200_000, crash_after: int | None = None) -> Driver:
        resumed = bool(self.run.groups)
        if resumed:
            self.perform(self.scheduler.restore(self.run.to_state(self.config), now_s=0.0))
            self._score_unscored()
        else:
            self.perform(self.scheduler.start(now_s=0.0))
        if self.faults:
            self.after(5.0 / self.faults, self._break_something)
        for count in range(max_events):
            if self.is_finished or self.failure or (crash_after is not None and count >= crash_after):
                return self
            wake_s = self.scheduler.find_wake_s()
            if wake_s is not None and (not self._heap or wake_s < self._heap[0][0]):
                self.now_s = max(self.now_s, wake_s)
                self.perform(self.scheduler.tick(now_s=self.now_s))
                continue
            assert self._heap, f"nothing will happen any more: {self.describe()}"
            self.now_s, _, what = heapq.heappop(self._heap)
            what()
            self.check()
        raise AssertionError(f"the run does not end: {self.describe()}")

    def describe(self) -> str:
        s = self.scheduler
        return (
            f"phase {s.phase}, version {s.version}, roles {s.roles}, members {s.members}, counters {s.counters}, "
            f"ready {s.num_ready}, consumed {len(s.burst.consumed)}, down {sorted(self._down)}"
        )

    def tell(self, event: Callable[..., tuple[d.Decision, ...]], *args: object, **kwargs: object) -> None:
        self.perform(event(*args, **kwargs, now_s=self.now_s))

    def perform(self, decisions: tuple[d.Decision, ...]) -> None:
        for decision in decisions:
            assert decision.reason
            assert not self.is_finished and not self.failure, f"{decision} after the end"
            self.log.append(decision)
            getattr(self, f"do_{type(decision).__name__}")(decision)

    # ---- rollout ----

    def do_Dispatch(self, decision: d.Dispatch) -> None:
        for index in range(decision.first_group_index, decision.first_group_index + decision.num_groups):
            ids = [f"g{index:06d}-{n:02d}" for n in range(self.config.executions_per_group)]
            self._seq += 1
            admit = lambda i=index, ids=ids: self._admit(i, ids, decision.version)  # noqa: E731
            heapq.heappush(self._heap, (self.now_s, self._seq, admit))

    def _admit(self, index: int, ids: list[str], version: int) -> None:
        self.run.groups[f"g{index:06d}"] = (index, version, ids)
        self.run.executions |= dict.fromkeys(ids, ("queued", 0))
        self._open |= dict.fromkeys(ids)
        self.tell(self.scheduler.admitted, f"g{index:06d}", index, ids, version, expected_s=self.rng.random())

    def do_Launch(self, decision: d.Launch) -> None:
        execution_id = decision.execution_id
        assert execution_id not in self._route, f"{execution_id} was launched twice"
        assert decision.attempt == self.run.executions[execution_id][1] + 1
        self._put(execution_id, decision.engine)
        self.run.executions[execution_id] = ("running", decision.attempt)
        if self.rng.random() < 0.05:
            self.after(0.1, lambda: self._finish(execution_id, "failed"))
            return
        self.after(0.1, lambda: self._launched(execution_id))

    def _launched(self, execution_id: str) -> None:
        if self.run.executions[execution_id][0] == "running":
            self.tell(self.scheduler.launched, execution_id)
            self.after(self.rng.choice([1.0, 10.0]), lambda: self._finish(execution_id, "completed"))

    def _put(self, execution_id: str, engine: str) -> None:
        self._route[execution_id] = engine
        load = sum(route == engine for route in self._route.values())
        assert load <= self._capacity[engine], f"{engine} has {load} executions"
        assert engine not in self._down
        assert all(cell_engine(cell) != engine for cell in self._lost)

    def do_Cancel(self, decision: d.Cancel) -> None:
        members = self.run.groups[decision.execution_id[:7]][2]
        assert sum(e in self.run.valid for e in members) >= self.config.group_size, "cancelled with too few valid outcomes"
        self.after(0.2, lambda: self._finish(decision.execution_id, "cancelled"))

    def _finish(self, execution_id: str, status: str) -> None:
        if self.run.executions[execution_id][0] == "closed":
            return
        self._route.pop(execution_id, None)
        del self._open[execution_id]
        self.run.executions[execution_id] = ("closed", self.run.executions[execution_id][1])
        self.tell(self.scheduler.finished, execution_id, status)
        self.tell(self.scheduler.finished, execution_id, status)
        if status == "cancelled":
            self._resolve(execution_id)
        else:
            self.after(2.0, lambda: self._assess(execution_id))

    def _assess(self, execution_id: str) -> None:
        is_valid = self.rng.random() < 0.9
        self.run.valid |= {execution_id} if is_valid else set()
        self.tell(self.scheduler.assessed, execution_id, valid=is_valid)
        self._resolve(execution_id)

    def _resolve(self, execution_id: str) -> None:
        self.run.outcomes.add(execution_id)
        group_id = execution_id[:7]
        if self.run.is_ready(group_id):
            self.tell(self.scheduler.group_ready, group_id)

    def _score_unscored(self) -> None:
        """What the evaluation does after a resume: it tells again what it knows, and scores the rest."""
        for execution_id, (status, _) in self.run.executions.items():
            if status == "closed" and execution_id not in self.run.outcomes:
                self.after(2.0, lambda e=execution_id: self._assess(e))
            elif execution_id in self.run.outcomes:
                self.after(0.1, lambda e=execution_id: self.tell(self.scheduler.assessed, e, valid=e in self.run.valid))

    def do_Reroute(self, decision: d.Reroute) -> None:
        for move in decision.moves:
            assert move.execution_id not in self._route
            self._put(move.execution_id, move.engine)

    # ---- roles ----

    def do_ToTraining(self, decision: d.ToTraining) -> None:
        cell, epoch = decision.cell, self._epoch[decision.cell]
        mine = {e for e, engine in self._route.items() if engine == cell_engine(cell)}
        assert mine == {move.execution_id for move in decision.moves}, "someone is displaced without a place"
        for move in decision.moves:
            del self._route[move.execution_id]
            self._put(move.execution_id, move.engine)
        if self.config.policy != "async" and decision.reason != "the interrupted burst has to be published":
            assert self.scheduler.waterlevel <= self._capacity_without(decision), "the waterlevel exceeds the remaining capacity"
        self.after(0.5, lambda: self._epoch[cell] == epoch and self.tell(self.scheduler.switched_to_training, cell))

    def _capacity_without(self, decision: d.ToTraining) -> int:
        gone = {cell_engine(c) for c, role in enumerate(self.scheduler.roles) if role in ("leaving", "training", "lost")}
        return sum(c for engine, c in self._capacity.items() if engine not in gone | self._down)

    def do_ToRollout(self, decision: d.ToRollout) -> None:
        self._return(decision.cell)

    def _return(self, cell: int) -> None:
        epoch = self._epoch[cell]
        self._busy.pop(cell, None)

        def back() -> None:
            if self._epoch[cell] == epoch:
                self._down.discard(cell_engine(cell))
                self.tell(self.scheduler.switched_to_rollout, cell)

        self.after(0.5, back)

    # ---- training ----

    def do_BeginStep(self, decision: d.BeginStep) -> None:
        self.queue.open(decision.version)
        self._told = {"exhausted": False, "drained": False}
        self._step_groups = []
        assert decision.cells[0] == 0
        self.after(0.1, self._want)
        self._work()

    def _want(self) -> None:
        if not self.queue.is_closed:
            self.tell(self.scheduler.want_group)

    def do_Consume(self, decision: d.Consume) -> None:
        assert decision.group_id not in self.run.consumed
        assert decision.group_id not in {g for g, _ in self._step_groups}, "consumed twice"
        assert self.run.is_ready(decision.group_id)
        taken = {*self.run.consumed, *(group_id for group_id, _ in self._step_groups)}
        others = [group[1] for group_id, group in self.run.groups.items() if group_id not in taken and self.run.is_ready(group_id)]
        assert self.run.groups[decision.group_id][1] == min(others), "an older group was ready"
        assert decision.version == self.scheduler.version + 1
        self._step_groups.append((decision.group_id, self.run.groups[decision.group_id][1]))
        assert decision.last == (len(self._step_groups) == self.config.groups_per_step)
        self.after(0.3, lambda: self._pack(decision))

    def _pack(self, decision: d.Consume) -> None:
        for number in range(self.rng.choice([0, 1, 3])):
            spanning = {f"{decision.group_id}-00": 1.0} if number else {}
            if number == 1:
                self.queue.enqueue(f"{decision.group_id}/r", kind="ratio", spanning=spanning)
            self.queue.enqueue(f"{decision.group_id}/{number}", spanning=spanning)
        if decision.last:
            self.queue.close()
        else:
            self.after(0.1, self._want)
        self._work()

    def _work(self) -> None:
        for cell in self.scheduler.members:
            if cell not in self._busy and self.scheduler.phase == "stepping":
                item = self.queue.claim(cell)
                if item is not None:
                    self._busy[cell] = item.item_id
                    self.after(0.5, lambda c=cell, i=item, e=self._epoch[cell]: self._done(c, i, e))
        if self.queue.is_exhausted and not self._told["exhausted"]:
            self._told["exhausted"] = True
            self.tell(self.scheduler.stream_exhausted)
        if self.queue.is_drained and not self._told["drained"]:
            self._told["drained"] = True
            self.tell(self.scheduler.drained)

    def _done(self, cell: int, item: object, epoch: int) -> None:
        if self._epoch[cell] != epoch or self._busy.get(cell) != item.item_id:
            return
        del self._busy[cell]
        if item.kind == "ratio":
            self.queue.report_ratio(f"{item.item_id[:7]}-00", row_id=item.item_id, sum_log_r=0.1, count=2)
        assert self.queue.finish(cell, item.item_id)
        self._work()

    def do_Join(self, decision: d.Join) -> None:
        assert self.scheduler.roles[decision.cell] == "training"
        self.after(0.01, self._work)

    def do_CloseWindow(self, decision: d.CloseWindow) -> None: ...

    def do_Discard(self, decision: d.Discard) -> None:
        for cell in decision.cells:
            self._busy.pop(cell, None)
        self.queue.lose_from(decision.cells[0])
        assert not any(self.queue.finished_by(cell) for cell in decision.cells)
        self._told["drained"] = False
        self._reduce += 1
        self.after(0.01, self._work)

    def do_Reduce(self, decision: d.Reduce) -> None:
        done = sum(len(self.queue.finished_by(cell)) for cell in decision.cells)
        assert done == sum(item.kind == "gradient" for item in self.queue._items.values()), "some micro-step is in nobody's sum"
        self._reduce += 1
        self.after(0.5, lambda number=self._reduce: self._update(decision.version, number))

    def _update(self, version: int, number: int) -> None:
        if number == self._reduce and self.scheduler.phase == "reducing":
            self.run.consumed |= {g: (v_d, version - 1) for g, v_d in self._step_groups}
            self.run.version = version
            self.num_steps_here += 1
            self.tell(self.scheduler.updated, version)
            identity = self.scheduler.staleness.get_identity(version=version)
            assert self.config.dispatch == "continuous" or identity.aged == identity.left

    def do_Broadcast(self, decision: d.Broadcast) -> None:
        assert len(decision.cells) > 1
        self.after(0.2, lambda: self.tell(self.scheduler.broadcast_done, decision.version))

    def do_Publish(self, decision: d.Publish) -> None:
        def done() -> None:
            self.run.published_version = decision.version
            self.tell(self.scheduler.published, decision.version)

        self.after(0.5, done)

    def do_RetainCore(self, decision: d.RetainCore) -> None:
        places = sum(
            c for engine, c in self._capacity.items() if engine not in {cell_engine(0), *map(cell_engine, self._lost)} | self._down
        )
        assert self.scheduler.demand <= places, "the core stays in training though its places are needed"

    def do_Finish(self, decision: d.Finish) -> None:
        self.is_finished = True

    def do_Fail(self, decision: d.Fail) -> None:
        self.failure = decision.reason

    # ---- faults ----

    def _break_something(self) -> None:
        satellites = [c for c in range(1, len(self.config.cells)) if c not in self._lost]
        serving = [
            e
            for e in self._capacity
            if e not in self._down and self.scheduler.cells.is_serving(e) and self.scheduler.routes.engines[e].is_open
        ]
        kind = self.rng.choice(["cell", "engine"])
        if kind == "cell" and satellites:
            self._lose_cell(self.rng.choice(satellites))
        elif kind == "engine" and serving:
            self._lose_engine(self.rng.choice(serving))
        self.after(5.0 / self.faults, self._break_something)

    def _lose_cell(self, cell: int) -> None:
        self._lost.add(cell)
        self._epoch[cell] += 1
        self._down.discard(cell_engine(cell))
        self._drop_routes(cell_engine(cell))
        self.tell(self.scheduler.cell_lost, cell)
        if self.rng.random() < 0.7:
            self.after(5.0, lambda: self._recover(cell))

    def _recover(self, cell: int) -> None:
        self._lost.discard(cell)
        self.tell(self.scheduler.cell_recovered, cell)
        self._return(cell)

    def _lose_engine(self, engine: str) -> None:
        self._down.add(engine)
        self._drop_routes(engine)
        self.tell(self.scheduler.engine_down, engine)
        self.after(3.0, lambda: self._engine_up(engine))

    def _engine_up(self, engine: str) -> None:
        if engine in self._down:
            self._down.discard(engine)
            self.tell(self.scheduler.engine_up, engine)

    def _drop_routes(self, engine: str) -> None:
        self._route = {e: other for e, other in self._route.items() if other != engine}

    # ---- invariants ----

    def check(self) -> None:
        s = self.scheduler
        counters = s.counters
        assert 0 <= counters.finished <= counters.launched <= counters.dispatched
        assert s.waterlevel == len(self._open)
        for execution_id in self._open:
            assert s.find_route(execution_id) == self._route.get(execution_id)
        order = [c for c in s.cells.order if c in s.members]
        assert list(s.members) == order == s.cells.order[: len(order)], "participants are no prefix of the living cells"
