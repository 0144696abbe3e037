"""A simulation that checks the scheduler's invariants after every event, and random settings for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from gyre.graph.workload import WorkloadSettings
from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine
from gyre.sim.faults import Faults
from gyre.sim.simulation import SimSetting, Simulation

MOST_ADVANCES = 100_000
"""Far more than any of these settings needs: a run that stands still while engines go on breaking has no other end."""


class CheckedSimulation(Simulation):
    """Compares with books of its own, which know nothing of the scheduler's."""

    def __init__(self, setting: SimSetting) -> None:
        super().__init__(setting)
        config = setting.config
        self.num_advances = 0
        self.consumed: list[str] = []
        self.is_down: set[str] = set()
        self.capacities = {cell_engine(i): c for i, c in enumerate(config.cells)}
        self.capacities |= {standalone_engine(i): c for i, c in enumerate(config.standalone)}

    def _advance(self) -> None:
        self.num_advances += 1
        assert self.num_advances < MOST_ADVANCES, f"the run does not end: {self._describe_deadlock()}"
        super()._advance()

    def tell(self, event: Callable[..., tuple[d.Decision, ...]], *args: Any, **kwargs: Any) -> None:
        if event.__name__ == "engine_down":
            self.is_down.add(args[0])
        elif event.__name__ == "engine_up":
            self.is_down.discard(args[0])
        elif event.__name__ in ("cell_lost", "switched_to_rollout"):
            self.is_down.discard(cell_engine(args[0]))
        super().tell(event, *args, **kwargs)
        self.check_counters()
        if event.__name__ == "published":
            self.check_staleness()

    def _perform(self, decisions: tuple[d.Decision, ...]) -> None:
        leaving = [decision.cell for decision in decisions if isinstance(decision, d.ToTraining)]
        for decision in decisions:
            if isinstance(decision, d.ToTraining):
                self.check_departure(decision, leaving=leaving)
            if isinstance(decision, d.Consume):
                assert decision.group_id not in self.consumed, "consumed twice"
                self.consumed.append(decision.group_id)
        super()._perform(decisions)

    def check_counters(self) -> None:
        counters = self.scheduler.counters
        assert 0 <= counters.finished <= counters.launched <= counters.dispatched
        for name, engine in self.rollout.engines.items():
            assert engine.num_running <= self.capacities[name]

    def check_departure(self, decision: d.ToTraining, *, leaving: list[int]) -> None:
        """Everyone who is displaced has a place, and what remains holds the waterlevel (a fixed split never asks)."""
        displaced = {
            execution_id
            for execution_id, running in self.rollout._running.items()
            if running.engine is not None and running.engine.name == cell_engine(decision.cell)
        }
        assert displaced == {move.execution_id for move in decision.moves}
        if self.setting.config.policy == "async":
            return
        out = {cell_engine(c) for c, role in enumerate(self.scheduler.roles) if role in ("leaving", "training", "lost")}
        assert {cell_engine(c) for c in leaving} <= out
        left = sum(capacity for name, capacity in self.capacities.items() if name not in out | self.is_down)
        assert self.scheduler.waterlevel <= left

    def check_staleness(self) -> None:
        if self.setting.config.dispatch == "boundary":
            identity = self.scheduler.staleness.get_identity(version=self.scheduler.version)
            assert identity.aged == identity.left


@st.composite
def sim_settings(draw: st.DrawFn, *, with_faults: bool = False, is_closed: bool = True) -> SimSetting:
    """A small pipeline under any policy, with a workload of any proportions."""
    policy = draw(st.sampled_from(["elastic", "async", "colocate"]))
    cells = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    config = SchedulerConfig(
        groups_per_step=draw(st.integers(1, 5)),
        group_size=draw(st.integers(1, 4)),
        phi=draw(st.sampled_from([0.0, 0.5, 1.5])),
        mu=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 5)) if is_closed else None,
        oversample=draw(st.integers(0, 1)),
        cells=cells,
        standalone=tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        policy=policy,
        rho_min=draw(st.sampled_from([0.1, 0.25, 1.0])),
        hold_s=draw(st.sampled_from([0.0, 5.0])),
        streaming=draw(st.booleans()),
        train_cells=draw(st.integers(1, len(cells) - 1)),
        launch_order=draw(st.sampled_from(["fifo", "longest_first"])),
    )
    times = st.sampled_from([0.0, 0.5, 7.0])
    workload = WorkloadSettings(
        execution_s=draw(st.sampled_from([1.0, 20.0])),
        query_spread=draw(st.sampled_from([0.0, 0.7])),
        execution_spread=draw(st.sampled_from([0.0, 0.7])),
        deadline_s=draw(st.sampled_from([None, 15.0])),
        budget_s=draw(st.sampled_from([None, 40.0])),
        unresolved_share=draw(st.sampled_from([0.0, 0.2])),
        unresolved_groups=draw(st.sampled_from([0.4, 1.0])),
        evaluation_s=draw(times),
        evaluation_slots=draw(st.sampled_from([None, 1])),
        load_share=draw(st.sampled_from([0.0, 0.5])),
        contention=draw(st.sampled_from([0.0, 0.5])),
        train_rank_s=draw(st.sampled_from([0.0, 1.0, 10.0])),
        microsteps_per_group=draw(st.integers(1, 3)),
        step_s=draw(times),
        join_s=draw(times),
        broadcast_s=draw(times),
        publish_s=draw(times),
        to_training_s=draw(times),
        to_rollout_s=draw(times),
    )
    faults = Faults()
    if with_faults:
        faults = Faults(
            engine_every_s=draw(st.sampled_from([None, 30.0])),
            cell_every_s=draw(st.sampled_from([None, 60.0])),
            repair_s=10.0,
            repaired_share=draw(st.sampled_from([0.7, 1.0])),
            harness_share=draw(st.sampled_from([0.0, 0.2])),
            evaluator_share=draw(st.sampled_from([0.0, 0.3])),
        )
    return SimSetting(
        config=config,
        workload=workload,
        steps=config.steps or draw(st.integers(1, 6)),
        num_ranks=tuple(draw(st.lists(st.integers(1, 2), min_size=len(cells), max_size=len(cells)))),
        seed=draw(st.integers(0, 2**32)),
        faults=faults,
    )
