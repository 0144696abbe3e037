"""The GSPO objective of one packed row: execution ratio, execution clip, token weights (semantics.md, section 5).

For execution i with targets T_i and L_i = |T_i|, over log-probabilities at the sampling temperature:

    r_t = pi_theta(y_t) / pi_b(y_t)            token ratio
    w_t = min(sg(r_t), cap)                    token weight
    s_i = exp(1/L_i * sum_{T_i} log r_t)       execution ratio, over all of T_i
    M_i = 0 if (A_i > 0 and s_i > high) or (A_i < 0 and s_i < low), else 1
    loss_sum = - sum_i M_i * A_i / L_i * sum_{T_i} w_t * log pi_theta(y_t)

`loss_sum` is not divided by |E|: the core divides once, when the batch's |E| is known. An execution whose targets sit in one row
gets its M_i here; for one that spans rows the coordinator sums `log_ratio_sums` of its ratio items, fixes M_i once with
`execution_mask`, and hands it to every row of the execution. Any split of a batch into rows therefore adds up to the same gradient.

Shapes: N targets of the row, S its segments (one per trajectory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GspoSettings:
    """Bounds of the objective; the defaults are the paper's."""

    token_weight_cap: float = 5.0
    """Largest token weight w_t."""
    clip_low: float = 0.995
    """Execution ratios below this are clipped where the advantage is negative; 0 clips none."""
    clip_high: float = 1.005
    """Execution ratios above this are clipped where the advantage is positive."""


class Segment(NamedTuple):
    """One trajectory of a row."""

    execution_id: str
    """Execution it belongs to."""
    advantage: float
    """A_i."""
    execution_targets: int
    """L_i: targets of the whole execution."""
    whole: bool
    """All targets of the execution are in this row."""
    num_targets: int
    """Targets of this trajectory."""


class LogRatio(NamedTuple):
    """Sum of log r_t over some targets of an execution."""

    total: float
    """Sum of log r_t."""
    num_targets: int
    """Number of targets summed."""


class RowObjective(NamedTuple):
    """The objective of one row."""

    loss_sum: Tensor
    """Scalar that carries the gradient; unnormalised."""
    masks: dict[str, int]
    """M_i of every execution of the row."""
    log_ratios: dict[str, LogRatio]
    """Sums over this row's targets, by execution."""


def execution_mask(advantage: float, log_ratio: LogRatio, settings: GspoSettings) -> int:
    """M_i of an execution from the sum over all its targets: 0 where the clip binds, else 1.

    >>> execution_mask(1.0, LogRatio(0.02, 2), GspoSettings()), execution_mask(-1.0, LogRatio(0.02, 2), GspoSettings())
    (0, 1)
    """
    if not log_ratio.num_targets:
        return 1
    log_s = log_ratio.total / log_ratio.num_targets
    if advantage > 0 and log_s > math.log(settings.clip_high):
        return 0
    if advantage < 0 and settings.clip_low > 0 and log_s < math.log(settings.clip_low):
        return 0
    return 1


def log_ratio_sums(log_ratio_N: Tensor, segments: Sequence[Segment]) -> dict[str, LogRatio]:
    """Sum log r_t by execution, in float64 and in the order of the row.

    Args:
        log_ratio_N: log r_t of the row's targets, in the order of the row.
        segments: the row's trajectories, in the same order.
    """
    sums: dict[str, LogRatio] = {}
    pieces = torch.split(log_ratio_N.detach().double(), [s.num_targets for s in segments])
    for segment, piece in zip(segments, pieces, strict=True):
        before = sums.get(segment.execution_id, LogRatio(0.0, 0))
        sums[segment.execution_id] = LogRatio(before.total + float(piece.sum()), before.num_targets + segment.num_targets)
    return sums


def row_objective(
    logp_N: Tensor,
    behavior_logp_N: Tensor,
    segments: Sequence[Segment],
    *,
    fixed_masks: Mapping[str, int],
    settings: GspoSettings,
) -> RowObjective:
    """Compute the unnormalised loss of one row.

    Args:
        logp_N: log pi_theta of the row's targets, with gradient.
        behavior_logp_N: log pi_b of the same targets.
        segments: the row's trajectories in order; their targets add up to N.
        fixed_masks: M_i of executions that span rows.
        settings: bounds of the objective.

    Raises:
        ValueError: an execution that spans rows has no fixed mask, or a whole one lacks targets.
    """
    log_ratio_N = logp_N.detach() - behavior_logp_N
    log_ratios = log_ratio_sums(log_ratio_N, segments)
    masks = _masks(segments, log_ratios, fixed_masks, settings)
    coefficients_S = torch.tensor(
        [-masks[s.execution_id] * s.advantage / s.execution_targets if s.num_targets else 0.0 for s in segments],
        dtype=logp_N.dtype,
        device=logp_N.device,
    )
    counts_S = torch.tensor([s.num_targets for s in segments], device=logp_N.device)
    weight_N = log_ratio_N.exp().clamp(max=settings.token_weight_cap)
    loss_sum = (torch.repeat_interleave(coefficients_S, counts_S) * weight_N * logp_N).sum()
    return RowObjective(loss_sum, masks, log_ratios)


def _masks(
    segments: Sequence[Segment],
    log_ratios: Mapping[str, LogRatio],
    fixed_masks: Mapping[str, int],
    settings: GspoSettings,
) -> dict[str, int]:
    masks: dict[str, int] = {}
    for segment in segments:
        execution_id = segment.execution_id
        if execution_id in masks:
            continue
        if not segment.whole:
            if execution_id not in fixed_masks:
                raise ValueError(f"execution {execution_id} spans rows and has no fixed mask; run its ratio items before this row")
            masks[execution_id] = fixed_masks[execution_id]
            continue
        log_ratio = log_ratios[execution_id]
        if log_ratio.num_targets != segment.execution_targets:
            raise ValueError(
                f"execution {execution_id} is marked whole with {segment.execution_targets} targets, "
                f"and this row has {log_ratio.num_targets} of them; mark it as spanning rows"
            )
        masks[execution_id] = execution_mask(segment.advantage, log_ratio, settings)
    return masks
