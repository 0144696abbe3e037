"""Mean staleness of long simulated runs against phi_eff + (mu − 1) / 2, for five dispatches under each policy (paper, appendix A).

A small workload with wide spreads: the identity does not depend on latencies, so any will do. Figures: `max_error`, the largest
difference of a run's mean from the formula, and `POLICY_PHI_MU`, each run's mean.

Settings: `steps` (600), `seed` (0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.graph.workload import WorkloadSettings
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.setting import simulate
from gyre.sim.simulation import SimSetting

LIMITS: Mapping[str, Limit] = {"max_error": Limit(at_most=0.02)}
DISPATCHES = ((0.5, 3), (0.5, 2), (1.5, 1), (1.0, 2), (0.25, 4))
"""(phi, mu); Colocate has standalone engines, without which extra groups would only wait."""
WORKLOAD = WorkloadSettings(
    execution_s=100.0,
    query_spread=0.6,
    execution_spread=0.5,
    deadline_s=400.0,
    budget_s=500.0,
    unresolved_share=0.01,
    unresolved_groups=0.2,
    train_rank_s=12.0,
    microsteps_per_group=2,
    step_s=2.0,
    publish_s=5.0,
    to_training_s=3.0,
    to_rollout_s=2.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    steps: int = 600
    """Steps of each run."""
    seed: int = 0
    """Seed of the draws."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Simulate the runs."""
    options = read_options(Options, settings, name="staleness")
    figures: dict[str, float | bool] = {}
    errors: list[float] = []
    for policy in ("elastic", "async", "colocate"):
        for phi, mu in DISPATCHES:
            config = SchedulerConfig(
                groups_per_step=8, group_size=2, phi=phi, mu=mu, cells=(8, 8, 8), standalone=(8,), policy=policy, train_cells=1
            )
            setting = SimSetting(config=config, workload=WORKLOAD, steps=options.steps, num_ranks=(1, 1, 1), seed=options.seed)
            mean = simulate(setting).staleness_mean
            figures[f"{policy}_{phi:g}_{mu}"] = mean
            errors.append(abs(mean - config.expected_staleness))
    return outcome("staleness", {"max_error": max(errors), **figures}, LIMITS)
