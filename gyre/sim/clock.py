"""Virtual time: things that will happen, in the order of their time, then of their scheduling.

Nothing else in a simulation knows what time it is, and no two runs can order the same events differently.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class VirtualClock:
    """A clock that jumps to the next thing.

    >>> clock, seen = VirtualClock(), []
    >>> for delay_s, name in [(2.0, "late"), (1.0, "early"), (2.0, "later")]:
    ...     clock.after(delay_s, seen.append, name)
    >>> while clock.advance():
    ...     pass
    >>> seen, clock.now_s
    (['early', 'late', 'later'], 2.0)
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._num_scheduled = 0

    def at(self, time_s: float, action: Action, subject: Any = None) -> None:
        """Let something happen at a time, which is not in the past."""
        self._num_scheduled += 1
        heapq.heappush(self._heap, (time_s if time_s > self.now_s else self.now_s, self._num_scheduled, action, subject))

    def after(self, delay_s: float, action: Action, subject: Any = None) -> None:
        """Let something happen after a delay."""
        self.at(self.now_s + delay_s, action, subject)

    @property
    def next_s(self) -> float | None:
        """Time of the next thing; None where nothing will ever happen."""
        return self._heap[0][0] if self._heap else None

    def advance(self) -> bool:
        """Go to the next thing and let it happen; False where there is none."""
        if not self._heap:
            return False
        self.now_s, _, action, subject = heapq.heappop(self._heap)
        action(subject)
        return True
