"""Outcomes (paper §5.2, semantics.md §7): what an execution's reward is, when it has none, and when its group is ready.

A pure state machine: events in, actions out. An execution closes once; then it is scored, unresolved (the evaluator was never
valid within the overall budget: no reward, which is not 0), a placeholder (nothing to assess: a valid 0) or cancelled (surplus).
Reward comes from the scorer only: how the execution ended and how long it took play no part.

Invariants: exactly one `Designate` per closed execution, never revised; late, duplicate and intermediate assessments change
nothing (they are stored by the caller, beside the designated one); a group becomes ready exactly once.

    >>> group = GroupOutcomes("g000000", size=2)
    >>> group.closed("g000000-00", "timeout", assessable=True, artifact_version="a", budget_until_s=60.0, now_s=5.0)
    (Assess(execution_id='g000000-00', try_number=1, wait_s=0.0),)
    >>> group.assessed("g000000-00", valid=False, score=None, reason="no reward file", artifact_version="a", now_s=6.0)
    (Assess(execution_id='g000000-00', try_number=2, wait_s=0.5),)
    >>> [a.outcome for a in group.assessed("g000000-00", valid=True, score=0.5, reason="", artifact_version="a", now_s=7.0)]
    ['scored']
    >>> group.closed("g000000-01", "failed", assessable=False, artifact_version="", budget_until_s=60.0, now_s=8.0)[-1]
    GroupReady(group_id='g000000', scored=1, unresolved=0, placeholders=1, cancelled=0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Outcome = Literal["scored", "unresolved", "placeholder", "cancelled"]

RETRY_BASE_S = 0.5
"""Wait before the second try at a score; doubled each time, so that a broken evaluator is not hammered."""
RETRY_LIMIT_S = 30.0
"""Longest wait between two tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assess:
    """Have the scorer look at the preserved artifact."""

    execution_id: str
    try_number: int
    """From 1, per artifact."""
    wait_s: float
    """Wait this long first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Designate:
    """Write the one designated assessment of an execution."""

    execution_id: str
    outcome: Outcome
    reward: float | None
    """None where the outcome has no reward: unresolved, cancelled."""
    reason: str
    """For people; 'placeholder' for a placeholder."""
    artifact_version: str
    """Artifact it speaks of; empty where there is none."""
    try_number: int
    """Try that decided it; 0 where no scorer was asked."""

    @property
    def valid(self) -> bool:
        """Whether it counts as a reward."""
        return self.reward is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRest:
    """Cancel every execution of the group that is not named: the group has its N valid outcomes (oversampling)."""

    group_id: str
    keep: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReady:
    """All executions of the group have their outcome."""

    group_id: str
    scored: int
    unresolved: int
    placeholders: int
    cancelled: int

    @property
    def num_valid(self) -> int:
        """Rewards that enter the group's statistics."""
        return self.scored + self.placeholders


Action = Assess | Designate | CancelRest | GroupReady


class ExecutionOutcome:
    """The outcome of one execution, from launch to its designated assessment."""

    def __init__(self, execution_id: str, *, max_tries: int | None = None) -> None:
        self.execution_id = execution_id
        self.designated: Designate | None = None
        """None while the outcome is open."""
        self.status: str | None = None
        """How the harness ended; None while it runs or waits. For people: it never changes a reward."""
        self.closed_at_s: float | None = None
        """When the closing was heard of; None before. For people, too."""
        self._max_tries = max_tries
        self._artifact_version = ""
        self._budget_until_s = math.inf
        self._try_number = 0

    def closed(
        self, status: str, *, assessable: bool, artifact_version: str, budget_until_s: float, now_s: float
    ) -> tuple[Assess | Designate, ...]:
        """The harness ended (completed, failed, timeout or cancelled) and the artifact is fixed; a second closing is ignored."""
        if self.status is not None or self.designated is not None:
            return ()
        self.status, self.closed_at_s = status, now_s
        self._artifact_version = artifact_version
        self._budget_until_s = budget_until_s
        if status == "cancelled":
            return self._designate("cancelled", None, "cancelled")
        if not assessable:
            return self._designate("placeholder", 0.0, "placeholder")
        return self._assess(wait_s=0.0)

    def assessed(
        self, *, valid: bool, score: float | None, reason: str, artifact_version: str, now_s: float
    ) -> tuple[Assess | Designate, ...]:
        """A scorer answered. Only a score of the preserved artifact counts, and only while the outcome is open."""
        if self.status is None or self.designated is not None or artifact_version != self._artifact_version:
            return ()
        if valid and score is not None and math.isfinite(score):
            return self._designate("scored", float(score), reason)
        wait_s = min(RETRY_BASE_S * 2 ** (self._try_number - 1), RETRY_LIMIT_S)
        if self._try_number == self._max_tries or now_s + wait_s >= self._budget_until_s:
            return self._designate("unresolved", None, reason or "the evaluator gave no valid score")
        return self._assess(wait_s=wait_s)

    def budget_expired(self, *, now_s: float) -> tuple[Assess | Designate, ...]:
        """The overall budget may be over: an execution that still has no valid score stays unresolved."""
        if self.status is None or self.designated is not None or now_s < self._budget_until_s:
            return ()
        return self._designate("unresolved", None, "no valid score within the execution's overall budget")

    def cancelled(self) -> tuple[Assess | Designate, ...]:
        """The execution is surplus: whatever it still yields is stored and not used."""
        return () if self.designated is not None else self._designate("cancelled", None, "cancelled")

    def _assess(self, *, wait_s: float) -> tuple[Assess]:
        self._try_number += 1
        return (Assess(execution_id=self.execution_id, try_number=self._try_number, wait_s=wait_s),)

    def _designate(self, outcome: Outcome, reward: float | None, reason: str) -> tuple[Designate]:
        self.designated = Designate(
            execution_id=self.execution_id,
            outcome=outcome,
            reward=reward,
            reason=reason,
            artifact_version=self._artifact_version,
            try_number=self._try_number,
        )
        return (self.designated,)


class GroupOutcomes:
    """The outcomes of one group. The module's docstring has a worked example."""

    def __init__(self, group_id: str, *, size: int, num_surplus: int = 0, max_tries: int | None = None) -> None:
        self.group_id = group_id
        self.is_ready = False
        self._size = size
        self._num_surplus = num_surplus
        self._max_tries = max_tries
        self._executions: dict[str, ExecutionOutcome] = {}

    @property
    def outcomes(self) -> Mapping[str, Designate]:
        """Designated outcomes so far, by execution id, in the order the executions were first heard of."""
        found = {key: item.designated for key, item in self._executions.items() if item.designated is not None}
        return MappingProxyType(found)

    def closed(
        self, execution_id: str, status: str, *, assessable: bool, artifact_version: str, budget_until_s: float, now_s: float
    ) -> tuple[Action, ...]:
        """An execution's harness ended; its slot is free, scoring follows (one try at least, even past the budget)."""
        item = self._execution(execution_id)
        if self.is_ready:
            # The group has its N valid outcomes: what closes now is surplus, whatever it did before it heard of that.
            return item.cancelled()
        return self._with_group(
            item.closed(status, assessable=assessable, artifact_version=artifact_version, budget_until_s=budget_until_s, now_s=now_s)
        )

    def assessed(
        self, execution_id: str, *, valid: bool, score: float | None, reason: str, artifact_version: str, now_s: float
    ) -> tuple[Action, ...]:
        """A scorer answered about one artifact of an execution."""
        item = self._execution(execution_id)
        return self._with_group(item.assessed(valid=valid, score=score, reason=reason, artifact_version=artifact_version, now_s=now_s))

    def budget_expired(self, execution_id: str, *, now_s: float) -> tuple[Action, ...]:
        """The overall budget of an execution may be over."""
        return self._with_group(self._execution(execution_id).budget_expired(now_s=now_s))

    def cancelled(self, execution_id: str) -> tuple[Action, ...]:
        """An execution is surplus."""
        return self._with_group(self._execution(execution_id).cancelled())

    def _execution(self, execution_id: str) -> ExecutionOutcome:
        if execution_id not in self._executions:
            if len(self._executions) == self._size + self._num_surplus:
                raise ValueError(f"group {self.group_id} has all its executions; {execution_id} is none of them")
            self._executions[execution_id] = ExecutionOutcome(execution_id, max_tries=self._max_tries)
        return self._executions[execution_id]

    def _with_group(self, actions: tuple[Assess | Designate, ...]) -> tuple[Action, ...]:
        """Add what an outcome means for the group: ready at N valid outcomes, or when every execution has its outcome."""
        if self.is_ready or not any(isinstance(action, Designate) for action in actions):
            return actions
        valid = tuple(key for key, outcome in self.outcomes.items() if outcome.valid)
        if len(valid) < self._size and len(self.outcomes) < self._size + self._num_surplus:
            return actions
        self.is_ready = True
        rest: list[Action] = []
        if len(valid) >= self._size and len(self.outcomes) < self._size + self._num_surplus:
            rest.append(CancelRest(group_id=self.group_id, keep=tuple(self.outcomes)))
            for item in self._executions.values():
                rest += item.cancelled()
        return (*actions, *rest, self._ready())

    def _ready(self) -> GroupReady:
        found = [outcome.outcome for outcome in self.outcomes.values()]
        return GroupReady(
            group_id=self.group_id,
            scored=found.count("scored"),
            unresolved=found.count("unresolved"),
            placeholders=found.count("placeholder"),
            cancelled=self._size + self._num_surplus - sum(found.count(k) for k in ("scored", "unresolved", "placeholder")),
        )
