"""A picture of simulated runs, like the paper's Figure 6: roles of the cells over time, the waterlevel below, shares of time beside."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.errors import UserError
from gyre.sim.outcome import SECONDS_PER_HOUR, Outcome
from gyre.sim.simulation import SimSetting

COLORS: Mapping[str, str] = {
    "rollout": "#8fb8de",
    "training": "#e0813f",
    "to_training": "#444444",
    "to_rollout": "#444444",
    "lost": "#d9d9d9",
}
"""Colour of each role."""
LABELS: Mapping[str, str] = {"rollout": "rollout", "training": "training", "to_training": "switching", "lost": "lost"}


def plot_outcomes(path: Path, *, title: str, settings: Mapping[str, SimSetting], outcomes: Mapping[str, Outcome]) -> None:
    """Write the picture; its format follows from the file's ending.

    Raises:
        UserError: the plotting library is missing, or the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib, which is not installed", hint="pip install 'gyre-rl[dev]', or pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2 * len(outcomes) + 0.6), layout="constrained")
    grid = figure.subplots(2 * len(outcomes), 2, squeeze=False, width_ratios=[5, 1], height_ratios=[2, 1] * len(outcomes))
    longest_h = max(outcome.hours for outcome in outcomes.values())
    for row, (name, outcome) in enumerate(outcomes.items()):
        roles, shares = grid[2 * row]
        water, unused = grid[2 * row + 1]
        unused.set_axis_off()
        _draw_roles(roles, outcome, name=name, setting=settings[name])
        _draw_shares(shares, outcome)
        _draw_waterlevel(water, outcome, setting=settings[name])
        for axes in (roles, water):
            axes.set_xlim(0, longest_h)
    grid[-1][0].set_xlabel("hours")
    figure.suptitle(title)
    handles, labels = _legend()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"the picture {path} cannot be written: {error}", hint="give a file that ends in .png, .svg or .pdf") from error


def _draw_roles(axes: Any, outcome: Outcome, *, name: str, setting: SimSetting) -> None:
    for role, color in COLORS.items():
        for cell in range(len(setting.config.cells)):
            spans = [s for s in outcome.spans if s.role == role and s.cell == cell]
            bars = [(s.start_s / SECONDS_PER_HOUR, (s.end_s - s.start_s) / SECONDS_PER_HOUR) for s in spans]
            axes.broken_barh(bars, (cell - 0.42, 0.84), facecolors=color, linewidth=0)
    published = setting.config.mu
    for step in outcome.steps:
        is_last_of_burst = step.version - step.burst == published
        axes.axvline(step.committed_s / SECONDS_PER_HOUR, color="black", linewidth=0.9 if is_last_of_burst else 0.3, alpha=0.6)
    axes.set_yticks(range(len(setting.config.cells)), labels=[f"cell {cell}" for cell in range(len(setting.config.cells))], fontsize=8)
    axes.invert_yaxis()
    config = setting.config
    axes.set_title(
        f"{name}: φ = {config.phi:g}, μ = {config.mu}, {outcome.hours:.2f} h, mean staleness {outcome.staleness_mean:.2f}",
        fontsize=10,
        loc="left",
    )


def _draw_shares(axes: Any, outcome: Outcome) -> None:
    cells = sorted({span.cell for span in outcome.spans})
    left = dict.fromkeys(cells, 0.0)
    for role, color in COLORS.items():
        for cell in cells:
            share = sum(s.end_s - s.start_s for s in outcome.spans if s.cell == cell and s.role == role) / outcome.duration_s
            axes.barh(cell, share, left=left[cell], height=0.84, color=color, linewidth=0)
            left[cell] += share
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_title("share of time", fontsize=10)


def _draw_waterlevel(axes: Any, outcome: Outcome, *, setting: SimSetting) -> None:
    hours = [time_s / SECONDS_PER_HOUR for time_s, _ in outcome.waterlevels]
    axes.step(hours, [level for _, level in outcome.waterlevels], where="post", linewidth=0.8, color="#33475b")
    axes.axhline(sum(setting.config.cells) + sum(setting.config.standalone), color="#8fb8de", linewidth=0.8, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("waterlevel", fontsize=8)


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=COLORS[role]) for role in LABELS], list(LABELS.values())
