"""Invariants of simulated runs over random workloads and faults, all policies (issue: what must hold whatever happens)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from sim_checked import CheckedSimulation, sim_settings

from gyre.errors import SimulationError
from gyre.sim.simulation import SimSetting, Simulation


def assert_complete(simulation: CheckedSimulation) -> None:
    """d = p = f, every group consumed exactly once, all of it published."""
    config, scheduler = simulation.setting.config, simulation.scheduler
    assert config.steps is not None
    assert set(scheduler.counters) == {config.steps * config.groups_per_step * config.executions_per_group}
    assert sorted(simulation.consumed) == [f"g{index:06d}" for index in range(config.steps * config.groups_per_step)]
    assert scheduler.version == scheduler.published_version == config.steps


@given(setting=sim_settings())
@settings(max_examples=40, deadline=None)
def test_a_run_ends_with_every_group_consumed_once(setting: SimSetting) -> None:
    simulation = CheckedSimulation(setting)
    outcome = simulation.run()
    assert_complete(simulation)
    assert outcome.duration_s > 0
    assert sum(outcome.staleness.values()) == len(simulation.consumed)
    assert sum(outcome.role_shares.values()) == pytest.approx(1)
    assert 0 <= outcome.rollout_utilisation <= 1 + 1e-9
    assert 0 <= outcome.training_utilisation <= 1 + 1e-9


@given(setting=sim_settings(with_faults=True))
@settings(max_examples=50, deadline=None)
def test_a_run_ends_under_faults(setting: SimSetting) -> None:
    simulation = CheckedSimulation(setting)
    with suppress(SimulationError):
        simulation.run()
    if simulation.failure:
        assert "no cell is left" in simulation.failure
    else:
        # A group whose step was cut short by a loss stays consumed once; nothing is dispatched for it again.
        assert_complete(simulation)


@given(setting=sim_settings(with_faults=True))
@settings(max_examples=20, deadline=None)
def test_equal_seeds_give_equal_events(setting: SimSetting) -> None:
    hashes = []
    for _ in range(2):
        simulation = Simulation(setting)
        with suppress(SimulationError):
            simulation.run()
        hashes.append((simulation.journal.event_hash, simulation.clock.now_s))
    assert hashes[0] == hashes[1]


@given(setting=sim_settings(is_closed=False))
@settings(max_examples=25, deadline=None)
def test_an_open_horizon_stops_at_its_step_and_keeps_the_staleness_identity(setting: SimSetting) -> None:
    simulation = CheckedSimulation(setting)
    outcome = simulation.run()
    assert simulation.scheduler.version == setting.steps == len(outcome.steps)
    simulation.check_staleness()


@given(setting=sim_settings())
@settings(max_examples=20, deadline=None)
def test_nothing_is_faster_than_the_work_bound(setting: SimSetting) -> None:
    if setting.workload.contention or len(set(setting.config.cells)) > 1 or len(set(setting.num_ranks)) > 1:
        return
    assert Simulation(setting).run().over_work_bound >= 1 - 1e-9
