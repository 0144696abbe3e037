"""Launching the longest executions first, against the paper's order, at (phi, mu) = (0.5, 3) over 48 steps.

`longest_first` orders by what is thought of a query before it runs; an execution's own duration is not known at launch. Seeds are paired,
so both orders see the same queries. Figures:

- `gain`: share of the paper's hours that is saved with estimates (true length of the query times log-noise of 0.3), mean over the seeds;
  `gain_worst`, the worst seed; `gain_exact`: with every query's length known;
- `over_work_bound`: hours over the work bound (rollout and training work, spread over all cells without a gap) under the paper's order,
  and `…_longest_first`, `…_exact`, `…_async`, `…_colocate`;
- `expected_ORDER_1`, `_2`, `_3`: mean expected hours of a group's query in the first, second and third step of a burst: how far an order
  puts short queries into early steps.

What else was tried at E[d] = 1.5, three seeds, against the paper's order (over the work bound 1.13): (phi, mu) = (0, 4), (1, 2) and
(1.5, 1) lose 10, 6 and 8 %; sixteen half cells, a supply check of two groups, and micro-steps a quarter as long change less than 0.2 %:
the run waits for its rollouts, hardly ever for training. Launching the q longest queries of a dispatch last, so that the extra groups
are the slow ones, gains 0.5 % (2.5 % with exact lengths), less than longest first, and sends long queries to later steps. Continuous
dispatch at (0.5, 3) is 6 % faster at a mean staleness of 4.3, and far slower at 1.5.

Settings: `seeds` (5), `steps` (48).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.bench._paper import paper_setting, simulate_paired
from gyre.sim.outcome import SECONDS_PER_HOUR, Outcome
from gyre.sim.setting import place_all

LIMITS: Mapping[str, Limit] = {"gain": Limit(at_least=0.01), "gain_worst": Limit(at_least=-0.01)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    seeds: int = 5
    """Seeds, the same for every order and policy."""
    steps: int = 48
    """Steps that are timed."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Simulate the orders."""
    options = read_options(Options, settings, name="launch_order")
    seeds = range(options.seeds)
    setting = paper_setting("nl2repo_122b", {"phi": 0.5, "mu": 3, "steps": options.steps})
    longest = replace(setting, config=replace(setting.config, launch_order="longest_first"))
    exact = replace(longest, workload=replace(setting.workload, estimate_spread=0.0))
    outcomes = {
        "fifo": simulate_paired(setting, seeds),
        "longest_first": simulate_paired(longest, seeds),
        "exact": simulate_paired(exact, seeds),
    }
    placed = place_all(setting, train_cells=len(setting.config.cells) // 2)
    outcomes |= {policy: simulate_paired(own, seeds) for policy, own in placed.items() if policy != "elastic"}
    gains = _gains(outcomes["fifo"], outcomes["longest_first"])
    figures: dict[str, float | bool] = {
        "gain": fmean(gains),
        "gain_worst": min(gains),
        "gain_exact": fmean(_gains(outcomes["fifo"], outcomes["exact"])),
        "over_work_bound": _over_bound(outcomes["fifo"]),
    }
    figures |= {f"over_work_bound_{name}": _over_bound(own) for name, own in outcomes.items() if name != "fifo"}
    for name in ("fifo", "longest_first", "exact"):
        places = zip(*(o.mean_expected_s_by_place() for o in outcomes[name]), strict=False)
        figures |= {f"expected_{name}_{place}": fmean(values) / SECONDS_PER_HOUR for place, values in enumerate(places, start=1)}
    return outcome("launch_order", figures, LIMITS)


def _gains(before: Sequence[Outcome], after: Sequence[Outcome]) -> list[float]:
    return [1 - late.duration_s / early.duration_s for early, late in zip(before, after, strict=True)]


def _over_bound(outcomes: Sequence[Outcome]) -> float:
    return fmean(o.over_work_bound for o in outcomes)
