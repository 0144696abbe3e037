"""Cells, their roles and order, and the capacity that waterlevel control compares with (paper sections 4.1 and 4.2).

Cells follow a fixed order, the core first. With the first `m` living cells in training the remaining rollout capacity is
`C(m) = c_s + sum of c_k over the others`; cell `m` may leave rollout only while `waterlevel <= C(m + 1)`. A lost cell leaves the
order; one that comes back serves rollouts at once and re-enters the order at a burst boundary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine

Role = Literal["rollout", "leaving", "training", "returning", "lost"]
CORE = 0
"""The core cell: sole owner of the authoritative weights and the optimizer."""
_OUT = ("leaving", "training")


class CellOrder:
    """Roles of the cells, and the order in which they leave rollout.

    >>> cells = CellOrder(SchedulerConfig(groups_per_step=1, group_size=1, cells=(4, 4, 4), standalone=(2,)))
    >>> [cells.capacity(m) for m in range(4)]
    [14, 10, 6, 2]
    >>> cells.roles[0] = "training"
    >>> cells.next_cell, cells.capacity_after([1])
    (1, 6)
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.roles: list[Role] = ["rollout"] * len(config.cells)
        self.order = list(range(len(config.cells)))
        """Living cells that may train, in the order in which they leave."""
        self.down: set[str] = set()
        """Engines that do not answer."""
        self._capacities = config.cells
        self._standalone = {standalone_engine(i): c for i, c in enumerate(config.standalone)}

    def is_out(self, cell: int) -> bool:
        """True while a cell trains or is on its way to."""
        return self.roles[cell] in _OUT

    @property
    def next_cell(self) -> int | None:
        """The cell that may leave next; None where all are out or it is still returning."""
        for cell in self.order:
            if self.roles[cell] not in _OUT:
                return cell if self.roles[cell] == "rollout" else None
        return None

    @property
    def is_changing(self) -> bool:
        """True while any cell is between two roles."""
        return "leaving" in self.roles or "returning" in self.roles

    def capacity(self, num_training: int) -> int:
        """C(m): executions that can be served with the first m cells of the order in training."""
        return self._places_without(self.order[:num_training])

    def capacity_after(self, leaving: Collection[int]) -> int:
        """C once these cells have left as well; C(m + 1) where the cells that are out are the first m."""
        return self._places_without({*leaving, *(cell for cell, role in enumerate(self.roles) if role in _OUT)})

    def _places_without(self, out: Collection[int]) -> int:
        places = sum(self._standalone.values())
        for cell, capacity in enumerate(self._capacities):
            if cell not in out and self.roles[cell] != "lost":
                places += capacity
        return places - self._places_down(out)

    def _places_down(self, out: Collection[int]) -> int:
        """Places of engines that do not answer, as far as they would count."""
        if not self.down:
            return 0
        counted = (cell for cell, role in enumerate(self.roles) if cell not in out and role != "lost")
        cells = (self._capacities[cell] for cell in counted if cell_engine(cell) in self.down)
        return sum(cells) + sum(c for name, c in self._standalone.items() if name in self.down)

    @property
    def can_ever_serve(self) -> bool:
        """True where some engine serves rollouts, will once it has switched, or may come back up."""
        return bool(self._standalone) or "rollout" in self.roles or "returning" in self.roles

    def is_serving(self, engine: str) -> bool:
        """True for a standalone engine, and for the engine of a cell in rollout."""
        return engine in self._standalone or any(cell_engine(c) == engine and role == "rollout" for c, role in enumerate(self.roles))

    def find_satellites_in_training(self) -> list[int]:
        """Satellites that have switched to training, in order."""
        return [cell for cell, role in enumerate(self.roles) if role == "training" and cell != CORE]

    def lose(self, cell: int) -> None:
        """Take a lost cell out of the order."""
        self.roles[cell] = "lost"
        self.down.discard(cell_engine(cell))
        self.order = [other for other in self.order if other != cell]

    def rebuild_order(self) -> None:
        """At a burst boundary: every living cell may train again."""
        self.order = [cell for cell, role in enumerate(self.roles) if role != "lost"]
