"""Group-relative advantages (paper §3, semantics.md §5), per execution: the number of its trajectories plays no part.

The statistics are over the group's valid rewards: a placeholder's 0 is valid, and so is the score of an execution that left no
target; unresolved and cancelled executions have none. Fed by `tree_select`, inherited by every trajectory of an execution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_EPSILON = 1e-6
"""Added to the population standard deviation, so that nearly equal rewards do not blow up."""


def group_advantages(rewards: Sequence[float | None], *, normalize_std: bool = True, eps: float = STD_EPSILON) -> list[float]:
    """Advantage of each execution of a group; `(R - mean) / (std + eps)`, or `R - mean` without `normalize_std`.

    A reward of None (unresolved, cancelled) stays out of the statistics and gets 0; so does every execution of a group with
    fewer than two valid rewards, or with all of them equal, exactly.

    Raises:
        ValueError: a reward is not finite.
    """
    valid = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in valid):
        raise ValueError(f"rewards must be finite numbers, not {valid}; a scorer that cannot tell returns no score")
    if len(valid) < 2 or max(valid) == min(valid):
        return [0.0] * len(rewards)
    mean = math.fsum(valid) / len(valid)
    # hypot scales before it squares: scores of any size have a deviation.
    std = math.hypot(*(reward - mean for reward in valid)) / math.sqrt(len(valid))
    scale = std + eps if normalize_std else 1.0
    return [0.0 if reward is None else (reward - mean) / scale for reward in rewards]
