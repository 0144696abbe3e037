"""Execution ratios under streaming (semantics.md, section 4): Σ log r and token count of executions that span rows.

The ratio s_i of an execution is over all its targets. Where they lie in several rows, each row is first a forward-only ratio item; the
first report of a row counts, later ones are ignored. When every row has reported, `s_i` and the clip mask `M_i` are fixed, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import NamedTuple


class FixedRatio(NamedTuple):
    """The ratio of an execution over all its targets; it does not change any more."""

    ratio: float
    """s_i, the geometric mean of the token ratios."""
    mask: int
    """M_i: 0 where the execution is clipped."""


def clip_mask(ratio: float, *, advantage: float, clip_low: float, clip_high: float) -> int:
    """M_i: 0 where a good execution has become too likely, or a bad one too unlikely.

    >>> clip_mask(1.01, advantage=1.0, clip_low=0.995, clip_high=1.005), clip_mask(1.01, advantage=-1.0, clip_low=0.995, clip_high=1.005)
    (0, 1)
    """
    is_clipped = (advantage > 0 and ratio > clip_high) or (advantage < 0 and ratio < clip_low)
    return 0 if is_clipped else 1


@dataclass(slots=True)
class _Sum:
    advantage: float
    rows: set[str] = field(default_factory=set[str])
    """Rows that must report."""
    reported: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    """(Σ log r, count) by row. Summed in the order of row ids, so that the result does not depend on who was faster."""


class ExecutionRatios:
    """Ratios of the executions of one step that span rows.

    >>> ratios = ExecutionRatios(clip_low=0.995, clip_high=1.005)
    >>> for row_id in ("r0", "r1"):
    ...     ratios.expect(row_id, {"g0-0": 1.0})
    >>> ratios.report("g0-0", row_id="r0", sum_log_r=0.3, count=3)
    >>> ratios.report("g0-0", row_id="r0", sum_log_r=9.9, count=3)
    >>> ratios.report("g0-0", row_id="r1", sum_log_r=0.1, count=1)
    FixedRatio(ratio=1.1051709180756477, mask=0)
    """

    def __init__(self, *, clip_low: float, clip_high: float) -> None:
        self.fixed: dict[str, FixedRatio] = {}
        """Executions whose ratio is known."""
        self._sums: dict[str, _Sum] = {}
        self._clip_low = clip_low
        self._clip_high = clip_high

    def expect(self, row_id: str, advantages: dict[str, float]) -> None:
        """A row holds targets of these executions; all rows of an execution must be told before the last of them reports."""
        for execution_id, advantage in advantages.items():
            assert execution_id not in self.fixed, f"a row of {execution_id} came after its ratio was fixed"
            self._sums.setdefault(execution_id, _Sum(advantage)).rows.add(row_id)

    def report(self, execution_id: str, *, row_id: str, sum_log_r: float, count: int) -> FixedRatio | None:
        """Take a row's part of an execution's ratio; the fixed ratio when this was the last one, else None."""
        if execution_id in self.fixed:
            return None
        total = self._sums[execution_id]
        assert row_id in total.rows, f"row {row_id} holds no target of {execution_id}"
        total.reported.setdefault(row_id, (sum_log_r, count))
        if len(total.reported) < len(total.rows):
            return None
        parts = [total.reported[row_id] for row_id in sorted(total.reported)]
        ratio = exp(sum(part[0] for part in parts) / max(1, sum(part[1] for part in parts)))
        mask = clip_mask(ratio, advantage=total.advantage, clip_low=self._clip_low, clip_high=self._clip_high)
        self.fixed[execution_id] = FixedRatio(ratio, mask)
        return self.fixed[execution_id]
