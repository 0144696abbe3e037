from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trajectory.advantage import group_advantages

REWARDS = st.lists(st.none() | st.floats(-10, 10), max_size=12)


def test_a_worked_group() -> None:
    assert group_advantages([1.0, 0.0, None, 0.5], normalize_std=False) == [0.5, -0.5, 0.0, 0.0]
    first, second = group_advantages([1.0, 0.0])
    assert first == pytest.approx(0.5 / (0.5 + 1e-6))
    assert second == -first


@pytest.mark.parametrize("rewards", [[], [1.0], [None, None], [None, 3.0], [0.1, 0.1, 0.1], [0.1 + 0.2, 0.1 + 0.2, None]])
def test_exactly_zero_without_a_contrast(rewards: list[float | None]) -> None:
    assert group_advantages(rewards) == [0.0] * len(rewards)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages([1.0, math.inf])


def test_scores_of_any_size_have_a_deviation() -> None:
    """A scorer's number ends up as an advantage, never as an overflow that would end the run."""
    assert group_advantages([0.0, 1e200, None]) == pytest.approx([-1.0, 1.0, 0.0])


@given(REWARDS)
@settings(max_examples=50, deadline=None)
def test_centred_ordered_and_blind_to_executions_without_reward(rewards: list[float | None]) -> None:
    advantages = group_advantages(rewards)
    assert len(advantages) == len(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6)
    pairs = [(r, a) for r, a in zip(rewards, advantages, strict=True) if r is not None]
    assert sorted(pairs) == sorted(pairs, key=lambda pair: (pair[1], pair[0]))
    assert [a for _, a in pairs] == group_advantages([r for r, _ in pairs])
    assert all(a == 0.0 for r, a in zip(rewards, advantages, strict=True) if r is None)
