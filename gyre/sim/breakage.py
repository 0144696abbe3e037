"""Performs faults in a simulated run: engines that go and come back, satellites that are lost and recovered."""

from __future__ import annotations

from collections import Counter

from gyre.scheduler.config import SchedulerConfig, cell_engine
from gyre.scheduler.scheduler import Scheduler
from gyre.scheduler.waterlevel import CORE
from gyre.sim.clock import VirtualClock
from gyre.sim.faults import FaultDraws
from gyre.sim.journal import Journal
from gyre.sim.rollout import RolloutModel, Tell
from gyre.sim.training import TrainingModel


class BreakageModel:
    """Breaks things as `Faults` says."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        draws: FaultDraws,
        rollout: RolloutModel,
        training: TrainingModel,
        scheduler: Scheduler,
        clock: VirtualClock,
        journal: Journal,
        tell: Tell,
    ) -> None:
        self._num_cells = len(config.cells)
        self._draws = draws
        self._rollout = rollout
        self._training = training
        self._scheduler = scheduler
        self._clock = clock
        self._journal = journal
        self._tell = tell
        self._losses: Counter[int] = Counter()
        self._down: set[str] = set()

    def num_losses(self, cell: int) -> int:
        """How often a cell was lost: what was under way in it before is void."""
        return self._losses[cell]

    def start(self) -> None:
        """Let time run until the first fault of each kind."""
        self._after_engine()
        self._after_cell()

    def _after_engine(self) -> None:
        if (mean_s := self._draws.faults.engine_every_s) is not None:
            self._clock.after(self._draws.next_after_s(mean_s), self._break_engine)

    def _after_cell(self) -> None:
        if (mean_s := self._draws.faults.cell_every_s) is not None:
            self._clock.after(self._draws.next_after_s(mean_s), self._break_cell)

    def _break_engine(self, _: None) -> None:
        cells, routes = self._scheduler.cells, self._scheduler.routes
        serving = [name for name, engine in routes.engines.items() if engine.is_open and cells.is_serving(name)]
        if serving:
            name = self._draws.choose(sorted(serving))
            self._down.add(name)
            self._rollout.lose_engine(name)
            self._tell(self._scheduler.engine_down, name)
            self._clock.after(self._draws.next_after_s(self._draws.faults.repair_s), self._repair_engine, name)
        self._after_engine()

    def _repair_engine(self, name: str) -> None:
        if name in self._down:
            self._down.discard(name)
            self._tell(self._scheduler.engine_up, name)

    def _break_cell(self, _: None) -> None:
        living = [cell for cell in range(self._num_cells) if cell != CORE and self._scheduler.roles[cell] != "lost"]
        if living:
            self._lose_cell(int(self._draws.choose([str(cell) for cell in living])))
        self._after_cell()

    def _lose_cell(self, cell: int) -> None:
        self._losses[cell] += 1
        self._down.discard(cell_engine(cell))
        self._rollout.lose_engine(cell_engine(cell))
        self._training.stop(cell)
        self._journal.set_role(cell, "lost", now_s=self._clock.now_s)
        self._tell(self._scheduler.cell_lost, cell)
        if self._draws.happens(self._draws.faults.repaired_share):
            self._clock.after(self._draws.next_after_s(self._draws.faults.repair_s), self._recover_cell, cell)

    def _recover_cell(self, cell: int) -> None:
        self._tell(self._scheduler.cell_recovered, cell)
        self._journal.set_role(cell, "rollout", now_s=self._clock.now_s)
        self._tell(self._scheduler.switched_to_rollout, cell)
