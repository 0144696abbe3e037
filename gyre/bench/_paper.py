"""What the benchmarks of the simulator have in common: the shipped pipelines at the paper's scale, simulated under paired seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from gyre.bench._measuring import shipped_pipeline
from gyre.graph.spec import load_spec
from gyre.sim.outcome import Outcome
from gyre.sim.setting import simulate
from gyre.sim.simulate import load_setting
from gyre.sim.simulation import SimSetting


def paper_setting(name: str, parameters: Mapping[str, Any]) -> SimSetting:
    """What is simulated for a shipped pipeline with some of its parameters given."""
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in parameters.items()}
    spec = load_spec(shipped_pipeline(f"paper/{name}"), texts)
    return load_setting(spec, from_run=None)[0]


def simulate_paired(setting: SimSetting, seeds: Iterable[int]) -> list[Outcome]:
    """One outcome per seed; equal seeds draw the same queries in every setting."""
    return [simulate(replace(setting, seed=seed)) for seed in seeds]


def mean_hours(outcomes: Iterable[Outcome]) -> float:
    """Mean over the seeds."""
    return fmean(outcome.hours for outcome in outcomes)
