"""Worked cases of the scheduler: small enough to follow by hand."""

from __future__ import annotations

import pytest

from gyre.scheduler import decisions as d
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.restore import RestoredExecution, RestoredGroup, RestoredState
from gyre.scheduler.scheduler import Scheduler


def kinds(decisions: tuple[d.Decision, ...]) -> list[str]:
    return [type(decision).__name__ for decision in decisions]


def make(**changes: object) -> SchedulerConfig:
    settings = {"groups_per_step": 2, "group_size": 1, "steps": 2, "mu": 2, "cells": (1, 1, 1), "rho_min": 0.5}
    return SchedulerConfig(**{**settings, **changes})


def begin(scheduler: Scheduler) -> None:
    """Start and admit every group of the first dispatch, one execution each, all launched."""
    (dispatch, *_) = [x for x in scheduler.start(now_s=0.0) if isinstance(x, d.Dispatch)]
    for index in range(dispatch.num_groups):
        for decision in scheduler.admitted(f"g{index}", index, [f"g{index}-0"], 0, now_s=0.0):
            if isinstance(decision, d.Launch):
                scheduler.launched(decision.execution_id, now_s=0.0)


def end_group(scheduler: Scheduler, index: int, *, now_s: float = 1.0) -> tuple[d.Decision, ...]:
    """One execution ends and its group is ready."""
    first = scheduler.finished(f"g{index}-0", "completed", now_s=now_s)
    for decision in first:
        if isinstance(decision, d.Launch):
            scheduler.launched(decision.execution_id, now_s=now_s)
    return (*first, *scheduler.group_ready(f"g{index}", now_s=now_s))


@pytest.mark.parametrize("policy", ["elastic", "async", "colocate"])
@pytest.mark.parametrize("event", ["tick", "want_group"])
def test_an_event_before_the_start_decides_nothing(policy: str, event: str) -> None:
    early, usual = Scheduler(make(policy=policy)), Scheduler(make(policy=policy))
    assert getattr(early, event)(now_s=0.0) == ()
    assert early.start(now_s=0.0) == usual.start(now_s=0.0)
    assert early.routes.num_open_places == usual.routes.num_open_places
    assert early.roles == usual.roles


def test_an_elastic_burst_from_first_departure_to_the_end() -> None:
    s = Scheduler(make())
    begin(s)
    assert (s.waterlevel, s.counters) == (4, (4, 3, 0))
    assert kinds(end_group(s, 0)) == ["Launch"]
    assert kinds(end_group(s, 1)) == ["ToTraining"]
    assert s.roles == ("leaving", "rollout", "rollout")
    assert kinds(s.switched_to_training(0, now_s=2.0)) == ["BeginStep"]
    assert kinds(s.want_group(now_s=2.0)) == ["Consume"]
    assert [x.last for x in s.want_group(now_s=2.0)] == [True]
    assert kinds(end_group(s, 2)) == ["ToTraining"]
    assert kinds(s.stream_exhausted(now_s=3.0)) == ["CloseWindow"]
    assert kinds(s.switched_to_training(1, now_s=3.0)) == []
    (reduce,) = s.drained(now_s=3.0)
    assert reduce.cells == (0,), "satellite 1 came after the window was closed"
    assert [(type(x).__name__) for x in s.updated(1, now_s=4.0)] == ["BeginStep", "Join"]
    assert s.members == (0, 1)
    assert kinds(s.want_group(now_s=4.0)) == ["Consume"]
    assert kinds(s.want_group(now_s=4.0)) == []
    assert kinds(end_group(s, 3)) == ["ToTraining", "Consume"]
    s.stream_exhausted(now_s=5.0)
    (reduce,) = s.drained(now_s=5.0)
    assert reduce.cells == (0, 1)
    after = s.updated(2, now_s=6.0)
    assert kinds(after) == ["ToRollout", "Publish"]
    s.switched_to_rollout(1, now_s=6.5)
    assert s.published(2, now_s=7.0) == (), "satellite 2 is still on its way to training"
    assert kinds(s.switched_to_training(2, now_s=7.5)) == ["ToRollout"]
    assert kinds(s.switched_to_rollout(2, now_s=8.0)) == ["Finish"]
    assert s.counters == (4, 4, 4)


def test_the_core_stays_when_supply_and_capacity_hold_after_the_dispatch() -> None:
    s = Scheduler(make(mu=1, phi=1.0, steps=None, cells=(9, 9, 9)))
    begin(s)
    for index in range(3):
        end_group(s, index)
    s.switched_to_training(0, now_s=2.0)
    s.want_group(now_s=2.0)
    s.want_group(now_s=2.0)
    s.drained(now_s=3.0)
    assert kinds(s.updated(1, now_s=4.0)) == ["Publish"]
    assert kinds(s.published(1, now_s=5.0)) == ["Dispatch", "RetainCore", "BeginStep"]


def test_the_core_returns_when_the_dispatch_fills_its_capacity() -> None:
    s = Scheduler(make(mu=1, phi=1.0, steps=None, cells=(2, 1)))
    begin(s)
    for index in range(3):
        end_group(s, index)
    s.switched_to_training(0, now_s=2.0)
    s.want_group(now_s=2.0)
    s.want_group(now_s=2.0)
    s.drained(now_s=3.0)
    s.updated(1, now_s=4.0)
    decisions = s.published(1, now_s=5.0)
    assert kinds(decisions) == ["Dispatch", "ToRollout"]
    assert (decisions[0].num_groups, decisions[0].version) == (2, 1)


def test_hold_time_delays_a_departure_until_a_tick() -> None:
    s = Scheduler(make(hold_s=5.0, cells=(4, 4)))
    begin(s)
    assert kinds(end_group(s, 0, now_s=10.0)) == []
    assert s.find_wake_s() == 15.0
    assert kinds(s.tick(now_s=14.9)) == []
    (departure,) = s.tick(now_s=15.0)
    assert [move.engine for move in departure.moves] == ["cell1", "cell1"]


def test_moves_go_to_standalone_engines_first_then_to_the_highest_cell() -> None:
    s = Scheduler(make(cells=(2, 1, 2), standalone=(1,), steps=3, phi=0.5, mu=1, groups_per_step=4, rho_min=0.25))
    begin(s)
    assert s.waterlevel == 6
    on_core = [e for e in (f"g{i}-0" for i in range(6)) if s.find_route(e) == "cell0"]
    others = [e for e in (f"g{i}-0" for i in range(6)) if s.find_route(e) in ("standalone0", "cell2")]
    assert (len(on_core), len(others)) == (2, 3)
    s.finished(others[0], "completed", now_s=1.0)
    s.group_ready(others[0][:2], now_s=1.0)
    (departure,) = [
        x for x in (*s.finished(others[1], "completed", now_s=1.0), *s.group_ready(others[1][:2], now_s=1.0)) if isinstance(x, d.ToTraining)
    ]
    assert departure.cell == 0
    assert {move.execution_id for move in departure.moves} == set(on_core)
    assert {move.engine for move in departure.moves} <= {"standalone0", "cell2"}


def test_oversampling_cancels_the_surplus_once_enough_outcomes_are_valid() -> None:
    s = Scheduler(make(groups_per_step=1, steps=1, mu=1, group_size=1, oversample=2, cells=(2,)))
    s.start(now_s=0.0)
    s.admitted("g0", 0, ["a", "b", "c"], 0, now_s=0.0)
    s.launched("a", now_s=0.0)
    s.launched("b", now_s=0.0)
    assert [x.execution_id for x in s.finished("a", "completed", now_s=1.0) if isinstance(x, d.Launch)] == ["c"]
    assert [x.execution_id for x in s.assessed("a", valid=True, now_s=1.0)] == ["b", "c"]
    s.finished("b", "cancelled", now_s=1.0)
    s.finished("c", "cancelled", now_s=1.0)
    assert s.counters == (3, 3, 3)
    assert kinds(s.group_ready("g0", now_s=1.0)) == ["ToTraining"]


def test_an_execution_cancelled_while_queued_raises_p_and_f_together() -> None:
    s = Scheduler(make(groups_per_step=1, steps=1, mu=1, group_size=1, oversample=1, cells=(1,)))
    s.start(now_s=0.0)
    s.admitted("g0", 0, ["a", "b"], 0, now_s=0.0)
    s.launched("a", now_s=0.0)
    assert kinds(s.assessed("a", valid=True, now_s=1.0)) == ["Cancel", "Cancel"]
    assert s.counters == (2, 1, 0)
    assert kinds(s.finished("b", "cancelled", now_s=1.0)) == []
    assert s.counters == (2, 2, 1)


def step_with_three_cells() -> Scheduler:
    s = Scheduler(make(groups_per_step=3, steps=4, mu=4, cells=(9, 9, 9), rho_min=0.1))
    begin(s)
    for index in range(3):
        end_group(s, index)
    for cell in range(2):
        s.switched_to_training(cell, now_s=2.0)
    assert (s.phase, s.members) == ("stepping", (0, 1))
    for index in range(3, 12):
        end_group(s, index)
    s.switched_to_training(2, now_s=2.0)
    assert s.members == (0, 1, 2)
    return s


def test_a_lost_satellite_takes_all_later_ones_out_of_the_step() -> None:
    s = step_with_three_cells()
    decisions = s.cell_lost(1, now_s=3.0)
    assert kinds(decisions)[:3] == ["CloseWindow", "Discard", "ToRollout"]
    assert decisions[1].cells == (1, 2)
    assert s.members == (0,)
    assert s.roles == ("training", "lost", "returning")
    assert kinds(s.switched_to_rollout(2, now_s=4.0)) == ["ToTraining"], "it may join the burst's next step"


def test_a_loss_during_the_reduction_asks_for_the_work_again() -> None:
    s = step_with_three_cells()
    for _ in range(3):
        s.want_group(now_s=2.0)
    s.stream_exhausted(now_s=2.0)
    assert s.drained(now_s=2.0)[-1].cells == (0, 1, 2)
    assert kinds(s.cell_lost(2, now_s=3.0)) == ["Discard"]
    assert s.phase == "stepping"
    assert s.drained(now_s=4.0)[-1].cells == (0, 1)


def test_losing_the_core_ends_the_run_resumably() -> None:
    s = step_with_three_cells()
    assert kinds(s.cell_lost(0, now_s=3.0)) == ["Fail"]
    assert s.updated(1, now_s=3.0) == ()


def test_a_lost_rollout_cell_parks_its_executions_until_a_place_is_free() -> None:
    s = Scheduler(make(cells=(1, 1)))
    begin(s)
    (parked,) = [e for e in (f"g{i}-0" for i in range(4)) if s.find_route(e) == "cell1"]
    assert kinds(s.cell_lost(1, now_s=1.0)) == []
    assert s.find_route(parked) is None
    (other,) = [e for e in (f"g{i}-0" for i in range(4)) if s.find_route(e) == "cell0"]
    (reroute,) = s.finished(other, "completed", now_s=2.0)
    assert reroute.moves == ((parked, "cell0"),)


def test_a_returning_engine_accepts_only_once_the_publication_is_confirmed() -> None:
    s = Scheduler(make(mu=1, steps=3, cells=(1, 1), rho_min=0.5))
    begin(s)
    end_group(s, 0)
    end_group(s, 1)
    s.switched_to_training(0, now_s=1.0)
    s.switched_to_training(1, now_s=1.0)
    s.want_group(now_s=1.0)
    s.want_group(now_s=1.0)
    s.drained(now_s=2.0)
    assert kinds(s.updated(1, now_s=2.0)) == ["ToRollout", "Publish"]
    s.switched_to_rollout(1, now_s=2.5)
    assert s.roles[1] == "rollout"
    assert not s.routes.engines["cell1"].is_open
    assert kinds(s.published(1, now_s=3.0)) == ["Dispatch", "ToRollout"]
    assert s.routes.engines["cell1"].is_open


@pytest.mark.parametrize(
    ("version", "published", "expected"),
    [(0, 0, ["Dispatch"]), (1, 0, ["Dispatch"]), (2, 0, ["ToTraining"]), (2, 2, ["Dispatch"])],
)
def test_restore_takes_up_what_was_interrupted(version: int, published: int, expected: list[str]) -> None:
    s = Scheduler(make(steps=6, phi=0.0))
    state = RestoredState(version=version, published_version=published, num_consumed_groups=2 * version, groups=())
    decisions = s.restore(state, now_s=0.0)
    assert kinds(decisions) == expected
    if version == 2 and published == 0:
        assert kinds(s.switched_to_training(0, now_s=1.0)) == ["Publish"]


def test_restore_relaunches_first_and_keeps_dispatch_versions() -> None:
    s = Scheduler(make(steps=2, cells=(1,)))
    groups = tuple(
        RestoredGroup(
            group_id=f"g{i}",
            group_index=i,
            version=0,
            executions=(RestoredExecution(execution_id=f"g{i}-0", status=status, attempts=attempts),),
            is_ready=status == "closed",
        )
        for i, (status, attempts) in enumerate([("closed", 1), ("queued", 0), ("running", 1), ("queued", 0)])
    )
    decisions = s.restore(RestoredState(version=0, published_version=0, num_consumed_groups=0, groups=groups), now_s=0.0)
    assert [(x.execution_id, x.attempt) for x in decisions if isinstance(x, d.Launch)] == [("g2-0", 2)]
    assert s.counters == (4, 2, 1)
    assert s.admitted("g1", 1, ["g1-0"], 0, now_s=1.0) == ()


def test_outcomes_that_are_told_again_after_a_resume_count_once() -> None:
    s = Scheduler(make(groups_per_step=1, steps=1, mu=1, group_size=2, oversample=1, cells=(3,)))
    members = (
        RestoredExecution(execution_id="a", status="closed", attempts=1, is_valid=True),
        RestoredExecution(execution_id="b", status="running", attempts=1),
        RestoredExecution(execution_id="c", status="running", attempts=1),
    )
    group = RestoredGroup(group_id="g0", group_index=0, version=0, executions=members, is_ready=False)
    s.restore(RestoredState(version=0, published_version=0, num_consumed_groups=0, groups=(group,)), now_s=0.0)
    assert kinds(s.assessed("a", valid=True, now_s=1.0)) == []
    s.finished("b", "completed", now_s=2.0)
    assert [x.execution_id for x in s.assessed("b", valid=True, now_s=2.0) if isinstance(x, d.Cancel)] == ["c"]


def test_a_surplus_that_an_interruption_saved_is_cancelled_when_its_group_is_told_again() -> None:
    s = Scheduler(make(groups_per_step=1, steps=1, mu=1, group_size=1, oversample=1, cells=(3,)))
    members = (
        RestoredExecution(execution_id="a", status="closed", attempts=1, is_valid=True),
        RestoredExecution(execution_id="b", status="running", attempts=1),
    )
    group = RestoredGroup(group_id="g0", group_index=0, version=0, executions=members, is_ready=False)
    s.restore(RestoredState(version=0, published_version=0, num_consumed_groups=0, groups=(group,)), now_s=0.0)
    assert [x.execution_id for x in s.assessed("a", valid=True, now_s=1.0)] == ["b"]


def test_an_event_out_of_turn_is_refused_with_a_sentence() -> None:
    s = Scheduler(make())
    begin(s)
    with pytest.raises(RuntimeError, match="drained came in phase 'rollout', expected in stepping"):
        s.drained(now_s=0.0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mu": 0}, "mu must be at least 1"),
        ({"rho_min": 0.0}, "rho_min must be above 0"),
        ({"cells": ()}, "at least one cell"),
        ({"policy": "async", "train_cells": 3}, "leaves no engine for rollout"),
        ({"policy": "async", "train_cells": 4}, "train_cells must be between 1 and the number of cells"),
        ({"train": False, "steps": None}, "give num_groups or steps"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make(**changes)


def test_colocate_with_extra_dispatch_and_no_standalone_engine_is_warned_of() -> None:
    assert list(make(policy="colocate", phi=0.5).find_warnings())
    assert not list(make(policy="colocate", phi=0.5, standalone=(1,)).find_warnings())
