"""Table 1 of the paper in simulation: eleven ways of scheduling the first twelve steps of one workload.

Rows are parameters of `pipelines/paper/nl2repo_122b.jsonnet`; they differ in policy, dispatch and allocation and in nothing else. All
share one workload, which was fitted to the hours and to the published facts of the distribution. Figures:

- `rows` (beside the figures): hours of each row, mean over the seeds, and the paper's;
- `max_row_error`: the largest relative difference; `mean_row_error`;
- `order_ok`: every comparison that the paper draws comes out its way;
- `execution_mean_h`, `group_max_mean_h`, `groups_from_4h`, `harness_timeouts`, `overall_timeouts`: facts of the distribution, over all
  executions of a whole run of 48 steps in the base configuration.

Settings: `seeds` (8), paired over the rows; `steps` (12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.bench._paper import mean_hours, paper_setting, simulate_paired

PAPER_HOURS: Mapping[str, float] = {
    "A0": 25.1,
    "A1": 27.0,
    "A2": 32.6,
    "A3": 22.2,
    "C0": 23.2,
    "C1": 22.6,
    "C2": 19.2,
    "C3": 20.7,
    "E0": 16.12,
    "E1": 17.9,
    "E2": 16.47,
}
"""The column that is compared with."""
ORDER = (
    ("A0", "A1"),
    ("A1", "A2"),
    ("A3", "A0"),
    ("C1", "C0"),
    ("C2", "C1"),
    ("C2", "C3"),
    *zip(["E0", "E2", "E1", "C2"], ["E2", "E1", "C2", "A3"], strict=True),
)
"""Pairs of rows of which the first is faster."""
LIMITS: Mapping[str, Limit] = {
    "max_row_error": Limit(at_most=0.08),
    "order_ok": Limit(at_least=1),
    "execution_mean_h": Limit(at_least=1.93 * 0.97, at_most=1.93 * 1.03),
    "group_max_mean_h": Limit(at_least=2.96 * 0.97, at_most=2.96 * 1.03),
    "groups_from_4h": Limit(at_least=0.075, at_most=0.115),
    "harness_timeouts": Limit(at_least=0.0475, at_most=0.0775),
    "overall_timeouts": Limit(at_least=0.0057, at_most=0.0117),
}
FACT_SEEDS = 2
"""Seeds of the run that the facts are taken from: 49,152 executions."""
FACT_STEPS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    seeds: int = 8
    """Seeds, the same for every row."""
    steps: int = 12
    """Steps that are timed."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Simulate the table."""
    options = read_options(Options, settings, name="table1")
    rows: dict[str, dict[str, float]] = {}
    for name, paper in PAPER_HOURS.items():
        setting = paper_setting("nl2repo_122b", {"row": name, "steps": options.steps})
        rows[name] = {"hours": mean_hours(simulate_paired(setting, range(options.seeds))), "paper": paper}
    errors = [abs(row["hours"] / row["paper"] - 1) for row in rows.values()]
    figures: dict[str, float | bool] = {
        "max_row_error": max(errors),
        "mean_row_error": fmean(errors),
        "order_ok": all(rows[fast]["hours"] < rows[slow]["hours"] for fast, slow in ORDER),
        **measure_facts(),
    }
    return {**outcome("table1", figures, LIMITS), "rows": rows}


def measure_facts() -> dict[str, float]:
    """Facts of the workload's distribution, as the paper publishes them."""
    setting = paper_setting("nl2repo_122b", {"row": "E0", "steps": FACT_STEPS, "horizon": "closed"})
    outcomes = simulate_paired(setting, range(FACT_SEEDS))
    hour = 3600.0
    return {
        "execution_mean_h": fmean(o.execution_mean_s for o in outcomes) / hour,
        "group_max_mean_h": fmean(o.group_max_mean_s for o in outcomes) / hour,
        "groups_from_4h": fmean(o.share_of_groups_from(4 * hour) for o in outcomes),
        "harness_timeouts": fmean(o.share_ended("timeout") for o in outcomes),
        "overall_timeouts": fmean(o.share_ended("unresolved") for o in outcomes),
    }
