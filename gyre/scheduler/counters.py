"""The run's ledger: cumulative counters d, p, f (paper section 4.2), executions and groups.

`d` rises when executions are admitted, `p` when they launch, `f` when their harness ends, each exactly once per execution: retries of
model requests and new attempts change nothing. `0 <= f <= p <= d` at every instant; `waterlevel = d - f`. There is no second counter
anywhere: everything else in this room asks this ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Status = Literal["queued", "launching", "running", "closed"]


class Counters(NamedTuple):
    """Executions so far."""

    dispatched: int
    """d: admitted into the rollout queue."""
    launched: int
    """p: launched, or cancelled while queued."""
    finished: int
    """f: whose harness has ended."""


@dataclass(slots=True)
class Group:
    """The executions of one query."""

    group_id: str
    index: int
    version: int
    """v_d: the version that was published last when the group was admitted."""
    execution_ids: tuple[str, ...]
    num_open: int
    """Executions whose harness has not ended."""
    num_valid: int = 0
    """Valid outcomes so far; counted under oversampling only."""
    is_ready: bool = False


@dataclass(slots=True)
class Execution:
    """One run of the harness, from launch to termination."""

    execution_id: str
    group: Group
    status: Status = "queued"
    attempts: int = 0
    """Attempts launched so far."""
    is_launched: bool = False
    """True once it is counted in p."""
    is_valid: bool = False
    """True once it has a valid outcome; kept under oversampling only."""
    is_cancelled: bool = False
    """True once its end was asked for."""


@dataclass(slots=True)
class Ledger:
    """Counts executions and knows every outstanding group.

    >>> ledger = Ledger()
    >>> group = ledger.admit(group_id="g0", index=0, version=0, execution_ids=["g0-0", "g0-1"])
    >>> ledger.launch("g0-0"), ledger.close("g0-0")
    (None, True)
    >>> ledger.counters, ledger.waterlevel, ledger.num_running
    (Counters(dispatched=2, launched=1, finished=1), 1, 0)
    """

    dispatched: int = 0
    launched: int = 0
    finished: int = 0
    num_closed_groups: int = 0
    """Outstanding groups all of whose harnesses have ended."""
    executions: dict[str, Execution] = field(default_factory=dict[str, Execution])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])

    @property
    def counters(self) -> Counters:
        """d, p, f."""
        return Counters(self.dispatched, self.launched, self.finished)

    @property
    def waterlevel(self) -> int:
        """Queued and running executions, d − f."""
        return self.dispatched - self.finished

    @property
    def num_running(self) -> int:
        """Running executions, p − f."""
        return self.launched - self.finished

    def admit(self, *, group_id: str, index: int, version: int, execution_ids: Sequence[str]) -> Group:
        """Raise d by a group's executions."""
        assert group_id not in self.groups, f"group {group_id} was admitted twice"
        group = Group(group_id, index, version, tuple(execution_ids), len(execution_ids))
        self.groups[group_id] = group
        for execution_id in group.execution_ids:
            self.executions[execution_id] = Execution(execution_id, group)
        self.dispatched += len(group.execution_ids)
        return group

    def launch(self, execution_id: str) -> None:
        """Raise p, once per execution."""
        execution = self.executions[execution_id]
        assert execution.status != "closed", f"execution {execution_id} was launched after its end"
        execution.status = "running"
        self._count_launch(execution)

    def _count_launch(self, execution: Execution) -> None:
        if not execution.is_launched:
            execution.is_launched = True
            self.launched += 1

    def close(self, execution_id: str) -> bool:
        """Raise f, and p where no harness was started; False where the execution was closed before."""
        execution = self.executions.get(execution_id)
        if execution is None or execution.status == "closed":
            return False
        self._count_launch(execution)
        execution.status = "closed"
        self.finished += 1
        execution.group.num_open -= 1
        self.num_closed_groups += execution.group.num_open == 0
        return True

    def forget(self, group_id: str) -> None:
        """Drop a consumed group; its executions stay counted."""
        group = self.groups.pop(group_id)
        assert group.num_open == 0, f"group {group_id} was consumed with open executions"
        self.num_closed_groups -= 1
        for execution_id in group.execution_ids:
            del self.executions[execution_id]

    def find_open(self, group: Group) -> list[Execution]:
        """Executions of a group whose harness has not ended."""
        members = (self.executions[execution_id] for execution_id in group.execution_ids)
        return [execution for execution in members if execution.status != "closed"]
