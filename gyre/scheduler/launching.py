"""Order in which queued executions are launched.

'fifo': as admitted. 'longest_first': within one dispatch version, longest expected duration first; older versions always come first,
so no execution waits behind more than the bursts before it. Executions that a resumed run relaunches come before all others.
"""

from __future__ import annotations

import heapq

from gyre.scheduler.config import LaunchOrder

_RELAUNCH = -1
"""Sorts before every version."""


class LaunchQueue:
    """Executions that wait for a place.

    >>> queue = LaunchQueue("longest_first")
    >>> for execution_id, version, expected_s in [("a", 0, 5.0), ("b", 0, 9.0), ("c", 1, 99.0)]:
    ...     queue.add(execution_id, version=version, expected_s=expected_s)
    >>> queue.discard("a")
    >>> [queue.take() for _ in range(len(queue))]
    ['b', 'c']
    """

    def __init__(self, order: LaunchOrder) -> None:
        self._order: LaunchOrder = order
        self._heap: list[tuple[int, float, int, str]] = []
        self._waiting: set[str] = set()
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, execution_id: str, *, version: int, expected_s: float = 0.0, is_relaunch: bool = False) -> None:
        """Queue an execution; `expected_s` is the expected duration of its query, 0 where nothing is known."""
        rank = -expected_s if self._order == "longest_first" else 0.0
        key = _RELAUNCH if is_relaunch else version
        heapq.heappush(self._heap, (key, rank, self._num_added, execution_id))
        self._waiting.add(execution_id)
        self._num_added += 1

    def discard(self, execution_id: str) -> None:
        """Take an execution out of the queue, if it is there."""
        self._waiting.discard(execution_id)

    def take(self) -> str:
        """Remove the execution that comes first."""
        while (execution_id := heapq.heappop(self._heap)[3]) not in self._waiting:
            pass
        self._waiting.remove(execution_id)
        return execution_id
