"""Fitting a workload to a run: here the run is a simulated one, so what must come out is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
