"""Executions from dispatch to end: boundary dispatch, admission, launch, places, cancellation of surplus (paper section 4.2).

Dispatch is a function of the published version alone, `groups_due(version) − ordered`, so that a resumed run needs no memory of what
it was about to admit. An execution launches only into a free place of an open engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.counters import Group, Ledger
from gyre.scheduler.decisions import Cancel, Dispatch, Launch, Reroute
from gyre.scheduler.launching import LaunchQueue
from gyre.scheduler.restore import RestoredGroup, RestoredState
from gyre.scheduler.routing import RouteTable
from gyre.scheduler.staleness import StalenessAccount


class Lifecycle:
    """Who is dispatched, queued, placed and launched."""

    def __init__(self, config: SchedulerConfig, *, ledger: Ledger, routes: RouteTable, staleness: StalenessAccount) -> None:
        self.num_ordered = 0
        """Groups whose admission has been ordered, in the whole run."""
        self.num_admitted = 0
        """Groups that were admitted, in the whole run."""
        self.queue = LaunchQueue(config.launch_order)
        self._config = config
        self._ledger = ledger
        self._routes = routes
        self._staleness = staleness

    @property
    def demand(self) -> int:
        """The waterlevel, and executions of groups whose admission has been ordered."""
        return self._ledger.waterlevel + (self.num_ordered - self.num_admitted) * self._config.executions_per_group

    @property
    def is_complete(self) -> bool:
        """True when every group of the run was admitted and none is outstanding."""
        return not self._ledger.groups and self.num_admitted == self.num_ordered == self._config.total_groups

    def dispatch(self, *, published_version: int, num_consumed: int) -> Iterator[Dispatch]:
        """Order the groups that are due.

        Args:
            published_version: v_d of the new groups.
            num_consumed: groups that steps have taken so far; continuous dispatch replaces each of them.
        """
        due = self._config.groups_due(published_version=published_version, num_consumed=num_consumed)
        num_groups, first = due - self.num_ordered, self.num_ordered
        if num_groups <= 0:
            return
        self.num_ordered = due
        self._staleness.admit(version=published_version, num_groups=num_groups)
        yield Dispatch(
            num_groups=num_groups,
            first_group_index=first,
            version=published_version,
            reason=f"{due} groups are due in all under version {published_version}",
        )

    def admit(self, group_id: str, group_index: int, execution_ids: Sequence[str], *, version: int, expected_s: float) -> None:
        """Queue a group's executions; a group that is known changes nothing."""
        if group_index < self.num_admitted:
            return
        self._ledger.admit(group_id=group_id, index=group_index, version=version, execution_ids=execution_ids)
        self.num_admitted += 1
        for execution_id in execution_ids:
            self.queue.add(execution_id, version=version, expected_s=expected_s)

    def launch(self) -> Iterator[Launch]:
        """Start queued executions while there are places."""
        while len(self.queue) and (engine := self._routes.find_least_loaded()) is not None:
            execution = self._ledger.executions[self.queue.take()]
            self._routes.put(execution.execution_id, engine)
            execution.attempts += 1
            if execution.status == "queued":
                execution.status = "launching"
            yield Launch(
                execution_id=execution.execution_id,
                engine=engine.name,
                attempt=execution.attempts,
                reason="the least loaded engine has a place",
            )

    def close(self, execution_id: str) -> None:
        """Count an execution's end, once, and give back its place."""
        if self._ledger.close(execution_id):
            self.queue.discard(execution_id)
            self._routes.release(execution_id)

    def reroute(self) -> Iterator[Reroute]:
        """Give places to executions whose engine is gone."""
        if self._routes.parked and (moves := self._routes.place_parked()):
            yield Reroute(moves=moves, reason="their engine is gone and places are free")

    def count_valid(self, execution_id: str) -> Iterator[Cancel]:
        """Count a valid outcome, once per execution; the N-th of an oversampled group cancels what is still open in it.

        After a resume the evaluation tells again what it had told before: the outcome is not counted twice, but the surplus is
        cancelled if the interruption came between the N-th outcome and that.
        """
        execution = self._ledger.executions.get(execution_id)
        if execution is None or not self._config.oversample:
            return
        group = execution.group
        group.num_valid += not execution.is_valid
        execution.is_valid = True
        if group.num_valid >= self._config.group_size:
            yield from self._cancel_surplus(group)

    def _cancel_surplus(self, group: Group) -> Iterator[Cancel]:
        for execution in self._ledger.find_open(group):
            if not execution.is_cancelled:
                execution.is_cancelled = True
                self.queue.discard(execution.execution_id)
                yield Cancel(execution_id=execution.execution_id, reason=f"group {group.group_id} has {group.num_valid} valid outcomes")

    def restore(self, state: RestoredState) -> list[Group]:
        """Take over an interrupted run; returns the groups that were ready."""
        self.num_ordered = self.num_admitted = state.num_consumed_groups + len(state.groups)
        consumed = state.num_consumed_groups * self._config.executions_per_group
        self._ledger.dispatched = self._ledger.launched = self._ledger.finished = consumed
        groups = [self._restore_group(restored) for restored in state.groups]
        self._staleness.restart(version=state.version)
        return [group for group, restored in zip(groups, state.groups, strict=True) if restored.is_ready]

    def _restore_group(self, restored: RestoredGroup) -> Group:
        ids = [execution.execution_id for execution in restored.executions]
        version = restored.version
        group = self._ledger.admit(group_id=restored.group_id, index=restored.group_index, version=version, execution_ids=ids)
        group.num_valid = sum(execution.is_valid for execution in restored.executions)
        self._staleness.admit(version=version, num_groups=1)
        for execution in restored.executions:
            self._ledger.executions[execution.execution_id].attempts = execution.attempts
            self._ledger.executions[execution.execution_id].is_valid = execution.is_valid
            if execution.status != "queued":
                self._ledger.launch(execution.execution_id)
            if execution.status == "closed":
                self._ledger.close(execution.execution_id)
            else:
                is_relaunch = execution.status == "running"
                self.queue.add(execution.execution_id, version=version, expected_s=restored.expected_s, is_relaunch=is_relaunch)
        return group
