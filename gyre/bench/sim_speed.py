"""How long a simulation takes: 48 steps of NL2RepoBench at the paper's scale, 24,576 executions, on one core.

Figures: `wall_s`, the best of the rounds (what a shared machine adds is not the simulator's); `cpu_s`; `executions`; `events_per_s`.

Settings: `rounds` (3), `steps` (48).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.bench._paper import paper_setting
from gyre.sim.simulation import Simulation

LIMITS: Mapping[str, Limit] = {"wall_s": Limit(at_most=5.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    rounds: int = 3
    """Repetitions; the best counts."""
    steps: int = 48
    """Steps that are simulated."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Time the simulation."""
    options = read_options(Options, settings, name="sim_speed")
    setting = paper_setting("nl2repo_122b", {"steps": options.steps})
    walls: list[float] = []
    cpus: list[float] = []
    num_events = 0
    for _ in range(options.rounds):
        simulation = Simulation(setting)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        simulation.run()
        walls.append(time.perf_counter() - wall_s)
        cpus.append(time.process_time() - cpu_s)
        num_events = simulation.journal.num_events
    executions = options.steps * setting.config.groups_per_step * setting.config.group_size
    figures = {
        "wall_s": min(walls),
        "cpu_s": min(cpus),
        "executions": executions,
        "events_per_s": num_events / min(walls),
    }
    return outcome("sim_speed", figures, LIMITS)
