"""`gyre tune`: the settings with the shortest simulated run under a bound on mean staleness.

Every (phi, mu) on the bound is tried, with lower ones where the bound has several: E[d] = phi_eff + (mu − 1) / 2 <= S. The supply check
(rho_min), the launch order and the number of cells follow one after another, each keeping what was best so far: their effects hardly
depend on each other, and a full grid would cost hours. All candidates see the same draws, and all are compared on open horizons, so that
no one gains by where its last burst ends; the best is then confirmed against the pipeline's own settings under further seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from gyre.console import print_json, print_table
from gyre.errors import UserError
from gyre.graph.spec import Spec
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.outcome import Outcome
from gyre.sim.report import format_duration
from gyre.sim.setting import simulate
from gyre.sim.simulate import load_setting
from gyre.sim.simulation import SimSetting

RHO_MINS = (0.125, 0.25, 0.5)
"""Supply checks that are tried."""
CONFIRM_SEEDS = 2
"""Seeds, besides the search's own, under which the best is compared with the pipeline's settings."""
STEPS = 24
"""Steps that candidates are timed over, cut to whole bursts: several bursts of any sensible mu, start-up included."""
LEAST_GAIN = 0.002
"""Share of the time that a change must save to be taken: less is the draw's doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings that were tried."""

    setting: SimSetting
    change: str
    """What is different from the best before, in words; empty: the pipeline's own settings."""
    s_per_step: float
    """Simulated seconds of a step."""
    outcome: Outcome


def tune_pipeline(spec: Spec, *, staleness: float, from_run: Path | None, as_json: bool) -> int:
    """Search settings and print the best, with what each part of it gains.

    Args:
        spec: the pipeline.
        staleness: largest mean staleness, E[d].
        from_run: a finished run whose store the workload is fitted to; None: the pipeline's own workload.
        as_json: print one JSON document.

    Returns:
        The exit code.
    """
    setting, notes = load_setting(spec, from_run=from_run)
    if not setting.config.train:
        raise UserError(f"pipeline '{spec.name}' trains nothing, so there is nothing to tune", hint="tune the pipeline with 'train_cell'")
    tried = list(search(setting, staleness=staleness))
    own, best = tried[0], find_best(tried, staleness=staleness)
    assert best is not None, "some dispatch keeps to the bound"
    gain = confirm_gain(own.setting, best.setting)
    if as_json:
        print_json(_document(spec, staleness, tried, own, best, gain, notes))
    else:
        _print(spec, staleness, tried, own, best, gain, notes)
    return 0


def search(setting: SimSetting, *, staleness: float) -> Iterator[Candidate]:
    """Try settings; the first is the pipeline's own."""
    tried = [_try(setting, "")]
    yield tried[0]
    for choices in (_dispatches(staleness, setting.config), _supplies, _launch_orders, _cell_counts):
        best = find_best(tried, staleness=staleness)
        start = best.setting if best is not None else setting
        options = choices(start) if callable(choices) else choices
        for change, changed in options:
            tried.append(_try(_apply(start, changed), change))
            yield tried[-1]


def find_best(tried: Sequence[Candidate], *, staleness: float) -> Candidate | None:
    """The fastest that keeps to the bound, an earlier one unless a later one saves enough; None where none keeps to it."""
    best: Candidate | None = None
    for candidate in tried:
        if candidate.setting.config.expected_staleness > staleness + 1e-9:
            continue
        if best is None or candidate.s_per_step < best.s_per_step * (1 - LEAST_GAIN):
            best = candidate
    return best


Change = tuple[str, dict[str, Any]]


def _dispatches(staleness: float, config: SchedulerConfig) -> Sequence[Change]:
    """(phi, mu) on the bound, in whole groups."""
    changes: list[Change] = []
    for mu in range(1, int(2 * staleness + 1 + 1e-9) + 1):
        extra = int((staleness - (mu - 1) / 2) * config.groups_per_step + 1e-9)
        phi = extra / config.groups_per_step
        if (phi, mu) != (config.phi, config.mu):
            changes.append((f"phi = {phi:g}, mu = {mu}", {"phi": phi, "mu": mu}))
    return changes


def _supplies(setting: SimSetting) -> Sequence[Change]:
    return [(f"rho_min = {rho:g}", {"rho_min": rho}) for rho in RHO_MINS if rho != setting.config.rho_min]


def _launch_orders(setting: SimSetting) -> Sequence[Change]:
    other = "fifo" if setting.config.launch_order == "longest_first" else "longest_first"
    return [(f"launch_order = '{other}'", {"launch_order": other})]


def _cell_counts(setting: SimSetting) -> Sequence[Change]:
    """The same accelerators and places in half or twice as many cells, where they divide."""
    cells, ranks = setting.config.cells, setting.num_ranks
    if len(set(cells)) > 1 or len(set(ranks)) > 1:
        return []
    changes: list[Change] = []
    for factor in (2, 1 / 2):
        count, places, of_cell = len(cells) * factor, cells[0] / factor, ranks[0] / factor
        is_whole = all(float(number).is_integer() for number in (count, places, of_cell))
        if is_whole and min(count - _num_never_training(setting.config), places, of_cell) >= 1:
            changed = {"cells": (int(places),) * int(count), "num_ranks": (int(of_cell),) * int(count)}
            changes.append((f"{int(count)} cells of {int(of_cell)} ranks and {int(places)} places", changed))
    return changes


def _num_never_training(config: SchedulerConfig) -> int:
    """Cells that must be left for rollout."""
    return int(config.policy == "async" and not config.standalone)


def _apply(setting: SimSetting, changed: dict[str, Any]) -> SimSetting:
    ranks = changed.get("num_ranks", setting.num_ranks)
    of_config = {key: value for key, value in changed.items() if key != "num_ranks"}
    config = setting.config
    if config.policy == "async" and "cells" in of_config:
        count = len(of_config["cells"])
        share = round(config.train_cells * count / len(config.cells))
        of_config["train_cells"] = max(1, min(share, count - _num_never_training(config)))
    return replace(setting, config=replace(config, **of_config), num_ranks=ranks)


def _try(setting: SimSetting, change: str) -> Candidate:
    timed = _open(setting)
    outcome = simulate(timed)
    return Candidate(setting=setting, change=change, s_per_step=outcome.duration_s / timed.steps, outcome=outcome)


def _open(setting: SimSetting) -> SimSetting:
    """An open horizon of whole bursts."""
    mu = setting.config.mu
    return replace(setting, config=replace(setting.config, steps=None), steps=mu * max(1, STEPS // mu))


def confirm_gain(own: SimSetting, best: SimSetting) -> float:
    """Share of the time that the best saves, mean over further seeds; negative where the search was fooled by its draw."""

    def s_per_step(setting: SimSetting, seed: int) -> float:
        timed = _open(replace(setting, seed=seed))
        return simulate(timed).duration_s / timed.steps

    seeds = range(own.seed + 1, own.seed + 1 + CONFIRM_SEEDS)
    return fmean(1 - s_per_step(best, seed) / s_per_step(own, seed) for seed in seeds)


# ---- printing ----------------------------------------------------------------------------------------------------------------------


def settings_of(setting: SimSetting) -> dict[str, Any]:
    """The settings that are tuned, by the names that a pipeline gives them."""
    config = setting.config
    return {
        "phi": config.phi,
        "mu": config.mu,
        "rho_min": config.rho_min,
        "launch_order": config.launch_order,
        "cells": len(config.cells),
        "concurrency": config.cells[0],
        "ranks_per_cell": setting.num_ranks[0],
    }


def _document(
    spec: Spec, staleness: float, tried: list[Candidate], own: Candidate, best: Candidate, gain: float, notes: list[str]
) -> dict[str, Any]:
    def describe(candidate: Candidate) -> dict[str, Any]:
        return {
            "change": candidate.change,
            "settings": settings_of(candidate.setting),
            "staleness_expected": candidate.setting.config.expected_staleness,
            "staleness_mean": candidate.outcome.staleness_mean,
            "s_per_step": candidate.s_per_step,
            "over_work_bound": candidate.outcome.over_work_bound,
        }

    return {
        "pipeline": spec.name,
        "staleness": staleness,
        "own": describe(own),
        "best": describe(best),
        "gain": gain,
        "why": explain(own, best),
        "tried": [describe(candidate) for candidate in tried],
        "notes": notes,
    }


def explain(own: Candidate, best: Candidate) -> list[str]:
    """Why the best is better, in sentences: where the cells' time went."""
    before, after = own.outcome, best.outcome
    if best is own:
        return ["no setting that was tried is faster under this bound"]
    idle_before, idle_after = (o.role_shares["training"] * (1 - o.training_utilisation) for o in (before, after))
    empty_before, empty_after = (o.role_shares["rollout"] * (1 - o.rollout_utilisation) for o in (before, after))
    return [
        f"cells wait for groups {idle_before:.0%} of their time before and {idle_after:.0%} after",
        f"places of engines stand empty {empty_before:.0%} of the cells' time before and {empty_after:.0%} after",
        f"the run takes {before.over_work_bound:.2f} times its work bound before and {after.over_work_bound:.2f} times after",
    ]


def _print(spec: Spec, staleness: float, tried: list[Candidate], own: Candidate, best: Candidate, gain: float, notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)
    rows = [
        [
            candidate.change or "the pipeline's own",
            f"{candidate.setting.config.expected_staleness:g}",
            format_duration(candidate.s_per_step),
            f"{1 - candidate.s_per_step / own.s_per_step:+.1%}",
            f"{candidate.outcome.over_work_bound:.2f}",
            "best" if candidate is best else "",
        ]
        for candidate in tried
    ]
    print_table(["change", "staleness", "per step", "gain", "over bound", ""], rows)
    listed = ", ".join(f"{name}={value}" for name, value in settings_of(best.setting).items())
    click.echo(f"{spec.name} under E[d] <= {staleness:g}: {listed}")
    click.echo(f"saves {gain:.1%} of the time under {CONFIRM_SEEDS} other seeds")
    for sentence in explain(own, best):
        click.echo(f"  {sentence}")
