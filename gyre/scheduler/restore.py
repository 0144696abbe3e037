"""What a resumed run tells the scheduler: the state at the last committed step, from the store.

Groups of committed steps are gone; every other admitted group is outstanding, also those that an uncommitted step had taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredExecution:
    """One execution of an outstanding group."""

    execution_id: str
    """The execution."""
    status: Literal["queued", "running", "closed"]
    """'running' is launched again as a new attempt; 'closed': its harness had ended."""
    attempts: int
    """Attempts launched before."""
    is_valid: bool = False
    """True where a valid outcome is in the store; needed under oversampling only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredGroup:
    """One admitted group that no committed step has consumed."""

    group_id: str
    """The group."""
    group_index: int
    """Its position in the order of admission."""
    version: int
    """v_d, kept over the resume."""
    executions: tuple[RestoredExecution, ...]
    """All its executions."""
    is_ready: bool
    """True where every execution has its outcome in the store."""
    expected_s: float = 0.0
    """Expected duration of its query, for 'longest_first'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredState:
    """The run at its last committed step."""

    version: int
    """Steps committed."""
    published_version: int
    """Version that the engines serve."""
    num_consumed_groups: int
    """Groups of committed steps; in an evaluation the closed groups that are not listed."""
    groups: tuple[RestoredGroup, ...]
    """Outstanding groups, in order of admission."""
