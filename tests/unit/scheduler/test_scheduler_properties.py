"""Properties of the scheduler under random latencies and faults, all policies (semantics.md, sections 2 and 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_driver import Driver, Run

from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig


@st.composite
def configs(draw: st.DrawFn, policy: str | None = None) -> SchedulerConfig:
    name = policy or draw(st.sampled_from(["elastic", "async", "colocate"]))
    cells = tuple(draw(st.lists(st.integers(1, 4), min_size=2 if name == "async" else 1, max_size=4)))
    return SchedulerConfig(
        groups_per_step=draw(st.integers(1, 4)),
        group_size=draw(st.integers(1, 3)),
        phi=draw(st.sampled_from([0.0, 0.5, 1.5])),
        mu=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 5)),
        oversample=draw(st.integers(0, 1)),
        cells=cells,
        standalone=tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        policy=name,
        rho_min=draw(st.sampled_from([0.25, 1.0])),
        hold_s=draw(st.sampled_from([0.0, 1.0])),
        streaming=draw(st.booleans()),
        train_cells=draw(st.integers(1, len(cells) - 1)) if name == "async" else 1,
        launch_order=draw(st.sampled_from(["fifo", "longest_first"])),
        dispatch=draw(st.sampled_from(["boundary", "boundary", "continuous"])),
    )


seeds = st.integers(0, 2**32)


def assert_complete(config: SchedulerConfig, run: Run, driver: Driver) -> None:
    """d = p = f, every group consumed exactly once, all of it published."""
    counters = driver.scheduler.counters
    assert counters.dispatched == counters.launched == counters.finished == config.total_groups * config.executions_per_group
    assert set(run.consumed) == set(run.groups)
    assert len(run.groups) == config.total_groups
    assert run.version == run.published_version == config.steps
    assert all(v_d <= v_t for v_d, v_t in run.consumed.values())


@given(config=configs(), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_a_run_ends_with_every_group_consumed_once(config: SchedulerConfig, seed: int) -> None:
    driver = Driver(config, seed).play()
    assert driver.is_finished
    assert_complete(config, driver.run, driver)
    histogram = driver.scheduler.staleness.histogram
    assert sum(v_t - v_d for v_d, v_t in driver.run.consumed.values()) == sum(k * n for k, n in histogram.items())


@given(config=configs(), seed=seeds)
@settings(max_examples=50, deadline=None)
def test_a_run_ends_under_faults(config: SchedulerConfig, seed: int) -> None:
    driver = Driver(config, seed, faults=0.5).play()
    if driver.failure:
        assert "no cell is left" in driver.failure
    else:
        assert_complete(config, driver.run, driver)


@given(config=configs(), seed=seeds, crashes=st.lists(st.integers(1, 120), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_a_run_resumes_after_a_crash(config: SchedulerConfig, seed: int, crashes: list[int]) -> None:
    run = Run()
    for number, events in enumerate(crashes):
        Driver(config, seed + number, run=run).play(crash_after=events)
        versions = {group_id: group[1] for group_id, group in run.groups.items()}
    driver = Driver(config, seed + 99, run=run).play()
    assert_complete(config, run, driver)
    assert all(run.groups[group_id][1] == version for group_id, version in versions.items())


@given(config=configs(), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_equal_seeds_give_equal_decisions(config: SchedulerConfig, seed: int) -> None:
    assert Driver(config, seed, faults=0.3).play().log == Driver(config, seed, faults=0.3).play().log


@given(config=configs(), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_an_evaluation_closes_every_group_and_moves_no_cell(config: SchedulerConfig, seed: int) -> None:
    driver = Driver(replace(config, train=False, steps=None, num_groups=7), seed, faults=0.2).play()
    assert {type(decision) for decision in driver.log} <= {d.Dispatch, d.Launch, d.Cancel, d.Reroute, d.Finish, d.Fail}
    if not driver.failure:
        assert driver.scheduler.counters.finished == 7 * config.executions_per_group


@pytest.mark.parametrize(
    ("policy", "phi", "mu"),
    [("elastic", 0.5, 3), ("elastic", 0.5, 2), ("async", 1.5, 1), ("async", 1.0, 2), ("colocate", 0.0, 4), ("colocate", 0.5, 2)],
)
def test_mean_staleness_approaches_the_identity(policy: str, phi: float, mu: int) -> None:
    config = SchedulerConfig(
        groups_per_step=4, group_size=1, phi=phi, mu=mu, cells=(3, 3), standalone=(2,), policy=policy, rho_min=0.5, steps=120
    )
    driver = Driver(config, 1).play()
    v = [(v_t, v_t - v_d) for v_d, v_t in driver.run.consumed.values()]
    tail = [staleness for v_t, staleness in v if 24 <= v_t < 96]
    assert sum(tail) / len(tail) == pytest.approx(config.expected_staleness, abs=0.08)
