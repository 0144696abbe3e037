"""`gyre simulate` and `gyre tune` on shipped pipelines: documents, comparisons, perturbations, pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gyre.cli import run_cli
from gyre.errors import UserError
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.graph.workload import WorkloadSettings
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.setting import place_async, place_colocate, place_elastic, read_setting, simulate
from gyre.sim.simulate import load_setting
from gyre.sim.tune import LEAST_GAIN, Candidate, find_best

PIPELINES = Path(__file__).resolve().parents[3] / "pipelines"
PAPER = PIPELINES / "paper"
pytestmark = pytest.mark.sim


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run_cli([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def hours(name: str, **parameters: object) -> float:
    spec = load_spec(PAPER / f"{name}.jsonnet", {key: str(value) for key, value in parameters.items()})
    return simulate(load_setting(spec, from_run=None)[0]).hours


def test_the_quickstart_is_compared_at_one_staleness(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "simulate", str(PIPELINES / "quickstart.jsonnet"), "--compare", "--set", "steps=12")
    policies = document["policies"]
    assert set(policies) == {"elastic", "async", "colocate"}
    assert [(p["phi"], p["mu"]) for p in policies.values()] == [(0.5, 2), (1.0, 1), (0.0, 3)]
    for policy in policies.values():
        assert policy["steps"] == 12
        assert policy["hours"] > 0
        assert policy["over_work_bound"] >= 1
        assert set(policy["utilisation"]) >= {"rollout", "training"}
        assert sum(policy["staleness"].values()) == 12 * 8
    assert document["speedups"]["async"] == pytest.approx(policies["async"]["hours"] / policies["elastic"]["hours"])


def test_without_compare_there_is_the_pipelines_own_policy(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "simulate", str(PIPELINES / "quickstart.jsonnet"), "--set", "steps=2", "--set", "policy=colocate")
    assert list(document["policies"]) == ["colocate"]


def test_an_evaluation_is_simulated_too(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", str(PIPELINES / "quickstart.jsonnet"), "--compare", "--set", "train=false", "--set", "steps=2")
    document = run_json(capsys, *arguments)
    assert [policy["role_changes"] for policy in document["policies"].values()] == [0]


def test_text_shows_policies_and_roles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["simulate", str(PIPELINES / "quickstart.jsonnet"), "--set", "steps=4"]) == 0
    shown = capsys.readouterr()
    assert "all 4 steps in virtual time" in shown.out
    assert "cell 2" in shown.out
    assert "says nothing of its workload" in shown.err


def test_a_pipeline_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "simulate", str(PIPELINES / "quickstart.jsonnet"), "--set", "steps=null", code=2)
    assert "no end to simulate" in document["error"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"roles.{ending}"
    arguments = ["simulate", str(PIPELINES / "quickstart.jsonnet"), "--compare", "--set", "steps=4", "--plot", str(picture)]
    assert run_cli(arguments) == 0
    assert picture.stat().st_size > 5000


def test_a_picture_without_matplotlib_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "matplotlib" else object())
    arguments = ["simulate", str(PIPELINES / "quickstart.jsonnet"), "--set", "steps=2", "--plot", str(tmp_path / "roles.png")]
    assert run_cli(arguments) == 2
    assert "matplotlib" in capsys.readouterr().err


def test_every_paper_pipeline_is_simulated() -> None:
    assert hours("nl2repo_2_4t", steps=3) > 0
    assert hours("deepswe_122b", steps=3) > hours("terminalbench_122b", steps=3) > 0


def test_perturbations_go_the_way_the_model_implies() -> None:
    base = hours("nl2repo_122b", steps=6)
    assert hours("nl2repo_122b", steps=6, cells=6) > base, "fewer cells take longer"
    assert hours("nl2repo_122b", steps=6, cells=10) < base, "more cells are faster"
    assert hours("nl2repo_122b", steps=6, deadline_h=2.5) < base, "an earlier deadline cuts the tail"
    assert hours("nl2repo_122b", steps=6, deadline_h=8) > base, "a later one lengthens it"
    assert hours("nl2repo_122b", steps=6, mu=1) > base, "less dispatch at a time leaves places empty"
    assert hours("nl2repo_122b", steps=12, row="A0") > hours("nl2repo_122b", steps=12), "a fixed split is slower"


def test_equal_seeds_are_equal_and_others_differ() -> None:
    setting, _ = load_setting(load_spec(PAPER / "nl2repo_122b.jsonnet", {"steps": "2"}), from_run=None)
    other, _ = load_setting(load_spec(PAPER / "nl2repo_122b.jsonnet", {"steps": "2", "seed": "1"}), from_run=None)
    hashes = [simulate(each).event_hash for each in (setting, setting, other)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(("phi", "mu"), [(0.5, 3), (0.5, 2), (0.0, 1), (1.5, 1), (0.0, 4)])
def test_placements_share_the_mean_staleness(phi: float, mu: int) -> None:
    config = SchedulerConfig(groups_per_step=8, group_size=2, phi=phi, mu=mu, cells=(4, 4), policy="elastic")
    asynchronous, colocate = place_async(config, train_cells=1), place_colocate(config)
    assert asynchronous.expected_staleness == colocate.expected_staleness == config.expected_staleness
    assert (asynchronous.mu, colocate.phi) == (1, 0.0)
    assert place_elastic(colocate).expected_staleness == config.expected_staleness
    assert place_elastic(config) is config


def test_tuning_keeps_to_the_bound_and_says_what_it_gains(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "tune", str(PIPELINES / "quickstart.jsonnet"), "--staleness", "1")
    assert document["own"]["change"] == ""
    assert document["best"]["staleness_expected"] <= 1
    assert document["best"]["s_per_step"] <= document["own"]["s_per_step"]
    assert document["why"]
    tried = [candidate["settings"] for candidate in document["tried"]]
    assert {(t["phi"], t["mu"]) for t in tried} == {(1.0, 1), (0.5, 2), (0.0, 3)}
    assert {t["launch_order"] for t in tried} == {"fifo", "longest_first"}


def test_tuning_a_fixed_split_leaves_a_cell_for_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tune", str(PIPELINES / "quickstart.jsonnet"), "--staleness", "1", "--set", "policy=async", "--set", "cells=2")
    assert {candidate["settings"]["cells"] for candidate in run_json(capsys, *arguments)["tried"]} == {2}


def test_a_change_that_saves_next_to_nothing_is_not_recommended() -> None:
    setting, _ = load_setting(load_spec(PIPELINES / "quickstart.jsonnet", {}), from_run=None)
    outcome: Any = None
    times = (10.0, 10.0 * (1 - LEAST_GAIN / 2), 9.0, 9.0 * (1 - LEAST_GAIN / 2))
    tried = [Candidate(setting=setting, change=str(s), s_per_step=s, outcome=outcome) for s in times]
    assert find_best(tried[:2], staleness=1.0) is tried[0]
    assert find_best(tried, staleness=1.0) is tried[2]
    assert find_best(tried, staleness=0.5) is None


def write_pipeline(folder: Path, text: str) -> str:
    file = folder / "odd.jsonnet"
    file.write_text(f"local quickstart = (import '{PIPELINES / 'quickstart.jsonnet'}')(steps=2);\n{text}", encoding="utf-8")
    return str(file)


def test_more_training_cells_than_there_are_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = write_pipeline(tmp_path, "quickstart + { ops+: { elastic+: { args+: { train_cells: 3 } } } }")
    assert "train_cells=3 cannot be compared" in run_json(capsys, "simulate", pipeline, "--compare", code=2)["error"]
    assert run_json(capsys, "simulate", pipeline)["policies"].keys() == {"elastic"}


def test_a_plan_without_cells_is_refused() -> None:
    plan = plan_pipeline(build_graph(load_spec(PIPELINES / "quickstart.jsonnet", {})))
    with pytest.raises(UserError, match="uses no cells"):
        read_setting(replace(plan, cells=()), WorkloadSettings())
