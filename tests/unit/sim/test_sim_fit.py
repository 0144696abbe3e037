"""Fitting a workload to a run: here the run is a simulated one, so what must come out is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.recorded_simulation import RecordedSimulation

from gyre.errors import UserError
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.graph.workload import WorkloadSettings
from gyre.sim import fit
from gyre.sim.setting import read_setting, simulate
from gyre.sim.simulation import SimSetting

pytestmark = pytest.mark.sim
QUICKSTART = Path(__file__).resolve().parents[3] / "pipelines" / "quickstart.jsonnet"
TRUE = WorkloadSettings(
    execution_s=4.0,
    query_spread=0.4,
    execution_spread=0.25,
    deadline_s=60.0,
    budget_s=60.0,
    evaluation_s=0.1,
    evaluation_slots=2,
    load_share=0.4,
    contention=0.3,
    train_rank_s=0.08,
    microsteps_per_group=4,
    step_s=0.3,
    publish_s=0.4,
    to_training_s=0.2,
)


@pytest.fixture(scope="module")
def recorded() -> tuple[fit.RunTables, SimSetting, float]:
    plan = plan_pipeline(build_graph(load_spec(QUICKSTART, {"steps": "24", "mu": "2"})))
    setting = read_setting(plan, TRUE)
    simulation = RecordedSimulation(setting)
    outcome = simulation.run()
    return simulation.tables(plan), setting, outcome.duration_s


@pytest.fixture
def fitted(recorded: tuple[fit.RunTables, SimSetting, float], monkeypatch: pytest.MonkeyPatch) -> WorkloadSettings:
    monkeypatch.setattr(fit, "read_run", lambda run: recorded[0])
    workload, notes = fit.fit_workload(Path("run"), WorkloadSettings())
    assert "1536 executions and 24 steps" in notes[0]
    return workload


def test_what_made_the_run_is_found_again(fitted: WorkloadSettings) -> None:
    # Three cells are busy nearly all the time, so only the product of length and contention shows.
    assert _beside_two_others(fitted) == pytest.approx(_beside_two_others(TRUE), rel=0.15)
    assert fitted.query_spread == pytest.approx(TRUE.query_spread, rel=0.2)
    assert fitted.execution_spread == pytest.approx(TRUE.execution_spread, rel=0.1)
    assert fitted.evaluation_s == pytest.approx(TRUE.evaluation_s, rel=0.2)
    assert fitted.train_rank_s == pytest.approx(TRUE.train_rank_s, rel=0.7)
    assert (fitted.evaluation_slots, fitted.microsteps_per_group) == (2, 4)
    assert fitted.step_s == pytest.approx(TRUE.step_s)
    assert fitted.publish_s == pytest.approx(TRUE.publish_s)
    assert fitted.to_training_s == pytest.approx(TRUE.to_training_s, abs=0.05)


def _beside_two_others(workload: WorkloadSettings) -> float:
    return workload.execution_s * (1 + 2 * workload.contention)


@pytest.mark.parametrize("policy", ["elastic", "async", "colocate"])
def test_a_fit_to_the_elastic_run_predicts_the_policies(
    recorded: tuple[fit.RunTables, SimSetting, float], fitted: WorkloadSettings, policy: str
) -> None:
    setting = replace(recorded[1], config=replace(recorded[1].config, policy=policy), seed=7)
    true, predicted = simulate(setting), simulate(replace(setting, workload=fitted))
    assert predicted.duration_s == pytest.approx(true.duration_s, rel=0.1)
    assert abs(predicted.role_changes - true.role_changes) <= max(2, 0.2 * true.role_changes)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        fit.fit_workload(tmp_path, WorkloadSettings())


def record(workload: WorkloadSettings, **parameters: str) -> fit.RunTables:
    plan = plan_pipeline(build_graph(load_spec(QUICKSTART, {"steps": "6", "mu": "2", **parameters})))
    simulation = RecordedSimulation(read_setting(plan, workload))
    simulation.run()
    return simulation.tables(plan)


def fit_to(tables: fit.RunTables, monkeypatch: pytest.MonkeyPatch) -> WorkloadSettings:
    monkeypatch.setattr(fit, "read_run", lambda run: tables)
    return fit.fit_workload(Path("run"), WorkloadSettings(to_training_s=0.7))[0]


def test_unresolved_executions_do_not_make_evaluations_long(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_to(record(replace(TRUE, budget_s=400.0, unresolved_share=0.1, evaluation_slots=None)), monkeypatch)
    assert fitted.evaluation_s == pytest.approx(TRUE.evaluation_s, rel=0.1)
    assert fitted.unresolved_share == pytest.approx(0.1, rel=0.4)


def test_a_fixed_split_that_waits_for_its_batch_shows_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_pipeline(build_graph(load_spec(QUICKSTART, {"steps": "6", "mu": "1", "phi": "1", "policy": "async"})))
    assert plan.scheduler is not None
    plan = replace(plan, scheduler=replace(plan.scheduler, streaming=False))
    simulation = RecordedSimulation(read_setting(plan, TRUE))
    simulation.run()
    fitted = fit_to(simulation.tables(plan), monkeypatch)
    assert fitted.to_training_s == 0.7, "the core left at the start and waited for its first groups"


def test_an_interruption_is_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stood still for an hour between the end of an execution and its score."""
    tables = record(TRUE)
    ended_s = tables.executions[100]["finished_at_s"]

    def shift(row: Any, *names: str) -> Any:
        return {**row, **{name: row[name] + 3600.0 * (row[name] > ended_s) for name in names}}

    interrupted = replace(
        tables,
        executions=[shift(row, "launched_at_s", "finished_at_s") for row in tables.executions],
        assessments={key: shift(row, "created_at_s") for key, row in tables.assessments.items()},
        steps=[shift(step, "time_s") for step in tables.steps],
        events=[
            *(shift(event, "time_s") for event in tables.events),
            {"time_s": ended_s + 3600.0, "kind": "resumed", "cell": -1, "detail": {"version": 0}},
        ],
    )
    clean, found = fit_to(tables, monkeypatch), fit_to(interrupted, monkeypatch)
    assert found.evaluation_s == pytest.approx(clean.evaluation_s, rel=0.05)


@pytest.mark.parametrize(("profile", "expected"), [({}, 600.0), ({"deadline_s": 7}, 7.0), (None, 3.0)])
def test_a_profile_without_a_deadline_has_the_usual_one(profile: dict[str, Any] | None, expected: float) -> None:
    assert fit._find_deadline_s(profile, otherwise=3.0) == expected


def test_after_a_resume_every_cell_is_in_rollout() -> None:
    tables = replace(
        record(TRUE),
        executions=[{"launched_at_s": 0.0, "finished_at_s": 30.0}] * 3,
        events=[
            {"time_s": 10.0, "kind": "to_training", "cell": 0, "detail": {}},
            {"time_s": 20.0, "kind": "resumed", "cell": -1, "detail": {}},
        ],
    )
    busy = fit.BusyTimes.of(tables)
    _, loads = busy.means(fit.np.array([0.0, 10.0, 20.0]), fit.np.array([10.0, 20.0, 30.0]))
    assert loads == pytest.approx([3 / 24, 3 / 16, 3 / 24])


def test_surplus_is_not_unresolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both kinds of surplus: cancelled while it ran, and ended by itself with its outcome not needed any more."""
    spec = load_spec(QUICKSTART, {})
    ends = ["completed"] * 7 + ["timeout", "completed", "cancelled"]
    executions = [
        {"execution_id": str(i), "group_id": "g", "status": status, "launched_at_s": 1.0, "finished_at_s": 2.0}
        for i, status in enumerate(ends)
    ]
    reasons = [""] * 7 + ["no valid score", "cancelled", "cancelled"]
    assessments = [{"execution_id": str(i), "valid": not reason, "reason": reason, "created_at_s": 3.0} for i, reason in enumerate(reasons)]
    tables = {"executions": executions, "assessments": assessments, "steps": [{"version": 1, "time_s": 9.0}], "events": []}
    monkeypatch.setattr(fit, "read_run_spec", lambda run: spec)
    monkeypatch.setattr("gyre.store.run_store.read_table", lambda run, name, where=None: rows_of(tables[name]))
    read = fit.read_run(tmp_path)
    assert (len(read.executions), len(read.assessments)) == (9, 8)
    limits = fit._fit_limits(read, WorkloadSettings())
    assert limits["unresolved_share"] == pytest.approx(1 / 8)


def rows_of(rows: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema([("time_s", pa.float64()), ("detail", pa.string())])
    return pa.Table.from_pylist(rows) if rows else schema.empty_table()
