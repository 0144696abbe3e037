"""Engines in virtual time: executions share an engine, whose speed depends on how many there are.

Each engine has a progress clock that runs at its present speed; an execution ends when that clock has advanced by its length. A change
of load changes one speed, not one finish time per execution, so that an event costs O(log n) whatever the load.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Running:
    """An execution that a harness works on."""

    execution_id: str
    group_id: str
    launched_s: float
    left_s: float
    """Length that is left, as of its last change of engine."""
    is_unresolved: bool
    """True where no valid score will come."""
    engine: EngineModel | None = None
    """Engine that serves it; None while it waits for a place."""
    done_at: float = 0.0
    """Progress of that engine at which it is done."""
    is_closed: bool = False


class EngineModel:
    """One engine.

    >>> engine = EngineModel("cell0", capacity=2, load_share=0.5)
    >>> a, b = (Running(execution_id=name, group_id="g", launched_s=0.0, left_s=6.0, is_unresolved=False) for name in "ab")
    >>> engine.add(a, now_s=0.0), engine.next_end_s(now_s=0.0)
    (None, 4.5)
    >>> engine.add(b, now_s=3.0), round(engine.next_end_s(now_s=3.0), 3), engine.pop_done(now_s=5.0).execution_id
    (None, 5.0, 'a')
    """

    def __init__(self, name: str, *, capacity: int, load_share: float) -> None:
        self.name = name
        self.num_running = 0
        self.stale_before = 0
        """Number of its newest appointment; older ones are void."""
        self.slowdown = 1.0
        """Factor on the time of all its executions, for what it shares with others."""
        self._speeds = [1.0 / (1.0 - load_share * (1.0 - n / capacity)) for n in range(capacity + 1)]
        self._progress = 0.0
        self._updated_s = 0.0
        self._heap: list[tuple[float, int, Running]] = []
        self._num_added = 0

    @property
    def speed(self) -> float:
        """Progress per second of each of its executions."""
        return self._speeds[self.num_running] / self.slowdown

    def _advance(self, now_s: float) -> None:
        if now_s > self._updated_s:
            self._progress += (now_s - self._updated_s) * self.speed
            self._updated_s = now_s

    def set_slowdown(self, slowdown: float, *, now_s: float) -> None:
        """Share the machine with more or fewer others from now on."""
        self._advance(now_s)
        self.slowdown = slowdown

    def add(self, running: Running, *, now_s: float) -> None:
        """Serve an execution from now on."""
        self._advance(now_s)
        self.num_running += 1
        running.engine = self
        running.done_at = self._progress + running.left_s
        self._num_added += 1
        heapq.heappush(self._heap, (running.done_at, self._num_added, running))

    def remove(self, running: Running, *, now_s: float) -> None:
        """Serve an execution no longer; what it has left is kept in it."""
        self._advance(now_s)
        self.num_running -= 1
        running.left_s = max(0.0, running.done_at - self._progress)
        running.engine = None

    def next_end_s(self, *, now_s: float) -> float | None:
        """When the next of its executions is done if the load stays; None where it serves none."""
        self._advance(now_s)
        while self._heap and not self._is_here(self._heap[0]):
            heapq.heappop(self._heap)
        return now_s + max(0.0, self._heap[0][0] - self._progress) / self.speed if self._heap else None

    def pop_done(self, *, now_s: float) -> Running:
        """Remove the execution that is done now."""
        self._advance(now_s)
        while not self._is_here(self._heap[0]):
            heapq.heappop(self._heap)
        running = self._heap[0][2]
        self.remove(running, now_s=now_s)
        return running

    def _is_here(self, entry: tuple[float, int, Running]) -> bool:
        return entry[2].engine is self and entry[2].done_at == entry[0]
