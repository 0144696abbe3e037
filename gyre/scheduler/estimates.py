"""How long an execution of a query is expected to run, learned from the executions that have ended; 'longest_first' orders by it.

An execution's own duration is not known at launch, but its query's is a guess: the mean of what was seen of this query, drawn towards
the mean of all queries as if that had been seen once. A query that was never run is expected to be like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PRIOR_WEIGHT = 1.0
"""Executions that the mean of all queries counts for, beside those of the query itself."""


@dataclass(slots=True)
class DurationEstimates:
    """Durations by query.

    >>> estimates = DurationEstimates()
    >>> estimates.expect("a")
    0.0
    >>> for query_id, duration_s in [("a", 10.0), ("a", 14.0), ("b", 6.0)]:
    ...     estimates.add(query_id, duration_s)
    >>> estimates.expect("a"), estimates.expect("b"), estimates.expect("c")
    (11.333333333333334, 8.0, 10.0)
    """

    _sums: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    _total_s: float = 0.0
    _count: int = 0

    def add(self, query_id: str, duration_s: float) -> None:
        """Learn from an execution that has ended."""
        total_s, count = self._sums.get(query_id, (0.0, 0))
        self._sums[query_id] = (total_s + duration_s, count + 1)
        self._total_s += duration_s
        self._count += 1

    def expect(self, query_id: str) -> float:
        """Expected duration of an execution of a query, in seconds; 0 where nothing has ended yet."""
        if not self._count:
            return 0.0
        total_s, count = self._sums.get(query_id, (0.0, 0))
        return (total_s + PRIOR_WEIGHT * self._total_s / self._count) / (count + PRIOR_WEIGHT)
