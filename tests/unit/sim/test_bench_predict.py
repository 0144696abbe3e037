"""`gyre bench predict` on runs that are simulations themselves."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.recorded_simulation import RecordedSimulation

from gyre.bench import predict
from gyre.errors import UserError
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.graph.workload import WorkloadSettings
from gyre.sim import fit
from gyre.sim.setting import read_setting

pytestmark = pytest.mark.sim
TRUE = WorkloadSettings(execution_s=4.0, evaluation_s=0.1, evaluation_slots=2, train_rank_s=0.08, microsteps_per_group=4, publish_s=0.4)
SETTINGS = {"rounds": "1", "steps": "6"}


class Machine:
    """Makes runs in place of `gyre run`."""

    def __init__(self) -> None:
        self.tables: dict[str, fit.RunTables] = {}
        self.slow = 1.0
        """Factor on everything that the baselines do."""
        self.leaves_open = 0
        """Steps that a run lacks."""

    def run(self, command: list[str], **_: Any) -> SimpleNamespace:
        run_dir = Path(command[command.index("--run-dir") + 1])
        parameters = dict(word.split("=", 1) for word in command if "=" in word)
        plan = plan_pipeline(build_graph(load_spec(Path(command[4]), parameters)))
        slow = 1.0 if parameters["policy"] == "elastic" else self.slow
        workload = replace(TRUE, execution_s=TRUE.execution_s * slow, train_rank_s=TRUE.train_rank_s * slow)
        simulation = RecordedSimulation(read_setting(plan, workload))
        simulation.run()
        tables = simulation.tables(plan)
        self.tables[str(run_dir)] = replace(tables, steps=tables.steps[: len(tables.steps) - self.leaves_open])
        run_dir.mkdir(parents=True)
        (run_dir / "spec.json").touch()
        return SimpleNamespace(returncode=0)

    def read(self, run_dir: Path) -> fit.RunTables:
        return self.tables[str(run_dir)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(fit, "read_run", made.read)
    monkeypatch.setattr(predict, "read_run", made.read)
    monkeypatch.setattr(predict, "verifies", lambda run_dir: True)
    monkeypatch.setattr(predict, "NUM_DRAWS", 2)
    return made


def test_runs_of_a_known_workload_are_predicted(machine: Machine, tmp_path: Path) -> None:
    result = predict.run({**SETTINGS, "dir": str(tmp_path)})
    assert result["ok"], result
    assert sorted(path.name for path in tmp_path.iterdir()) == ["async-0", "colocate-0", "elastic-0"]
    assert {row["policy"]: row["groups"] for row in result["rows"]} == dict.fromkeys(predict.POLICIES, 48)


def test_runs_that_are_there_are_not_made_again(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = predict.run({**SETTINGS, "dir": str(tmp_path)})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a run was made again"))
    assert predict.run({**SETTINGS, "dir": str(tmp_path)}) == first


def test_a_wrong_prediction_is_outside_the_limits(machine: Machine, tmp_path: Path) -> None:
    machine.slow = 2.0
    result = predict.run({**SETTINGS, "dir": str(tmp_path)})
    assert not result["ok"] and result["figures"]["max_time_error"] > 0.2


def test_a_run_that_verify_faults_is_outside_the_limits(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "verifies", lambda run_dir: run_dir.name != "colocate-0")
    assert not predict.run({**SETTINGS, "dir": str(tmp_path)})["ok"]


def test_an_unfinished_run_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.leaves_open = 2
    with pytest.raises(UserError, match="has made 4 of 6 steps"):
        predict.run({**SETTINGS, "dir": str(tmp_path)})


def test_a_run_that_fails_is_an_error(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(UserError, match="ended with exit code 1"):
        predict.run({**SETTINGS, "dir": str(tmp_path)})


def test_every_policy_runs_at_the_same_mean_staleness() -> None:
    placed = predict.place_policies(predict.shipped_pipeline("quickstart"), {})
    assert placed["async"] == {"policy": "async", "phi": "1.0", "mu": "1"}
    assert placed["colocate"] == {"policy": "colocate", "phi": "0.0", "mu": "3"}
