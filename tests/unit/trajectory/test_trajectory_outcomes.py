from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trajectory.outcomes import Action, Assess, CancelRest, Designate, GroupOutcomes, GroupReady

BUDGET_S = 60.0


def close(group: GroupOutcomes, execution_id: str, status: str = "completed", *, assessable: bool = True) -> tuple[Action, ...]:
    return group.closed(execution_id, status, assessable=assessable, artifact_version="v1", budget_until_s=BUDGET_S, now_s=1.0)


def score(group: GroupOutcomes, execution_id: str, value: float | None, *, now_s: float = 2.0, version: str = "v1") -> tuple[Action, ...]:
    reason = "" if value is not None else "no reward file"
    return group.assessed(execution_id, valid=value is not None, score=value, reason=reason, artifact_version=version, now_s=now_s)


def designated(actions: tuple[Action, ...]) -> list[tuple[str, float | None]]:
    return [(action.outcome, action.reward) for action in actions if isinstance(action, Designate)]


@pytest.mark.parametrize("status", ["completed", "timeout", "failed"])
def test_however_it_ended_the_scorer_gives_the_reward(status: str) -> None:
    group = GroupOutcomes("g", size=2)
    (action,) = close(group, "a", status)
    assert action == Assess(execution_id="a", try_number=1, wait_s=0.0)
    assert designated(score(group, "a", 0.5)) == [("scored", 0.5)]


def test_an_evaluator_that_fails_is_asked_again_and_a_later_score_counts() -> None:
    group = GroupOutcomes("g", size=2)
    close(group, "a")
    waits = []
    for number in range(2, 10):
        (action,) = score(group, "a", None, now_s=0.0)
        assert isinstance(action, Assess)
        assert action.try_number == number
        waits.append(action.wait_s)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    (found,) = score(group, "a", 0.0)
    assert isinstance(found, Designate)
    assert (found.outcome, found.reward, found.try_number, found.valid) == ("scored", 0.0, 9, True)


def test_no_valid_score_within_the_budget_is_no_zero() -> None:
    group = GroupOutcomes("g", size=2)
    close(group, "a")
    close(group, "b")
    assert designated(score(group, "a", None, now_s=59.9)) == [("unresolved", None)]
    assert group.budget_expired("b", now_s=59.0) == ()
    *_, ready = group.budget_expired("b", now_s=60.0)
    assert ready == GroupReady(group_id="g", scored=0, unresolved=2, placeholders=0, cancelled=0)
    assert ready.num_valid == 0


def test_a_score_that_is_no_number_is_no_score() -> None:
    group = GroupOutcomes("g", size=1, max_tries=1)
    close(group, "a")
    actions = group.assessed("a", valid=True, score=float("nan"), reason="", artifact_version="v1", now_s=1.0)
    assert designated(actions) == [("unresolved", None)]


def test_tries_can_be_limited() -> None:
    group = GroupOutcomes("g", size=1, max_tries=2)
    close(group, "a")
    assert isinstance(score(group, "a", None)[0], Assess)
    assert designated(score(group, "a", None)) == [("unresolved", None)]


def test_nothing_assessable_is_a_placeholder_with_a_valid_zero() -> None:
    group = GroupOutcomes("g", size=1)
    found, ready = close(group, "a", "failed", assessable=False)
    assert isinstance(found, Designate)
    assert (found.outcome, found.reward, found.reason, found.valid) == ("placeholder", 0.0, "placeholder", True)
    assert ready == GroupReady(group_id="g", scored=0, unresolved=0, placeholders=1, cancelled=0)


def test_cancelled_ones_have_no_reward_and_do_not_hold_the_group() -> None:
    group = GroupOutcomes("g", size=2)
    assert designated(group.cancelled("a")) == [("cancelled", None)]
    assert designated(close(group, "b", "cancelled"))[0] == ("cancelled", None)
    assert group.is_ready


def test_late_and_intermediate_assessments_change_nothing() -> None:
    group = GroupOutcomes("g", size=1)
    assert score(group, "a", 1.0) == ()
    close(group, "a")
    assert score(group, "a", 1.0, version="v0") == ()
    assert designated(score(group, "a", 0.25)) == [("scored", 0.25)]
    assert score(group, "a", 1.0) == ()
    assert close(group, "a", "timeout") == ()
    assert group.budget_expired("a", now_s=1e9) == ()
    assert group.outcomes["a"].reward == 0.25


def test_surplus_executions_are_cancelled_once_enough_are_valid() -> None:
    group = GroupOutcomes("g", size=2, num_surplus=2)
    for execution_id in "abc":
        close(group, execution_id)
    score(group, "a", 1.0)
    scored, rest, cancelled, ready = score(group, "b", 0.0)
    assert designated((scored, cancelled)) == [("scored", 0.0), ("cancelled", None)]
    assert rest == CancelRest(group_id="g", keep=("a", "b"))
    assert ready == GroupReady(group_id="g", scored=2, unresolved=0, placeholders=0, cancelled=2)
    assert score(group, "c", 1.0) == ()
    assert designated(close(group, "d", "timeout")) == [("cancelled", None)]
    assert close(group, "d", "timeout") == ()


def test_a_stranger_is_refused() -> None:
    group = GroupOutcomes("g", size=1)
    close(group, "a")
    with pytest.raises(ValueError, match="group g has all its executions; b is none of them"):
        close(group, "b")


EVENTS = st.tuples(
    st.sampled_from(["closed", "lost", "surplus", "scored", "invalid", "foreign", "expired", "cancelled"]), st.integers(0, 3)
)


@given(st.lists(EVENTS, max_size=30), st.integers(0, 1))
@settings(max_examples=50, deadline=None)
def test_any_events_give_one_designation_each_and_one_ready_group(events: list[tuple[str, int]], surplus: int) -> None:
    group = GroupOutcomes("g", size=4 - surplus, num_surplus=surplus)
    actions: list[Action] = []
    for now_s, (kind, number) in enumerate(events):
        execution_id = f"g-{number:02d}"
        match kind:
            case "closed" | "lost":
                actions += close(group, execution_id, "timeout", assessable=kind == "closed")
            case "surplus":
                actions += close(group, execution_id, "cancelled")
            case "scored" | "invalid":
                actions += score(group, execution_id, 1.0 if kind == "scored" else None, now_s=now_s)
            case "foreign":
                actions += score(group, execution_id, 1.0, version="other")
            case "expired":
                actions += group.budget_expired(execution_id, now_s=now_s + 50.0)
            case _:
                actions += group.cancelled(execution_id)
    decided = [action for action in actions if isinstance(action, Designate)]
    assert max(Counter(action.execution_id for action in decided).values(), default=1) == 1
    assert {action.execution_id: action for action in decided} == dict(group.outcomes)
    assert all((action.reward is None) == (action.outcome in ("unresolved", "cancelled")) for action in decided)
    ready = [action for action in actions if isinstance(action, GroupReady)]
    assert len(ready) == group.is_ready
    if ready:
        assert ready[0].scored + ready[0].unresolved + ready[0].placeholders + ready[0].cancelled == 4
    assert group.is_ready == (len(decided) == 4 or sum(a.valid for a in decided) >= 4 - surplus)
