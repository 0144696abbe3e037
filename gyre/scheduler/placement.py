"""Placement policies: which cells leave rollout when, and whether the core stays (paper sections 2.2, 4.2 and 6.1).

`Elastic` is the paper's waterlevel control; `Async` and `Colocate` are its baselines. All three see the same `PlacementView` of the
same counters and answer with what should happen now; the scheduler performs it, once every displaced execution has a place.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from gyre.scheduler.burst import Burst
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.waterlevel import CORE, CellOrder


class Departure(NamedTuple):
    """Cells that should leave rollout together now."""

    cells: tuple[int, ...]
    """In order; empty: none."""
    reason: str
    """Why, for the log."""


STAY = Departure((), "")


class PlacementView(Protocol):
    """What a policy may look at."""

    @property
    def config(self) -> SchedulerConfig:
        """The run's settings."""
        ...

    @property
    def cells(self) -> CellOrder:
        """Roles, order and capacities."""
        ...

    @property
    def demand(self) -> int:
        """The waterlevel, and executions of groups whose admission has been ordered."""
        ...

    @property
    def num_ready(self) -> int:
        """Ready groups that no step has taken."""
        ...

    @property
    def is_supplied(self) -> bool:
        """True while the supply check holds."""
        ...

    @property
    def burst(self) -> Burst:
        """The burst, running or next."""
        ...


class Placement(Protocol):
    """A placement policy."""

    returns_satellites: ClassVar[bool]
    """True where satellites go back to rollout at the end of a burst."""

    def find_departure(self, view: PlacementView) -> Departure:
        """Cells that should leave rollout now."""
        ...

    def may_begin_step(self, view: PlacementView) -> bool:
        """True where the core, in training, may begin its next step."""
        ...

    def keeps_core(self, view: PlacementView) -> bool:
        """True where the core stays in training after a publication and its dispatch."""
        ...


def _has_burst_supply(view: PlacementView) -> bool:
    """True where steps may begin: at once when streaming, else when every group of the burst is ready.

    Without streaming a burst is one set of groups that is dealt out to its steps, so its first step waits for all of them (paper,
    section 8: "waiting for the complete burst's data before its first update").
    """
    return view.config.streaming or view.num_ready >= view.burst.num_groups_left


class Elastic:
    """The core leaves when supply and capacity hold, satellites follow in order while the burst has groups for them."""

    returns_satellites: ClassVar[bool] = True

    def find_departure(self, view: PlacementView) -> Departure:
        """The next cell in order, if the remaining capacity holds the waterlevel without it."""
        # Asked after every event: the cheap conditions come first.
        is_before_start = view.burst.is_before_start
        if not view.is_supplied or not (is_before_start or view.burst.can_use_satellites):
            return STAY
        if is_before_start and not _has_burst_supply(view):
            return STAY
        cell = view.cells.next_cell
        if cell is None or (is_before_start and cell != CORE):
            return STAY
        capacity = view.cells.capacity_after([cell])
        if view.demand > capacity:
            return STAY
        return Departure((cell,), f"waterlevel {view.demand} <= {capacity} places without cell {cell}; supply holds")

    def may_begin_step(self, view: PlacementView) -> bool:
        """At once when streaming, else when all groups of the burst are ready."""
        return _has_burst_supply(view)

    def keeps_core(self, view: PlacementView) -> bool:
        """Supply and capacity decide again, after the dispatch."""
        return view.is_supplied and view.demand <= view.cells.capacity(1)


class Async:
    """A fixed split: the first `train_cells` cells train, all others serve rollouts."""

    returns_satellites: ClassVar[bool] = False

    def find_departure(self, view: PlacementView) -> Departure:
        """The training share of the pool, whenever one of its cells is in rollout."""
        share = range(view.config.train_cells)
        cells = tuple(cell for cell in share if view.cells.roles[cell] == "rollout" and cell in view.cells.order)
        return Departure(cells, "fixed split of the pool") if cells else STAY

    def may_begin_step(self, view: PlacementView) -> bool:
        """At once when streaming, else when all groups of the burst are ready."""
        return _has_burst_supply(view)

    def keeps_core(self, view: PlacementView) -> bool:
        """Always."""
        return True


class Colocate:
    """The whole pool trains once the standalone engines can hold what still runs, and returns after the burst."""

    returns_satellites: ClassVar[bool] = True

    def find_departure(self, view: PlacementView) -> Departure:
        """All cells at once, or none."""
        cells = view.cells
        if not view.burst.is_before_start or any(cells.roles[cell] != "rollout" for cell in cells.order):
            return STAY
        capacity = cells.capacity_after(cells.order)
        if view.demand > capacity or not view.is_supplied or not _has_burst_supply(view):
            return STAY
        return Departure(tuple(cells.order), f"waterlevel {view.demand} <= {capacity} places outside the pool; supply holds")

    def may_begin_step(self, view: PlacementView) -> bool:
        """When the whole pool has switched."""
        return _has_burst_supply(view) and "leaving" not in view.cells.roles

    def keeps_core(self, view: PlacementView) -> bool:
        """Never: the pool switches as a unit."""
        return False


def make_placement(config: SchedulerConfig) -> Placement:
    """The placement policy of a run."""
    policies: dict[str, type[Elastic] | type[Async] | type[Colocate]] = {"elastic": Elastic, "async": Async, "colocate": Colocate}
    return policies[config.policy]()
