"""From a plan to what is simulated, and the same dispatch under the three placements.

Async, Colocate and elastic placement are compared at one mean staleness s = phi_eff + (mu − 1) / 2: Async takes (phi, mu) = (s, 1),
Colocate (0, 2 s + 1), and the elastic one its own numbers, or (0.5, 2 s) where the pipeline's policy is another (semantics.md, 2).
The baselines train without streaming, as the paper's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gyre.errors import UserError
from gyre.graph.plan import Plan
from gyre.graph.workload import WorkloadSettings
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.outcome import Outcome
from gyre.sim.simulation import SimSetting, Simulation

PROBE_STEPS = 12
"""Steps of the simulations that find the best split of the Async baseline."""


def read_setting(plan: Plan, workload: WorkloadSettings) -> SimSetting:
    """What to simulate for a plan.

    Raises:
        UserError: the plan has nothing that a simulation could time.
    """
    config = plan.scheduler
    if config is None:
        raise UserError(f"pipeline '{plan.pipeline}' dispatches nothing, so there is no schedule to simulate", hint="add a 'dispatch'")
    if not plan.cells:
        raise UserError(f"pipeline '{plan.pipeline}' uses no cells, so there is nothing to time", hint="add a 'harness_proxy'")
    dispatch = _settings_of(plan, "dispatch")
    steps = config.steps
    if steps is None and config.train:
        raise UserError(f"pipeline '{plan.pipeline}' has no end to simulate", hint="add --set steps=48, or steps to dispatch's args")
    if dispatch.get("horizon") == "open" and config.train:
        config = replace(config, steps=None)
    return SimSetting(
        config=config,
        workload=workload,
        steps=steps or 0,
        num_ranks=tuple(_num_ranks(cell.layout) for cell in plan.cells),
        seed=int(dispatch.get("seed", 0)),
    )


def _settings_of(plan: Plan, operator: str) -> Mapping[str, Any]:
    return next((node.settings for node in plan.nodes if node.operator == operator), {})


def _num_ranks(layout: Mapping[str, int]) -> int:
    return layout["tp"] * layout["pp"] * layout["cp"] * layout["dp"]


def simulate(setting: SimSetting) -> Outcome:
    """Run one simulation."""
    return Simulation(setting).run()


def place_elastic(config: SchedulerConfig) -> SchedulerConfig:
    """The elastic placement of a dispatch; a pipeline whose own policy is elastic keeps its numbers."""
    if config.policy == "elastic":
        return config
    staleness = config.expected_staleness
    mu = max(1, round(2 * staleness))
    return replace(config, policy="elastic", phi=max(0.0, staleness - (mu - 1) / 2), mu=mu, streaming=True, train_cells=1)


def place_async(config: SchedulerConfig, *, train_cells: int, streaming: bool = False) -> SchedulerConfig:
    """The Async baseline at the same mean staleness."""
    return replace(config, policy="async", phi=config.expected_staleness, mu=1, streaming=streaming, train_cells=train_cells)


def place_colocate(config: SchedulerConfig, *, streaming: bool = False) -> SchedulerConfig:
    """The Colocate baseline at the same mean staleness, or the next lower that whole steps allow."""
    mu = int(2 * config.expected_staleness + 1 + 1e-9)
    return replace(config, policy="colocate", phi=0.0, mu=mu, streaming=streaming, train_cells=1)


def find_most_training(config: SchedulerConfig) -> int:
    """Most cells that can train under Async with an engine left for rollout."""
    return len(config.cells) if config.standalone else len(config.cells) - 1


def find_best_split(setting: SimSetting) -> int:
    """Cells in training under which the Async baseline is fastest."""
    config = setting.config
    steps = min(setting.steps, PROBE_STEPS)

    def time_of(train_cells: int) -> float:
        probe = replace(place_async(config, train_cells=train_cells), steps=None)
        return simulate(replace(setting, config=probe, steps=steps)).duration_s

    return min(range(1, find_most_training(config) + 1), key=time_of)


def place_all(setting: SimSetting, *, train_cells: int | None) -> dict[str, SimSetting]:
    """One setting per policy, all with the pipeline's mean staleness.

    Args:
        setting: the pipeline's own.
        train_cells: cells in training under Async; None: the best split is found by simulation.

    Raises:
        UserError: there are not so many cells.
    """
    config = setting.config
    placed = {"elastic": place_elastic(config)}
    most = find_most_training(config)
    if train_cells is not None and train_cells > max(1, most):
        message = f"train_cells={train_cells} cannot be compared: under 'async' at most {most} of these cells can train"
        raise UserError(message, hint="give 'elastic' fewer train_cells, or none to have the best split found")
    if most:
        placed["async"] = place_async(config, train_cells=train_cells or find_best_split(setting))
    placed["colocate"] = place_colocate(config)
    return {name: replace(setting, config=own) for name, own in placed.items()}
