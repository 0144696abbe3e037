"""Cases from public bug reports of peers, as far as they concern the objective; numbers are the list's."""

from __future__ import annotations

import pytest
import torch

from gyre.scheduler.ratios import ExecutionRatios
from gyre.training.objective import GspoSettings, LogRatio, Segment, execution_mask, row_objective

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_case_22_the_ratio_is_the_executions_not_the_turns(advantage: float) -> None:
    # Two rows of one execution, mean log-ratio +0.02 and -0.02, equal length. Turn by turn one of them would be clipped whatever the
    # sign of the advantage; the execution's ratio is 1.
    settings = GspoSettings()
    drift = {"r0": 0.02, "r1": -0.02}
    assert [execution_mask(a, LogRatio(8 * d, 8), settings) for a, d in ((1.0, 0.02), (-1.0, -0.02))] == [0, 0]
    ratios = ExecutionRatios(clip_low=settings.clip_low, clip_high=settings.clip_high)
    for row in drift:
        ratios.expect(row, {"a": advantage})
    fixed = [ratios.report("a", row_id=row, sum_log_r=8 * mean, count=8) for row, mean in drift.items()]
    assert fixed[0] is None
    assert (ratios.fixed["a"].ratio, ratios.fixed["a"].mask) == (pytest.approx(1.0), 1)
    behavior = torch.full((8,), -1.0)
    gradients: list[torch.Tensor] = []
    for mean in drift.values():
        logp = (behavior + mean).requires_grad_()
        segment = Segment("a", advantage, 16, False, 8)
        row_objective(logp, behavior, [segment], fixed_masks={"a": ratios.fixed["a"].mask}, settings=settings).loss_sum.backward()
        assert logp.grad is not None
        gradients.append(logp.grad)
    together = torch.cat([behavior + mean for mean in drift.values()]).requires_grad_()
    whole = row_objective(
        together, torch.cat([behavior, behavior]), [Segment("a", advantage, 16, True, 16)], fixed_masks={}, settings=settings
    )
    whole.loss_sum.backward()
    assert whole.masks == {"a": 1}
    assert together.grad is not None
    assert torch.equal(torch.cat(gradients), together.grad)
    assert bool((together.grad != 0).all())
