"""What may break in a simulated run, at random: engines, cells, harnesses, evaluators.

All times between faults are exponential. With every rate at its default nothing breaks, and a simulation draws no random number here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often things break."""

    engine_every_s: float | None = None
    """Mean time between losses of an engine that comes back by itself; None: never."""
    cell_every_s: float | None = None
    """Mean time between losses of a satellite, its learner included; None: never."""
    repair_s: float = 60.0
    """Mean time until an engine or a cell is back."""
    repaired_share: float = 1.0
    """Share of lost cells that come back at all."""
    harness_share: float = 0.0
    """Share of executions whose harness crashes after a random part of its time."""
    evaluator_share: float = 0.0
    """Share of evaluations that fail and are repeated once, after as long again."""


class FaultDraws:
    """Draws what breaks when, apart from the workload's draws, so that a run with faults sees the same queries as one without."""

    def __init__(self, faults: Faults, *, seed: int) -> None:
        self.faults = faults
        self._rng = random.Random(f"faults {seed}")

    def next_after_s(self, mean_s: float) -> float:
        """Time until the next fault, or until a repair."""
        return self._rng.expovariate(1.0 / mean_s)

    def choose(self, among: list[str]) -> str:
        """Which of them breaks."""
        return self._rng.choice(among)

    def happens(self, share: float) -> bool:
        """Whether something of this share happens now."""
        return share > 0 and self._rng.random() < share

    def part(self) -> float:
        """Part of an execution after which its harness crashes."""
        return self._rng.random()
