"""How well a simulation that was fitted to one run predicts others: total time and changes of role.

The workload is fitted to the run given as `fit`; then each run given is simulated with its own pipeline (its policy, its dispatch) and
that workload. Figures, for each of `elastic`, `async` and `colocate` that is given: `NAME_time_error` (predicted over measured, less 1),
`NAME_role_changes` and `NAME_role_changes_predicted`; `max_time_error`; `role_changes_ok`: each prediction is within max(2, 20 %).

Settings: `fit` (directory of a finished run), `elastic`, `async`, `colocate` (directories of finished runs of the same pipeline). For
medians of several runs, call it once for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options
from gyre.errors import UserError
from gyre.graph.workload import WorkloadSettings
from gyre.sim.fit import RunTables, fit_workload, read_run
from gyre.sim.setting import read_setting, simulate

LIMITS: Mapping[str, Limit] = {"max_time_error": Limit(at_most=0.20), "role_changes_ok": Limit(at_least=1)}
FREE_ROLE_CHANGES, ROLE_CHANGES_SHARE = 2, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    fit: Path
    """Run that the workload is fitted to."""
    elastic: Path | None = None
    """Run under the elastic policy."""
    async_: Path | None = None
    """Run under 'async'; `--set async=RUN`."""
    colocate: Path | None = None
    """Run under 'colocate'."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Compare predictions with runs."""
    options = read_options(Options, {"async_" if key == "async" else key: value for key, value in settings.items()}, name="predict")
    runs = {"elastic": options.elastic, "async": options.async_, "colocate": options.colocate}
    given = {name: read_run(path) for name, path in runs.items() if path is not None}
    if not given:
        raise UserError("there is no run to predict", hint="add --set elastic=RUN, --set async=RUN or --set colocate=RUN")
    workload, _ = fit_workload(options.fit, WorkloadSettings())
    figures: dict[str, float | bool] = {}
    for name, tables in given.items():
        predicted = simulate(read_setting(tables.plan, workload))
        measured_s = tables.end_s - tables.start_s
        figures[f"{name}_time_error"] = predicted.duration_s / measured_s - 1
        figures[f"{name}_role_changes"] = count_role_changes(tables)
        figures[f"{name}_role_changes_predicted"] = predicted.role_changes
    figures["max_time_error"] = max(abs(figures[f"{name}_time_error"]) for name in given)
    figures["role_changes_ok"] = all(_are_close(figures, name) for name in given)
    return outcome("predict", figures, LIMITS)


def count_role_changes(tables: RunTables) -> int:
    """Decisions of a run that sent a cell to the other role."""
    return len(tables.events_of("to_training", "to_rollout"))


def _are_close(figures: Mapping[str, float | bool], name: str) -> bool:
    measured = figures[f"{name}_role_changes"]
    return abs(figures[f"{name}_role_changes_predicted"] - measured) <= max(FREE_ROLE_CHANGES, ROLE_CHANGES_SHARE * measured)
