"""Engines that are shared, draws of the workload, faults of the spec, what a standstill says."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

import gyre.sim.clock
import gyre.sim.engines
import gyre.sim.report
import gyre.sim.workload
from gyre.errors import SimulationError
from gyre.graph.workload import WorkloadSettings, check_workload
from gyre.scheduler.config import SchedulerConfig
from gyre.sim.engines import EngineModel, Running
from gyre.sim.simulation import SimSetting, Simulation
from gyre.sim.workload import Workload

SETTING = SimSetting(
    config=SchedulerConfig(groups_per_step=4, group_size=2, phi=0.5, mu=2, steps=4, cells=(4, 4)),
    workload=WorkloadSettings(execution_s=10.0),
    steps=4,
    num_ranks=(1, 1),
)


@pytest.mark.parametrize("module", [gyre.sim.clock, gyre.sim.engines, gyre.sim.workload, gyre.sim.report])
def test_worked_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0


def running(name: str, left_s: float) -> Running:
    return Running(execution_id=name, group_id="g", launched_s=0.0, left_s=left_s, is_unresolved=False)


def test_an_engine_keeps_work_whatever_the_load_does() -> None:
    """Three executions, one of which moves away and back: what they have left adds up to their lengths."""
    engine, other = (EngineModel(name, capacity=3, load_share=0.5) for name in ("cell0", "cell1"))
    a, b, c = (running(name, 12.0) for name in "abc")
    engine.add(a, now_s=0.0)
    engine.add(b, now_s=0.0)
    engine.add(c, now_s=0.0)
    assert engine.speed == 1.0
    engine.remove(b, now_s=4.0)
    assert b.left_s == pytest.approx(8.0)
    other.add(b, now_s=4.0)
    assert other.speed == pytest.approx(1.5)
    other.remove(b, now_s=6.0)
    assert b.left_s == pytest.approx(5.0)
    engine.add(b, now_s=6.0)
    assert engine.next_end_s(now_s=6.0) == pytest.approx(6.0 + b.left_s)
    assert engine.pop_done(now_s=11.0) is b
    assert engine.num_running == 2


def test_contention_slows_an_engine_down() -> None:
    engine = EngineModel("cell0", capacity=1, load_share=0.0)
    engine.add(running("a", 10.0), now_s=0.0)
    engine.set_slowdown(2.0, now_s=4.0)
    assert engine.next_end_s(now_s=4.0) == pytest.approx(16.0)


def test_draws_have_the_mean_and_the_shares_that_were_asked_for() -> None:
    settings = WorkloadSettings(
        execution_s=100.0, query_spread=0.4, execution_spread=0.3, unresolved_share=0.02, unresolved_groups=0.1, train_rank_s=3.0
    )
    workload = Workload(settings, group_size=16, executions_per_group=16, seed=3)
    draws = [workload.draw(index) for index in range(1500)]
    lengths = [length for draw in draws for length in draw.lengths_s]
    assert sum(lengths) / len(lengths) == pytest.approx(100.0, rel=0.04)
    assert sum(draw.train_rank_s for draw in draws) / len(lengths) == pytest.approx(3.0, rel=0.04)
    unresolved = [sum(draw.is_unresolved) for draw in draws]
    assert sum(unresolved) / len(lengths) == pytest.approx(0.02, rel=0.2)
    assert sum(count > 0 for count in unresolved) / len(draws) < 0.1 * 1.2


def test_training_may_ignore_length() -> None:
    settings = WorkloadSettings(train_rank_s=3.0, train_spread_by_length=0.0)
    draw = Workload(settings, group_size=4, executions_per_group=5, seed=0).draw(0)
    assert draw.train_rank_s == pytest.approx(12.0)


def test_deadlines_cut_executions_and_end_them_as_timeouts() -> None:
    workload = replace(SETTING.workload, deadline_s=10.0, query_spread=0.0, execution_spread=0.5)
    simulation = Simulation(replace(SETTING, workload=workload))
    outcome = simulation.run()
    assert outcome.ends["timeout"] > 0
    assert max(outcome.group_maxima_s) == pytest.approx(10.0)


def test_an_unresolved_execution_holds_its_group_and_no_place() -> None:
    workload = replace(SETTING.workload, budget_s=500.0, unresolved_share=1.0, query_spread=0.0, execution_spread=0.0)
    outcome = Simulation(replace(SETTING, workload=workload)).run()
    assert outcome.ends["unresolved"] == outcome.ends["completed"] == 32
    assert outcome.group_maxima_s == pytest.approx([500.0] * 16)
    assert outcome.rollout_utilisation < 0.1


def test_an_oversampled_group_waits_for_no_outcome_that_it_does_not_need() -> None:
    """As in a live run: with N valid outcomes it is ready once its harnesses have ended, whatever the surplus is still waiting for."""
    config = replace(SETTING.config, group_size=1, oversample=3, cells=(16, 16))
    workload = replace(SETTING.workload, budget_s=1e6, unresolved_share=0.1, query_spread=0.0)
    simulation = Simulation(replace(SETTING, config=config, workload=workload))
    assert simulation.run().duration_s < 1e3
    assert simulation.journal.ends["unresolved"] > 0
    assert set(simulation.scheduler.counters) == {16 * 4}


def test_a_surplus_that_ends_at_the_moment_of_its_cancellation_is_let_be() -> None:
    config = SchedulerConfig(groups_per_step=2, group_size=2, oversample=1, steps=None, cells=(1, 1), standalone=(2,), rho_min=0.1)
    workload = WorkloadSettings(execution_s=1.0, query_spread=0.0, execution_spread=0.0, train_rank_s=0.0, microsteps_per_group=1)
    assert len(Simulation(SimSetting(config=config, workload=workload, steps=1, num_ranks=(1, 1))).run().steps) == 1


def test_the_work_bound_of_an_oversampled_group_is_its_shortest_executions() -> None:
    settings = WorkloadSettings(execution_s=10.0, deadline_s=12.0)
    draw = Workload(settings, group_size=2, executions_per_group=5, seed=1).draw(0)
    assert draw.work_s == pytest.approx(sum(min(length, 12.0) for length in sorted(draw.lengths_s)[:2]))


def test_what_still_runs_at_the_end_has_held_a_place() -> None:
    """Three executions of 10 s in two places, a step of 5 s on the first: the third has run for 5 s when the simulation stops."""
    config = SchedulerConfig(
        groups_per_step=1, group_size=1, phi=2.0, mu=1, steps=None, cells=(1,), standalone=(2,), policy="async", train_cells=1
    )
    workload = WorkloadSettings(execution_s=10.0, query_spread=0.0, execution_spread=0.0, train_rank_s=5.0)
    outcome = Simulation(SimSetting(config=config, workload=workload, steps=1, num_ranks=(1,))).run()
    assert outcome.duration_s == pytest.approx(15.0)
    assert outcome.rollout_utilisation == pytest.approx((10 + 10 + 5) / (2 * 15))


def test_an_evaluation_has_a_work_bound() -> None:
    config = replace(SETTING.config, train=False)
    assert Simulation(replace(SETTING, config=config)).run().over_work_bound >= 1


def test_evaluators_take_turns() -> None:
    workload = replace(SETTING.workload, query_spread=0.0, execution_spread=0.0, evaluation_s=7.0, evaluation_slots=1)
    outcome = Simulation(replace(SETTING, workload=workload)).run()
    assert outcome.duration_s >= 32 * 7.0


def test_a_standstill_names_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(SETTING)
    monkeypatch.setitem(simulation._performers, __import__("gyre.scheduler.decisions", fromlist=["Publish"]).Publish, lambda decision: None)
    with pytest.raises(SimulationError, match=r"stands still at \d+ s: after version 2 the burst is in phase 'publishing'.*cell0 serves 0"):
        simulation.run()


def test_a_circle_in_which_no_time_passes_is_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyre.sim.simulation.MAX_EVENTS_WITHOUT_TIME", 1000)
    simulation = Simulation(SETTING)

    def again(_: object) -> None:
        simulation.clock.after(0.0, again)

    again(None)
    with pytest.raises(SimulationError, match="stands still at 0 s"):
        simulation.run()


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"execution_s": 0.0}, "execution_s"),
        ({"load_share": 1.5}, "load_share"),
        ({"load_share": 1.0}, "load_share"),
        ({"publish_s": -1.0}, "publish_s"),
        ({"unresolved_share": 0.2, "unresolved_groups": 0.1}, "unresolved_groups"),
    ],
)
def test_numbers_that_make_no_workload_are_refused(changed: dict[str, float], path: str) -> None:
    problems = list(check_workload(WorkloadSettings(**changed)))
    assert [problem.path for problem in problems] == [f"resources.workload.{path}"]
