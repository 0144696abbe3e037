"""Training supply (paper section 4.2): the trajectory buffer's ready groups, and the check that there are enough of them.

Ready groups are consumed oldest dispatch version first, ties by readiness, then id. The supply check holds while at least
`⌈rho_min * B⌉` groups are ready or already taken by the running step, and have been for the hold time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReadyGroups:
    """Groups whose executions all have an outcome, in the order in which training takes them.

    >>> ready = ReadyGroups()
    >>> for group_id, version in [("g7", 2), ("g3", 1), ("g1", 1)]:
    ...     ready.add(group_id, version=version)
    >>> [ready.take() for _ in range(len(ready))]
    ['g3', 'g1', 'g7']
    """

    _heap: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    _num_added: int = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, group_id: str, *, version: int) -> None:
        """Add a group that has just become ready."""
        heapq.heappush(self._heap, (version, self._num_added, group_id))
        self._num_added += 1

    def take(self) -> str:
        """Remove the group that comes first."""
        return heapq.heappop(self._heap)[2]


@dataclass(slots=True)
class SupplyCheck:
    """Knows since when there have been enough groups.

    >>> check = SupplyCheck(min_groups=2, hold_s=5.0)
    >>> check.observe(2, now_s=10.0), check.holds(now_s=14.0), check.holds(now_s=15.0)
    (None, False, True)
    """

    min_groups: int
    """Groups asked for."""
    hold_s: float
    """How long they must have been there, in seconds."""
    since_s: float | None = None
    """When their number was reached; None while it is not."""

    def observe(self, num_groups: int, *, now_s: float) -> None:
        """Tell how many groups are there now."""
        if num_groups < self.min_groups:
            self.since_s = None
        elif self.since_s is None:
            self.since_s = now_s

    def holds(self, *, now_s: float) -> bool:
        """True when there have been enough groups for the hold time."""
        return self.since_s is not None and now_s >= self.since_s + self.hold_s

    def find_wake_s(self, *, now_s: float) -> float | None:
        """When the check will hold if nothing changes; None where it holds now or groups are missing."""
        return None if self.since_s is None or self.holds(now_s=now_s) else self.since_s + self.hold_s
