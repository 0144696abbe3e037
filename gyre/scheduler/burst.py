"""A burst: mu steps between two publications, as a state machine (paper sections 4.3 and 4.4).

    rollout ─▶ switching ─▶ waiting ─▶ stepping ─▶ reducing ─┬▶ broadcasting ─▶ waiting       (nonfinal update)
       ▲                       ▲                              └▶ publishing ─┬▶ rollout        (burst end)
       └───────────────────────┼─────────────────────────────────────────────┼▶ waiting        (core retained)
                               └─────────────────────────────────────────────┴▶ ending         (last step of the run)

The core exposes its snapshot before each step; the join window opens with the step and closes when the stream is exhausted, before
the reduction, or when a participant is lost. Participants are a prefix of the living cells. The scheduler feeds it and decides about
roles; the burst decides about steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.counters import Group, Ledger
from gyre.scheduler.decisions import (
    BeginStep,
    Broadcast,
    CloseWindow,
    Consume,
    Decision,
    Discard,
    Join,
    Publish,
    Reduce,
)
from gyre.scheduler.staleness import StalenessAccount
from gyre.scheduler.supply import ReadyGroups
from gyre.scheduler.waterlevel import CORE, CellOrder

Phase = Literal["rollout", "switching", "waiting", "stepping", "reducing", "broadcasting", "publishing", "ending", "finished", "failed"]


class Burst:
    """Steps of one burst after another."""

    def __init__(self, config: SchedulerConfig, *, cells: CellOrder, ready: ReadyGroups, ledger: Ledger, account: StalenessAccount) -> None:
        self.phase: Phase = "rollout"
        self.version = 0
        """Steps committed so far."""
        self.published_version = 0
        """Version that the engines serve."""
        self.members: list[int] = []
        """Cells that hold the current weights, a prefix of the living ones: who may claim while a step runs."""
        self.is_window_open = False
        self.consumed: list[Group] = []
        """Groups of the running step."""
        self.num_consumed = 0
        """Groups that any step has taken."""
        self.wants_group = False
        """True while the packing buffer waits for a group."""
        self._config = config
        self._cells = cells
        self._ready = ready
        self._ledger = ledger
        self._account = account

    @property
    def end(self) -> int:
        """Version whose publication ends the burst."""
        return self._config.burst_end(self.published_version)

    @property
    def is_before_start(self) -> bool:
        """True while the core is in rollout, or was asked back to it."""
        return self.phase == "rollout"

    @property
    def is_running(self) -> bool:
        """True from the core's transition to the burst's final update."""
        return self.phase in ("switching", "waiting", "stepping", "reducing", "broadcasting")

    @property
    def num_groups_left(self) -> int:
        """Groups that the burst has still to consume."""
        return (self.end - self.version) * self._config.groups_per_step - len(self.consumed)

    @property
    def can_use_satellites(self) -> bool:
        """True while a satellite that leaves now can join this step or a later one of the burst, and there are groups for it."""
        if not self.is_running:
            return False
        end = self.end
        steps_follow = self.version + (self.phase in ("stepping", "reducing")) < end
        num_groups_left = (end - self.version) * self._config.groups_per_step - len(self.consumed)
        return num_groups_left > 0 and (self.is_window_open or steps_follow)

    def expect(self, event: str, *phases: Phase) -> None:
        """Refuse an event that cannot come now: the executor broke the protocol."""
        if self.phase not in phases:
            raise RuntimeError(f"scheduler: {event} came in phase '{self.phase}', expected in {', '.join(phases)}")

    def restore(self, *, version: int, published_version: int, num_consumed: int) -> None:
        """Take over an interrupted run: the core is in rollout, the burst may be under way."""
        self.version, self.published_version, self.num_consumed = version, published_version, num_consumed
        if self._config.train and published_version == self._config.steps:
            self.phase = "ending"

    def enter_training(self) -> Iterator[Decision]:
        """The core has switched to training: wait to step, or publish what an interrupted run had left unpublished."""
        self.expect("switched_to_training(core)", "switching")
        self.members = [CORE]
        if self.version == self.end:
            yield self._publish()
        else:
            self.phase = "waiting"

    def begin_step(self) -> BeginStep:
        """Open the stream and the join window of the next step."""
        assert self.phase == "waiting", "a step begins after the one before"
        self.phase = "stepping"
        self.is_window_open = True
        return BeginStep(
            version=self.version + 1, cells=tuple(self.members), reason=f"step {self.version + 1} of a burst to version {self.end}"
        )

    def join_satellites(self) -> Iterator[Join]:
        """Let satellites in training join the running step, in order and without gaps."""
        while self.phase == "stepping" and self.is_window_open and len(self.members) < len(self._cells.order):
            cell = self._cells.order[len(self.members)]
            if self._cells.roles[cell] != "training":
                return
            self.members.append(cell)
            yield Join(cell=cell, version=self.version + 1, reason="the join window is open and every earlier cell takes part")

    def take_group(self) -> Iterator[Consume]:
        """Give the packing buffer the next ready group, if it waits for one."""
        size = self._config.groups_per_step
        if self.phase != "stepping" or not self.wants_group or len(self.consumed) == size or not len(self._ready):
            return
        group = self._ledger.groups[self._ready.take()]
        self._ledger.forget(group.group_id)
        self.consumed.append(group)
        self.num_consumed += 1
        self.wants_group = False
        yield Consume(
            group_id=group.group_id,
            version=self.version + 1,
            last=len(self.consumed) == size,
            reason=f"oldest ready group, dispatched under version {group.version}",
        )

    def close_window(self, reason: str) -> Iterator[CloseWindow]:
        """Let nobody join the running step any more."""
        if self.is_window_open:
            self.is_window_open = False
            yield CloseWindow(version=self.version + 1, reason=reason)

    def reduce(self) -> Iterator[Decision]:
        """All micro-steps are finished: sum the participants' gradients in the core."""
        self.expect("drained", "stepping")
        if len(self.consumed) < self._config.groups_per_step:
            raise RuntimeError(f"scheduler: step {self.version + 1} drained after {len(self.consumed)} groups")
        yield from self.close_window("the reduction begins")
        self.phase = "reducing"
        yield Reduce(version=self.version + 1, cells=tuple(self.members), reason="every micro-step is finished")

    def commit_step(self, version: int) -> Iterator[Decision]:
        """The update is committed: go on with the burst, or publish."""
        self.expect("updated", "reducing")
        if version != self.version + 1:
            raise RuntimeError(f"scheduler: updated({version}) came, expected version {self.version + 1}")
        self._account.commit_step(v_t=self.version, group_versions=[group.version for group in self.consumed])
        self.version = version
        self.consumed = []
        if version == self.end:
            yield self._publish()
        elif len(self.members) > 1:
            self.phase = "broadcasting"
            yield Broadcast(version=version, cells=tuple(self.members), reason="nonfinal update of the burst")
        else:
            self.phase = "waiting"

    def _publish(self) -> Publish:
        self.phase = "publishing"
        self.members = [CORE]
        return Publish(version=self.version, reason="final update of the burst")

    def finish_broadcast(self, version: int) -> None:
        """The satellites have the new weights; late news of a broadcast that a loss has ended is ignored."""
        if self.phase == "broadcasting" and version == self.version:
            self.phase = "waiting"

    def confirm_publication(self, version: int) -> None:
        """The engines serve the version; what the core does next is decided by `keep_core` or `release_core`."""
        self.expect("published", "publishing")
        if version != self.version:
            raise RuntimeError(f"scheduler: published({version}) came, expected version {self.version}")
        self.published_version = version

    def keep_core(self) -> None:
        """The core begins the next burst without returning to rollout, or has no step left to make."""
        self.phase = "ending" if self.version == self._config.steps else "waiting"

    def release_core(self) -> None:
        """The core returns to rollout."""
        self.phase = "rollout"
        self.members = []

    def drop(self, cell: int) -> Iterator[Decision]:
        """A cell leaves training early, with all later participants of a running step.

        Nothing that they accumulated counts. Between steps nothing is accumulated; a broadcast is given up, satellites pull again.
        """
        if cell not in self.members:
            return
        place = self.members.index(cell)
        if self.phase in ("stepping", "reducing"):
            gone = tuple(self.members[place:])
            del self.members[place:]
            self.phase = "stepping"
            yield from self.close_window(f"cell {cell} left the step")
            yield Discard(version=self.version + 1, cells=gone, reason=f"cell {cell} left the step")
        elif self.phase == "broadcasting":
            self.members = [CORE]
            self.phase = "waiting"
        else:
            del self.members[place]
