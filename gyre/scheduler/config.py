"""Settings of the scheduler: the numbers of dispatch, of the cells, and of the placement policy.

Paper names are kept: `phi` and `mu` of boundary dispatch (section 2.2), `rho_min` of the supply check (section 4.2). The defaults
of a pipeline live in its operators' signatures; here are those of the pure core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

PolicyName = Literal["elastic", "async", "colocate"]
LaunchOrder = Literal["fifo", "longest_first"]
DispatchMode = Literal["boundary", "continuous"]


def cell_engine(cell: int) -> str:
    """Name of the engine of a cell.

    >>> cell_engine(2)
    'cell2'
    """
    return f"cell{cell}"


def standalone_engine(index: int) -> str:
    """Name of a standalone engine."""
    return f"standalone{index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Everything the scheduler is told before it starts.

    >>> config = SchedulerConfig(groups_per_step=8, group_size=8, phi=0.5, mu=2, steps=3, cells=(8, 8, 8))
    >>> config.extra_groups, config.phi_eff, config.expected_staleness, config.total_groups
    (4, 0.5, 1.0, 24)
    """

    groups_per_step: int
    """B: groups that one optimizer update consumes."""
    group_size: int
    """N: executions whose outcomes a group needs."""
    phi: float = 0.0
    """Extra dispatch, in units of B groups."""
    mu: int = 1
    """Steps between two publications."""
    steps: int | None = None
    """S: optimizer updates of the run; the horizon is closed to S * B groups. None: open horizon, no end."""
    oversample: int = 0
    """Executions admitted per group beyond N; the surplus is cancelled once N outcomes are valid."""
    cells: tuple[int, ...] = (1,)
    """Concurrent executions that each cell's engine can serve; cell 0 is the core."""
    standalone: tuple[int, ...] = ()
    """Concurrent executions of each engine that only serves rollouts."""
    policy: PolicyName = "elastic"
    """Who leaves rollout when."""
    rho_min: float = 0.25
    """Supply check: share of B groups that must be ready."""
    hold_s: float = 0.0
    """Supply check: how long they must have been ready, in seconds."""
    streaming: bool = True
    """A burst begins before all its groups are ready, and each step takes them as they come."""
    train_cells: int = 1
    """Cells in training under 'async'."""
    launch_order: LaunchOrder = "fifo"
    """Order of launches: as admitted, or longest expected duration first within one dispatch version."""
    dispatch: DispatchMode = "boundary"
    """'boundary': after each publication; 'continuous': one group for each consumed one."""
    train: bool = True
    """False: evaluation; every cell stays in rollout and groups just close."""
    num_groups: int | None = None
    """Evaluation only: groups to admit in all; None: steps * B."""

    def __post_init__(self) -> None:
        problems = list(self._find_problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _find_problems(self) -> Iterator[str]:
        if self.groups_per_step < 1 or self.group_size < 1:
            yield "groups_per_step and group_size must be at least 1"
        if self.mu < 1 or self.phi < 0:
            yield f"mu must be at least 1 and phi at least 0, got mu={self.mu}, phi={self.phi}"
        if self.oversample < 0 or self.hold_s < 0:
            yield "oversample and hold_s must not be negative"
        if not 0 < self.rho_min <= 1:
            yield f"rho_min must be above 0 and at most 1, got {self.rho_min}"
        if not self.cells or min((*self.cells, *self.standalone)) < 1:
            yield "there must be at least one cell, and every engine must serve at least one execution"
        if self.steps is not None and self.steps < 1:
            yield f"steps must be at least 1, got {self.steps}"
        if self.policy == "async" and self.train:
            if not 0 < self.train_cells <= len(self.cells):
                yield f"train_cells must be between 1 and the number of cells ({len(self.cells)}), got {self.train_cells}"
            if self.train_cells == len(self.cells) and not self.standalone:
                yield "policy 'async' leaves no engine for rollout: lower train_cells, or add cells or standalone engines"
        if not self.train and self.total_groups is None:
            yield "an evaluation needs to know how many groups to admit: give num_groups or steps"

    @property
    def extra_groups(self) -> int:
        """q: the extra dispatch in groups, phi * B rounded half up."""
        return floor(self._groups_of(self.phi) + Fraction(1, 2))

    @property
    def phi_eff(self) -> float:
        """The extra dispatch that whole groups allow, q / B."""
        return self.extra_groups / self.groups_per_step

    @property
    def expected_staleness(self) -> float:
        """Stationary mean of v_t − v_d under boundary dispatch: phi_eff + (mu − 1) / 2."""
        return self.phi_eff + (self.mu - 1) / 2

    @property
    def executions_per_group(self) -> int:
        """Executions admitted per group: N and the surplus."""
        return self.group_size + self.oversample

    @property
    def total_groups(self) -> int | None:
        """Groups of the whole run; None for an open horizon."""
        if not self.train and self.num_groups is not None:
            return self.num_groups
        return None if self.steps is None else self.steps * self.groups_per_step

    @property
    def min_ready_groups(self) -> int:
        """Groups that the supply check asks for: ⌈rho_min * B⌉, or all B where steps do not stream."""
        return ceil(self._groups_of(self.rho_min)) if self.streaming else self.groups_per_step

    def _groups_of(self, share: float) -> Fraction:
        """A share of B groups, of the number as it is written: 0.07 of 100 is 7, though 0.07 * 100 as floats is a little more."""
        return Fraction(str(share)) * self.groups_per_step

    def burst_end(self, published_version: int) -> int:
        """Version at which the burst after `published_version` is published: mu steps on, or the last step."""
        end = published_version + self.mu
        return end if self.steps is None else min(end, self.steps)

    def groups_due(self, *, published_version: int, num_consumed: int) -> int:
        """Groups admitted in all by now, cut to the total.

        Boundary dispatch: q + mu * B at start, and as many more as the published steps have consumed; continuous dispatch: one more
        for each consumed group; an evaluation admits everything at once.
        """
        if not self.train:
            return self.total_groups or 0
        replaced = num_consumed if self.dispatch == "continuous" else published_version * self.groups_per_step
        due = self.extra_groups + self.mu * self.groups_per_step + replaced
        return due if self.total_groups is None else min(due, self.total_groups)

    def find_warnings(self) -> Iterator[str]:
        """Settings that are allowed and probably not meant."""
        if self.policy == "colocate" and self.extra_groups and not self.standalone:
            yield (
                f"policy 'colocate' with phi={self.phi} and no standalone engine: the pool trains only when every execution has "
                "ended, so the extra groups just wait; set phi to 0 or add standalone engines"
            )
