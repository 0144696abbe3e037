"""What came out of a simulation: time, staleness, utilisation, roles, and how far from the work bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gyre.scheduler.scheduler import Scheduler
from gyre.sim.journal import Journal, RoleSpan, StepRecord

if TYPE_CHECKING:
    from gyre.sim.simulation import SimSetting

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation."""

    duration_s: float
    """From start to the last step's commit, or to the end of the run where its horizon is closed."""
    staleness_mean: float
    """Mean of v_t − v_d over the consumed groups."""
    staleness: Mapping[int, int]
    """Consumed groups by v_t − v_d."""
    work_bound_s: float
    """Time that the rollout and training work of the consumed groups would take, spread without a gap over all cells."""
    role_shares: Mapping[str, float]
    """Share of the cells' time in each role."""
    rollout_utilisation: float
    """Share of the places in rollout that were taken."""
    training_utilisation: float
    """Share of the cells' time in training that they worked on micro-steps."""
    role_changes: int
    """Decisions that sent a cell to the other role."""
    waterlevels: Sequence[tuple[float, int]]
    """(time, waterlevel) whenever it changed."""
    spans: Sequence[RoleSpan]
    """Roles of each cell over time."""
    steps: Sequence[StepRecord]
    """Steps, in order."""
    execution_mean_s: float
    """Mean duration of an execution."""
    group_max_mean_s: float
    """Mean over groups of the longest of these."""
    group_maxima_s: Sequence[float]
    """The longest duration of each ready group."""
    ends: Mapping[str, int]
    """Executions by how they ended; 'unresolved' counts those again that got no score."""
    event_hash: str
    """Equal for two simulations exactly when they did the same."""

    @classmethod
    def of(cls, setting: SimSetting, *, scheduler: Scheduler, journal: Journal, end_s: float) -> Outcome:
        """Compute everything from what was written down."""
        in_role = journal.time_in_role()
        cell_s = sum(in_role.values())
        training_s = in_role.get("training", 0.0)
        durations, maxima = journal.durations_s, journal.group_maxima_s
        return cls(
            duration_s=end_s,
            staleness_mean=scheduler.staleness.mean,
            staleness=dict(sorted(scheduler.staleness.histogram.items())),
            work_bound_s=find_work_bound_s(setting, length_s=journal.length_s, train_rank_s=journal.train_rank_s),
            role_shares={role: in_role.get(role, 0.0) / cell_s for role in ("rollout", "to_training", "training", "to_rollout", "lost")},
            rollout_utilisation=_share(journal.slot_s, _places_s(setting, journal, end_s)),
            training_utilisation=_share(sum(journal.busy_s.values()), training_s),
            role_changes=journal.role_changes,
            waterlevels=journal.waterlevels,
            spans=journal.spans,
            steps=journal.steps,
            execution_mean_s=_mean(durations),
            group_max_mean_s=_mean(maxima),
            group_maxima_s=maxima,
            ends=dict(journal.ends),
            event_hash=journal.event_hash,
        )

    @property
    def hours(self) -> float:
        """The duration in hours."""
        return self.duration_s / SECONDS_PER_HOUR

    @property
    def over_work_bound(self) -> float:
        """How many times the work bound it took; 1 cannot be beaten."""
        return _share(self.duration_s, self.work_bound_s)

    def share_of_groups_from(self, duration_s: float) -> float:
        """Share of ready groups whose longest execution took so long or longer."""
        return _share(sum(longest >= duration_s for longest in self.group_maxima_s), len(self.group_maxima_s))

    def share_ended(self, how: str) -> float:
        """Share of executions that ended so: 'completed', 'timeout', 'failed', 'cancelled'; or 'unresolved'."""
        closed = sum(count for kind, count in self.ends.items() if kind != "unresolved")
        return _share(self.ends.get(how, 0), closed)

    def mean_expected_s_by_place(self) -> list[float]:
        """Mean expected length of a group's query in the first, second, … step of a burst: equal where no step gets the short ones."""
        places: dict[int, list[float]] = {}
        for step in self.steps:
            places.setdefault(step.version - step.burst - 1, []).append(step.expected_s)
        return [_mean(values) for _, values in sorted(places.items())]


def find_work_bound_s(setting: SimSetting, *, length_s: float, train_rank_s: float) -> float:
    """The least time for rollout and training work on these cells: every place and every rank busy all the time.

    Standalone engines can only roll out, so training alone on the cells is a bound, too.
    """
    cells, standalone = setting.config.cells, setting.config.standalone
    places_per_cell = sum(cells) / len(cells)
    ranks_per_cell = sum(setting.num_ranks) / len(cells)
    rollout_cell_s = length_s / places_per_cell
    training_cell_s = train_rank_s / ranks_per_cell
    num_with_standalone = len(cells) + sum(standalone) / places_per_cell
    return max((rollout_cell_s + training_cell_s) / num_with_standalone, training_cell_s / len(cells))


def _places_s(setting: SimSetting, journal: Journal, end_s: float) -> float:
    cells = sum(setting.config.cells[span.cell] * (span.end_s - span.start_s) for span in journal.spans if span.role == "rollout")
    return cells + sum(setting.config.standalone) * end_s


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
