"""How well a simulation that was fitted to one live run predicts others: total time and changes of role.

Each round runs a pipeline three times with one seed: under its own elastic policy, and under Async and Colocate at the same mean
staleness. The workload is fitted to the elastic run; then all three are simulated with that workload, each with its own dispatch. A
prediction is the mean of a few draws: a run has too few queries for one draw to have the workload's mean length. Figures are medians
over the rounds:

- `elastic_time_error`, `async_time_error`, `colocate_time_error`: predicted over measured time, less 1; `max_time_error`: the largest;
- `elastic_role_error` and so on: difference in role changes over what is allowed, max(2, 20 %); `max_role_error`: the largest;
- `same_groups`: all runs of a round trained the same number of groups; `verified`: `gyre verify` finds nothing in any run;
- `rows` (beside the figures): every run, measured and predicted.

Give it a machine that has nothing else to do: on two cores the quickstart takes about five minutes a run.

Settings: `dir` (runs/predict), where runs are kept as POLICY-SEED, those that are finished being taken as they are; `rounds` (3); `steps`
(as the pipeline says); `pipeline` (the quickstart), a file whose parameters include seed, steps, policy, phi and mu.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gyre.bench._measuring import Limit, outcome, read_options, shipped_pipeline
from gyre.errors import UserError
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.graph.workload import WorkloadSettings
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.fit import RunTables, fit_workload, read_run
from gyre.sim.setting import place_async, place_colocate, read_setting, simulate

POLICIES = ("elastic", "async", "colocate")
LIMITS: Mapping[str, Limit] = {
    "max_time_error": Limit(at_most=0.20),
    "max_role_error": Limit(at_most=1),
    "same_groups": Limit(at_least=1),
    "verified": Limit(at_least=1),
}
NUM_DRAWS = 8
"""Simulations that a prediction is the mean of."""
FREE_ROLE_CHANGES, ROLE_CHANGES_SHARE = 2, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    dir: Path = Path("runs/predict")
    """Where runs are kept."""
    rounds: int = 3
    """Seeds 0 and up, three runs each."""
    steps: int | None = None
    """Steps of each run; None: the pipeline's own."""
    pipeline: Path | None = None
    """What is run; None: the quickstart."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Make the runs that are not there yet, verify them, and compare predictions with them."""
    options = read_options(Options, settings, name="predict")
    pipeline = options.pipeline or shipped_pipeline("quickstart")
    parameters = {} if options.steps is None else {"steps": str(options.steps)}
    placed = place_policies(pipeline, parameters)
    runs = {(policy, seed): options.dir / f"{policy}-{seed}" for seed in range(options.rounds) for policy in POLICIES}
    for (policy, seed), run_dir in runs.items():
        make_run(pipeline, {**parameters, **placed[policy], "seed": str(seed)}, run_dir=run_dir)
    rows = [row for seed in range(options.rounds) for row in compare_round({policy: runs[policy, seed] for policy in POLICIES})]
    figures: dict[str, float | bool] = {}
    for policy in POLICIES:
        figures[f"{policy}_time_error"] = median(row["predicted_s"] / row["measured_s"] - 1 for row in rows if row["policy"] == policy)
        figures[f"{policy}_role_error"] = median(_role_error(row) for row in rows if row["policy"] == policy)
    figures["max_time_error"] = max(abs(figures[f"{policy}_time_error"]) for policy in POLICIES)
    figures["max_role_error"] = max(figures[f"{policy}_role_error"] for policy in POLICIES)
    figures["same_groups"] = len({row["groups"] for row in rows}) == 1
    figures["verified"] = all(row["verified"] for row in rows)
    return {**outcome("predict", figures, LIMITS), "rows": rows}


def place_policies(pipeline: Path, parameters: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Parameters under which each policy runs at the pipeline's own mean staleness.

    Raises:
        UserError: the pipeline's own policy is not the elastic one.
    """
    config = plan_pipeline(build_graph(load_spec(pipeline, parameters))).scheduler
    if config is None or config.policy != "elastic":
        raise UserError(f"{pipeline} does not run under the elastic policy", hint="give a pipeline whose policy is 'elastic'")
    placed = {"elastic": config, "async": place_async(config, train_cells=1), "colocate": place_colocate(config)}
    return {name: _parameters_of(own) for name, own in placed.items()}


def _parameters_of(config: SchedulerConfig) -> dict[str, str]:
    return {"policy": config.policy, "phi": str(config.phi), "mu": str(config.mu)}


def make_run(pipeline: Path, parameters: Mapping[str, str], *, run_dir: Path) -> None:
    """Run the pipeline as a user would, unless the run is there; its progress goes to stderr.

    Raises:
        UserError: the run failed, or one is there that is not finished.
    """
    if not (run_dir / "spec.json").exists():
        sets = [word for name, value in parameters.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "gyre.cli", "run", str(pipeline), *sets, "--run-dir", str(run_dir)]
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if code != 0:
            raise UserError(f"the run in {run_dir} ended with exit code {code}", hint="see what it said above")
    tables = read_run(run_dir)
    wanted = tables.plan.scheduler.steps if tables.plan.scheduler is not None else None
    if len(tables.steps) != wanted:
        hint = "delete it: a run that was interrupted tells nothing of the time it takes"
        raise UserError(f"the run in {run_dir} has made {len(tables.steps)} of {wanted} steps", hint=hint)


def compare_round(runs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """What the runs of one seed took, and what the elastic one predicts."""
    workload, _ = fit_workload(runs["elastic"], WorkloadSettings())
    rows = []
    for policy, run_dir in runs.items():
        tables = read_run(run_dir)
        setting = read_setting(tables.plan, workload)
        predicted = [simulate(replace(setting, seed=seed)) for seed in range(NUM_DRAWS)]
        rows.append(
            {
                "policy": policy,
                "run": str(run_dir),
                "measured_s": tables.end_s - tables.start_s,
                "predicted_s": fmean(simulated.duration_s for simulated in predicted),
                "role_changes": count_role_changes(tables),
                "role_changes_predicted": fmean(simulated.role_changes for simulated in predicted),
                "groups": len({row["group_id"] for row in tables.executions}),
                "verified": verifies(run_dir),
            }
        )
    return rows


def verifies(run_dir: Path) -> bool:
    """Whether `gyre verify` finds nothing, log-probabilities included."""
    from gyre.store.verify import verify
    from gyre.training.recompute import recompute_logprobs

    return verify(run_dir, recompute=recompute_logprobs).is_ok


def count_role_changes(tables: RunTables) -> int:
    """Decisions of a run that sent a cell to the other role."""
    return len(tables.events_of("to_training", "to_rollout"))


def _role_error(row: Mapping[str, Any]) -> float:
    allowed = max(FREE_ROLE_CHANGES, ROLE_CHANGES_SHARE * row["role_changes"])
    return abs(row["role_changes_predicted"] - row["role_changes"]) / allowed
