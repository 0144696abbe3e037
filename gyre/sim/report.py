"""Simulations as one JSON document, and as tables for people."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gyre.graph.workload import WorkloadSettings
from gyre.sim.outcome import SECONDS_PER_HOUR, Outcome
from gyre.sim.simulation import SimSetting

NUM_SAMPLES = 200
"""Points of a waterlevel curve in a document."""


def describe_outcome(setting: SimSetting, outcome: Outcome) -> dict[str, Any]:
    """One simulation as JSON data."""
    config = setting.config
    return {
        "hours": outcome.hours,
        "steps": len(outcome.steps),
        "phi": config.phi,
        "mu": config.mu,
        "streaming": config.streaming,
        "train_cells": config.train_cells if config.policy == "async" else None,
        "staleness_mean": outcome.staleness_mean,
        "staleness": {str(staleness): count for staleness, count in outcome.staleness.items()},
        "staleness_expected": config.expected_staleness,
        "utilisation": {
            "rollout": outcome.rollout_utilisation,
            "training": outcome.training_utilisation,
            **{f"time_{role}": share for role, share in outcome.role_shares.items()},
        },
        "role_changes": outcome.role_changes,
        "over_work_bound": outcome.over_work_bound,
        "work_bound_hours": outcome.work_bound_s / SECONDS_PER_HOUR,
        "expected_hours_by_place": [s / SECONDS_PER_HOUR for s in outcome.mean_expected_s_by_place()],
        "executions": {
            "ended": dict(outcome.ends),
            "mean_hours": outcome.execution_mean_s / SECONDS_PER_HOUR,
            "group_max_mean_hours": outcome.group_max_mean_s / SECONDS_PER_HOUR,
        },
        "waterlevel": sample_waterlevel(outcome),
        "roles": [
            {"cell": s.cell, "role": s.role, "start_hours": s.start_s / SECONDS_PER_HOUR, "end_hours": s.end_s / SECONDS_PER_HOUR}
            for s in outcome.spans
        ],
        "step_hours": [step.committed_s / SECONDS_PER_HOUR for step in outcome.steps],
        "event_hash": outcome.event_hash,
    }


def describe_workload(workload: WorkloadSettings) -> dict[str, Any]:
    """A workload as it would be written in a pipeline."""
    return asdict(workload)


def sample_waterlevel(outcome: Outcome) -> list[list[float]]:
    """The waterlevel at even distances of time, as [hours, executions]."""
    times = [time_s for time_s, _ in outcome.waterlevels]
    points = [outcome.duration_s * i / (NUM_SAMPLES - 1) for i in range(NUM_SAMPLES)]
    return [[t / SECONDS_PER_HOUR, outcome.waterlevels[max(0, bisect_right(times, t) - 1)][1]] for t in points]


def table_rows(settings: Mapping[str, SimSetting], outcomes: Mapping[str, Outcome]) -> list[Sequence[str]]:
    """One row per policy, under `TABLE_COLUMNS`."""
    return [_table_row(name, settings[name], outcome) for name, outcome in outcomes.items()]


TABLE_COLUMNS = ["policy", "phi", "mu", "time", "staleness", "in rollout", "busy there", "in training", "busy there", "roles", "over bound"]


def _table_row(name: str, setting: SimSetting, outcome: Outcome) -> Sequence[str]:
    config = setting.config
    split = f" {config.train_cells}+{len(config.cells) - config.train_cells}" if config.policy == "async" else ""
    return [
        f"{name}{split}{'' if config.streaming else ', no streaming'}",
        f"{config.phi:g}",
        str(config.mu),
        format_duration(outcome.duration_s),
        f"{outcome.staleness_mean:.2f}",
        f"{outcome.role_shares['rollout']:.0%}",
        f"{outcome.rollout_utilisation:.0%}",
        f"{outcome.role_shares['training']:.0%}",
        f"{outcome.training_utilisation:.0%}",
        str(outcome.role_changes),
        f"{outcome.over_work_bound:.2f}",
    ]


def format_duration(duration_s: float) -> str:
    """A time for people.

    >>> format_duration(58000.0), format_duration(75.4)
    ('16.11 h', '75.4 s')
    """
    return f"{duration_s / SECONDS_PER_HOUR:.2f} h" if duration_s >= 2 * SECONDS_PER_HOUR else f"{duration_s:.1f} s"


def draw_roles(outcome: Outcome, *, width: int = 100) -> list[str]:
    """The roles of each cell over time as lines of text: '·' rollout, '#' training, '|' switching, 'x' lost."""
    signs = {"rollout": "·", "training": "#", "lost": "x"}
    lines = [[" "] * width for _ in range(1 + max((span.cell for span in outcome.spans), default=-1))]
    for span in outcome.spans:
        first, last = (int(t / outcome.duration_s * width) for t in (span.start_s, span.end_s))
        for column in range(first, min(width, max(last, first + 1))):
            lines[span.cell][column] = signs.get(span.role, "|")
    return [f"cell {cell:<3} {''.join(line)}" for cell, line in enumerate(lines)]
