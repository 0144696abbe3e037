"""Draws of the workload: how long each execution of a group is, and what training on it costs.

A group's draws depend on the seed and its index alone. So two policies, or two settings, that are compared under one seed see the
very same queries: differences between them are theirs, not the draw's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from gyre.graph.workload import WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraw:
    """One group of the workload."""

    lengths_s: tuple[float, ...]
    """Length of each execution in a full engine, in seconds."""
    is_unresolved: tuple[bool, ...]
    """True for executions that get no valid score within the budget."""
    query_s: float
    """Mean length of an execution of its query, in seconds."""
    expected_s: float
    """What is thought about that before it runs, in seconds."""
    work_s: float
    """Least rollout work of the group, its N shortest executions, in seconds of one place in a full engine."""
    train_rank_s: float
    """Rank-seconds of training on the whole group."""


class Workload:
    """Draws groups.

    >>> workload = Workload(WorkloadSettings(execution_s=60.0), group_size=4, executions_per_group=4, seed=0)
    >>> workload.draw(7) == workload.draw(7), workload.draw(7) == workload.draw(8)
    (True, False)
    """

    def __init__(self, settings: WorkloadSettings, *, group_size: int, executions_per_group: int, seed: int) -> None:
        self.settings = settings
        self._group_size = group_size
        self._num_executions = executions_per_group
        self._seed = seed

    def draw(self, group_index: int) -> GroupDraw:
        """The group of an index."""
        s = self.settings
        rng = np.random.default_rng([self._seed, group_index])
        normals = rng.standard_normal(self._num_executions + 2)
        place = rng.random()
        usual_s = s.execution_s / (1 + s.hard_share * (s.hard_times - 1))
        median_s = usual_s * exp(normals[0] * s.query_spread - (s.query_spread**2 + s.execution_spread**2) / 2)
        if place < s.hard_share:
            median_s *= s.hard_times
        lengths = median_s * np.exp(normals[2:] * s.execution_spread)
        mean_s = median_s * exp(s.execution_spread**2 / 2)
        share = s.unresolved_share / s.unresolved_groups if place < s.unresolved_groups else 0.0
        lengths_s = tuple(lengths.tolist())
        return GroupDraw(
            lengths_s=lengths_s,
            is_unresolved=tuple((rng.random(self._num_executions) < share).tolist()) if share else (False,) * self._num_executions,
            query_s=mean_s,
            expected_s=mean_s * exp(normals[1] * s.estimate_spread),
            work_s=self._work_of(sorted(lengths_s)[: self._group_size]),
            train_rank_s=self._training_of(lengths_s[: self._group_size]),
        )

    def _work_of(self, lengths_s: Sequence[float]) -> float:
        """Length that is generated: nothing is after the harness deadline, which a full engine reaches first."""
        limit = self.settings.deadline_s or float("inf")
        return sum(min(length, limit) for length in lengths_s)

    def _training_of(self, lengths_s: tuple[float, ...]) -> float:
        s = self.settings
        follows = s.train_spread_by_length
        return s.train_rank_s * (follows * self._work_of(lengths_s) / s.execution_s + (1 - follows) * len(lengths_s))
