"""What a simulation writes down while it runs: roles of cells, waterlevel, durations, steps, and a hash over all events.

Two simulations did the same exactly when their hashes are equal. Everything that `outcome.py` reports is computed from here.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["rollout", "to_training", "training", "to_rollout", "lost"]


class RoleSpan(NamedTuple):
    """A time in which a cell had one role."""

    cell: int
    role: Phase
    start_s: float
    end_s: float


class StepRecord(NamedTuple):
    """One step."""

    version: int
    """Version after it."""
    burst: int
    """Version that was published last when it began."""
    begun_s: float
    committed_s: float
    cells: tuple[int, ...]
    """Cells that took part to the end."""
    expected_s: float
    """Mean expected length of its executions' queries."""


@dataclass(slots=True)
class Journal:
    """Notes of one simulation."""

    num_cells: int
    spans: list[RoleSpan] = field(default_factory=list[RoleSpan])
    waterlevels: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """(time, waterlevel) whenever it changes."""
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    durations_s: list[float] = field(default_factory=list[float])
    """Of each execution, from launch to its harness's end, or to the end of its budget where it is unresolved."""
    group_maxima_s: list[float] = field(default_factory=list[float])
    """Of each ready group, the longest of these."""
    ends: Counter[str] = field(default_factory=Counter[str])
    """Executions by how they ended; 'unresolved' counts those again that got no score."""
    slot_s: float = 0.0
    """Time that executions held a place."""
    busy_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Time that each cell worked on micro-steps."""
    length_s: float = 0.0
    """Rollout work of consumed groups (in an evaluation, of closed ones), in seconds of one place in a full engine."""
    train_rank_s: float = 0.0
    """Training work of consumed groups."""
    role_changes: int = 0
    """Decisions that sent a cell to the other role."""
    num_events: int = 0
    _since: dict[int, tuple[Phase, float]] = field(default_factory=dict[int, tuple[Phase, float]])
    _hash: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def __post_init__(self) -> None:
        self._since = dict.fromkeys(range(self.num_cells), ("rollout", 0.0))

    def note(self, kind: str, subject: object, now_s: float) -> None:
        """Write down an event or a decision for the hash."""
        self.num_events += 1
        self._hash.update(f"{kind} {subject} {now_s!r}\n".encode())

    def set_role(self, cell: int, role: Phase, *, now_s: float) -> None:
        """A cell has another role from now on."""
        before, since_s = self._since[cell]
        if now_s > since_s:
            self.spans.append(RoleSpan(cell, before, since_s, now_s))
        self._since[cell] = (role, now_s)

    def set_waterlevel(self, waterlevel: int, *, now_s: float) -> None:
        """The waterlevel may have changed."""
        if self.waterlevels[-1][1] != waterlevel:
            self.waterlevels.append((now_s, waterlevel))

    def close(self, *, now_s: float) -> None:
        """The simulation ends: no role lasts longer."""
        for cell, (role, _) in list(self._since.items()):
            self.set_role(cell, role, now_s=now_s)

    @property
    def event_hash(self) -> str:
        """Hash over every event and decision so far."""
        return self._hash.hexdigest()

    def time_in_role(self) -> Mapping[str, float]:
        """Cell-seconds in each role."""
        total: defaultdict[str, float] = defaultdict(float)
        for span in self.spans:
            total[span.role] += span.end_s - span.start_s
        return total
