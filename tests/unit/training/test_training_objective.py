"""The objective against numbers worked by hand, and what it refuses."""

from __future__ import annotations

import doctest
import math

import pytest
import torch

from gyre.training import objective
from gyre.training.objective import GspoSettings, LogRatio, Segment, execution_mask, row_objective

pytestmark = pytest.mark.torch


def segment(execution_id: str, advantage: float, targets: int, num: int | None = None, whole: bool = True) -> Segment:
    return Segment(execution_id, advantage, targets, whole, targets if num is None else num)


def test_two_executions_by_hand():
    """Execution a has targets in two trajectories; b's ratio exp(-0.2) is under the bound with a negative advantage."""
    behavior = torch.tensor([-1.0, -2.0, -0.5, -1.0, -1.0])
    logp = (behavior + torch.tensor([0.001, -0.002, 0.004, -0.2, -0.2])).requires_grad_()
    segments = [segment("a", 0.5, 3, 2), segment("b", -1.0, 2), segment("a", 0.5, 3, 1)]
    order = torch.tensor([0, 1, 3, 4, 2])
    result = row_objective(logp[order], behavior[order], segments, fixed_masks={}, settings=GspoSettings())
    assert result.masks == {"a": 1, "b": 0}
    assert result.log_ratios["a"].total == pytest.approx(0.003, abs=1e-6)
    assert result.log_ratios["a"].num_targets == 3
    by_hand = -(0.5 / 3) * sum(math.exp(x) * (b + x) for x, b in zip((0.001, -0.002, 0.004), (-1.0, -2.0, -0.5), strict=True))
    assert float(result.loss_sum.detach()) == pytest.approx(by_hand, rel=1e-6)
    result.loss_sum.backward()
    expected = [-(0.5 / 3) * math.exp(x) for x in (0.001, -0.002, 0.004)] + [0.0, 0.0]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_token_weight_is_capped_and_carries_no_gradient():
    logp = torch.tensor([math.log(8.0) - 3.0, math.log(0.5) - 3.0], requires_grad=True)
    behavior = torch.tensor([-3.0, -3.0])
    settings = GspoSettings(clip_high=100.0)
    result = row_objective(logp, behavior, [segment("a", 2.0, 2)], fixed_masks={}, settings=settings)
    result.loss_sum.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-5.0, -0.5], rel=1e-5)


@pytest.mark.parametrize(
    ("advantage", "ratio", "mask"),
    [(1.0, 1.006, 0), (1.0, 1.004, 1), (1.0, 0.5, 1), (-1.0, 0.994, 0), (-1.0, 0.996, 1), (-1.0, 2.0, 1), (0.0, 9.0, 1)],
)
def test_clip_is_one_sided_by_the_sign_of_the_advantage(advantage: float, ratio: float, mask: int):
    assert execution_mask(advantage, LogRatio(3 * math.log(ratio), 3), GspoSettings()) == mask


def test_a_lower_bound_of_zero_clips_nothing():
    assert execution_mask(-1.0, LogRatio(-300.0, 3), GspoSettings(clip_low=0.0)) == 1


def test_an_execution_without_targets_is_not_clipped():
    assert execution_mask(1.0, LogRatio(0.0, 0), GspoSettings()) == 1
    logp = torch.zeros(0, requires_grad=True)
    result = row_objective(logp, torch.zeros(0), [segment("a", 1.0, 0)], fixed_masks={}, settings=GspoSettings())
    assert float(result.loss_sum.detach()) == 0.0


def test_a_spanning_execution_takes_its_fixed_mask():
    logp, behavior = torch.tensor([-1.0], requires_grad=True), torch.tensor([-1.5])
    spanning = [segment("a", 1.0, 4, 1, whole=False)]
    kept = row_objective(logp, behavior, spanning, fixed_masks={"a": 1}, settings=GspoSettings())
    cut = row_objective(logp, behavior, spanning, fixed_masks={"a": 0}, settings=GspoSettings())
    assert float(kept.loss_sum.detach()) == pytest.approx(math.exp(0.5) / 4, rel=1e-5)
    assert float(cut.loss_sum.detach()) == 0.0


def test_a_spanning_execution_without_mask_is_refused():
    with pytest.raises(ValueError, match="execution a spans rows and has no fixed mask"):
        row_objective(torch.zeros(1), torch.zeros(1), [segment("a", 1.0, 4, 1, whole=False)], fixed_masks={}, settings=GspoSettings())


def test_a_whole_execution_that_lacks_targets_is_refused():
    with pytest.raises(ValueError, match="marked whole with 4 targets, and this row has 1"):
        row_objective(torch.zeros(1), torch.zeros(1), [segment("a", 1.0, 4, 1)], fixed_masks={}, settings=GspoSettings())


def test_worked_example_in_the_docstring():
    assert doctest.testmod(objective) == (0, 1)
