"""A pipeline's schedule in virtual time: the live run's `Scheduler` and `ClaimQueue`, with models in place of engines and learners.

One event after another is told to the scheduler, every decision is performed, and what must follow is put on the clock. The result is
a function of setting and seed alone. If nothing can happen any more and the run is not over, that is an error which names who waits
for what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gyre.errors import SimulationError
from gyre.graph.workload import WorkloadSettings
from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig, cell_engine
from gyre.scheduler.scheduler import Scheduler
from gyre.sim.breakage import BreakageModel
from gyre.sim.clock import VirtualClock
from gyre.sim.faults import FaultDraws, Faults
from gyre.sim.journal import Journal
from gyre.sim.outcome import Outcome
from gyre.sim.rollout import RolloutModel
from gyre.sim.training import TrainingModel
from gyre.sim.workload import Workload

MAX_EVENTS_WITHOUT_TIME = 1_000_000
"""Events at one instant after which a simulation is taken to be caught in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSetting:
    """What is simulated."""

    config: SchedulerConfig
    """Settings of the scheduler; `steps` None: open horizon."""
    workload: WorkloadSettings
    """What things cost."""
    steps: int
    """Steps after which the simulation ends; with a closed horizon it ends when the run does."""
    num_ranks: tuple[int, ...]
    """Ranks of each cell."""
    seed: int = 0
    """Seed of the draws."""
    faults: Faults = field(default_factory=Faults)
    """What breaks."""


class Simulation:
    """One run in virtual time."""

    def __init__(self, setting: SimSetting) -> None:
        config = setting.config
        self.setting = setting
        self.clock = VirtualClock()
        self.scheduler = Scheduler(config)
        self.journal = Journal(num_cells=len(config.cells))
        faults = FaultDraws(setting.faults, seed=setting.seed)
        workload = Workload(
            setting.workload, group_size=config.group_size, executions_per_group=config.executions_per_group, seed=setting.seed
        )
        shared: dict[str, Any] = {"scheduler": self.scheduler, "clock": self.clock, "journal": self.journal, "tell": self.tell}
        self.rollout = RolloutModel(config, workload=workload, faults=faults, **shared)
        self.training = TrainingModel(setting.workload, num_ranks=setting.num_ranks, rollout=self.rollout, **shared)
        self.breakage = BreakageModel(config, draws=faults, rollout=self.rollout, training=self.training, **shared)
        self.failure = ""
        """Why the scheduler stopped the run; empty: it did not."""
        self._is_finished = False
        self._num_at_this_instant = 0
        self._performers: dict[type[d.Decision], Callable[[Any], None]] = {
            d.Dispatch: self.rollout.dispatch,
            d.Launch: self.rollout.launch,
            d.Cancel: self.rollout.cancel,
            d.Reroute: lambda decision: self.rollout.move(decision.moves),
            d.ToTraining: self._to_training,
            d.ToRollout: self._to_rollout,
            d.BeginStep: self.training.begin_step,
            d.Join: self.training.join,
            d.Consume: self.training.consume,
            d.CloseWindow: lambda decision: None,
            d.Discard: self.training.discard,
            d.Reduce: self.training.reduce,
            d.Broadcast: self.training.broadcast,
            d.Publish: self.training.publish,
            d.RetainCore: lambda decision: None,
            d.Fail: self._fail,
            d.Finish: self._finish,
        }

    def run(self) -> Outcome:
        """Let time pass until the run is over.

        Raises:
            SimulationError: nothing can happen any more, or the scheduler gave up.
        """
        self._perform(self.scheduler.start(now_s=0.0))
        self._after_event()
        self.breakage.start()
        while not self._is_over:
            self._advance()
            if self.failure:
                raise SimulationError(f"the simulated run stopped: {self.failure}")
        self.rollout.close()
        self.journal.close(now_s=self.clock.now_s)
        return Outcome.of(self.setting, scheduler=self.scheduler, journal=self.journal, end_s=self.clock.now_s)

    @property
    def _is_over(self) -> bool:
        if self.setting.config.steps is None:
            return self.scheduler.version >= self.setting.steps
        return self._is_finished

    def _advance(self) -> None:
        wake_s = self.scheduler.find_wake_s() if self.setting.config.hold_s else None
        next_s = self.clock.next_s
        if wake_s is not None and (next_s is None or wake_s < next_s):
            self.clock.at(wake_s, lambda _: self.tell(self.scheduler.tick))
        before_s = self.clock.now_s
        if not self.clock.advance():
            raise SimulationError(self._describe_deadlock())
        self._num_at_this_instant = self._num_at_this_instant + 1 if self.clock.now_s == before_s else 0
        if self._num_at_this_instant > MAX_EVENTS_WITHOUT_TIME:
            raise SimulationError(self._describe_deadlock())
        self._after_event()

    def _after_event(self) -> None:
        if self.setting.workload.contention:
            self._share_machine()
        self.rollout.appoint()

    # ---- decisions -------------------------------------------------------------------------------------------------------------

    def tell(self, event: Callable[..., tuple[d.Decision, ...]], *args: Any, **kwargs: Any) -> None:
        """Tell the scheduler what happened and perform what it decides."""
        now_s = self.clock.now_s
        self.journal.note(event.__name__, args[0] if args else "", now_s)
        self._perform(event(*args, **kwargs, now_s=now_s))
        self.journal.set_waterlevel(self.scheduler.waterlevel, now_s=now_s)

    def _perform(self, decisions: tuple[d.Decision, ...]) -> None:
        for decision in decisions:
            self.journal.note(type(decision).__name__, _subject_of(decision), self.clock.now_s)
            self._performers[type(decision)](decision)

    def _to_training(self, decision: d.ToTraining) -> None:
        self.rollout.move(decision.moves)
        self._switch(decision.cell, to="training")

    def _to_rollout(self, decision: d.ToRollout) -> None:
        self.training.stop(decision.cell)
        self._switch(decision.cell, to="rollout")

    def _switch(self, cell: int, *, to: str) -> None:
        workload = self.setting.workload
        self.journal.role_changes += 1
        self.journal.set_role(cell, "to_training" if to == "training" else "to_rollout", now_s=self.clock.now_s)
        delay_s = workload.to_training_s if to == "training" else workload.to_rollout_s
        self.clock.after(delay_s, self._switched, (cell, to, self.breakage.num_losses(cell)))

    def _switched(self, switch: tuple[int, str, int]) -> None:
        cell, to, num_losses = switch
        if num_losses != self.breakage.num_losses(cell):
            return
        self.journal.set_role(cell, "training" if to == "training" else "rollout", now_s=self.clock.now_s)
        self.tell(self.scheduler.switched_to_training if to == "training" else self.scheduler.switched_to_rollout, cell)

    def _finish(self, decision: d.Finish) -> None:
        self._is_finished = True

    def _fail(self, decision: d.Fail) -> None:
        self.failure = decision.reason

    # ---- sharing and waiting ---------------------------------------------------------------------------------------------------

    def _share_machine(self) -> None:
        """Cells that share a machine slow each other down: engines that serve anyone, and learners that work on a micro-step."""
        engines, learners = self.rollout.engines, self.training.find_busy()
        busy = {name for name, engine in engines.items() if engine.num_running} | {cell_engine(cell) for cell in learners}
        slow = 1.0 + self.setting.workload.contention * max(0, len(busy) - 1)
        self.rollout.share(dict.fromkeys(engines, slow))
        self.training.slowdown = slow

    def _describe_deadlock(self) -> str:
        s = self.scheduler
        roles = ", ".join(f"cell {cell} {role}" for cell, role in enumerate(s.roles))
        return (
            f"the simulated run stands still at {self.clock.now_s:.0f} s: after version {s.version} the burst is in phase '{s.phase}' "
            f"with {s.num_ready} ready groups and waterlevel {s.waterlevel} ({roles}); {self.training.describe_waiting()}; "
            f"{self.rollout.describe_waiting()}; give it more places, or a lower rho_min"
        )


def _subject_of(decision: d.Decision) -> object:
    """What a decision is about, for the hash."""
    match decision:
        case d.Launch():
            return decision.execution_id, decision.engine
        case d.Consume():
            return decision.group_id
        case d.ToTraining():
            return decision.cell, decision.moves
        case d.ToRollout() | d.Join():
            return decision.cell
        case d.Dispatch():
            return decision.first_group_index, decision.num_groups
        case _:
            return ""
