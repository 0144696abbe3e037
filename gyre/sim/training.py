"""Training in virtual time: the stream of micro-steps, cells that claim them, reduction, broadcast, publication.

The queue is the same `ClaimQueue` that a live run has. A cell works on one micro-step at a time, at a speed in proportion to its
ranks. The packing buffer asks for a group when fewer micro-steps are unclaimed than cells could take at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.graph.workload import WorkloadSettings
from gyre.scheduler import decisions as d
from gyre.scheduler.claims import ClaimQueue
from gyre.scheduler.scheduler import Scheduler
from gyre.sim.clock import VirtualClock
from gyre.sim.journal import Journal, StepRecord
from gyre.sim.rollout import RolloutModel, Tell


@dataclass(slots=True)
class _Step:
    version: int
    begun_s: float
    burst: int
    expected_s: float = 0.0
    num_groups: int = 0


class TrainingModel:
    """Everything that happens to steps."""

    def __init__(
        self,
        settings: WorkloadSettings,
        *,
        num_ranks: tuple[int, ...],
        rollout: RolloutModel,
        scheduler: Scheduler,
        clock: VirtualClock,
        journal: Journal,
        tell: Tell,
    ) -> None:
        self.queue = ClaimQueue()
        """Micro-steps of the running step."""
        self.slowdown = 1.0
        """Factor on the time of a micro-step, for what cells share."""
        self._settings = settings
        self._num_ranks = num_ranks
        self._rollout = rollout
        self._scheduler = scheduler
        self._clock = clock
        self._journal = journal
        self._tell = tell
        self._step = _Step(0, 0.0, 0)
        self._cost: dict[str, float] = {}
        """Rank-seconds of each micro-step."""
        self._idle: dict[int, None] = {}
        """Participants without a micro-step, in the order in which they became idle."""
        self._busy: dict[int, int] = {}
        """Number of the claim that each other participant works on."""
        self._num_claims = 0
        self._is_group_wanted = False
        self._is_exhaustion_told = False
        self._is_drain_told = False
        self._num_discards = 0
        self._num_reductions = 0

    # ---- decisions -------------------------------------------------------------------------------------------------------------

    def begin_step(self, decision: d.BeginStep) -> None:
        """Open the stream; who holds the weights works at once."""
        self.queue.open(decision.version)
        self._step = _Step(decision.version, self._clock.now_s, self._scheduler.published_version)
        self._cost.clear()
        self._is_group_wanted = self._is_exhaustion_told = self._is_drain_told = False
        self._busy.clear()
        self._idle = dict.fromkeys(decision.cells)
        self._clock.after(0.0, self._work)

    def join(self, decision: d.Join) -> None:
        """A satellite works once it has pulled the snapshot."""
        self._clock.after(self._settings.join_s, self._begin_work, (decision.cell, decision.version, self._num_discards))

    def consume(self, decision: d.Consume) -> None:
        """Pack a group into micro-steps."""
        self._clock.after(0.0, self._pack, decision)

    def discard(self, decision: d.Discard) -> None:
        """Cells have left the step: what they had claimed returns."""
        for cell in decision.cells:
            self.stop(cell)
        self.queue.lose_from(decision.cells[0])
        self._is_drain_told = False
        self._num_discards += 1
        self._num_reductions += 1
        self._clock.after(0.0, self._work)

    def reduce(self, decision: d.Reduce) -> None:
        """Sum, update, commit."""
        self._num_reductions += 1
        self._clock.after(self._settings.step_s, self._update, (decision, self._num_reductions))

    def broadcast(self, decision: d.Broadcast) -> None:
        """Satellites in training get the new weights."""
        self._clock.after(self._settings.broadcast_s, lambda version: self._tell(self._scheduler.broadcast_done, version), decision.version)

    def publish(self, decision: d.Publish) -> None:
        """Every engine gets the new weights."""
        self._clock.after(self._settings.publish_s, lambda version: self._tell(self._scheduler.published, version), decision.version)

    def stop(self, cell: int) -> None:
        """A cell works no longer: it is lost, or on its way to rollout."""
        self._idle.pop(cell, None)
        self._busy.pop(cell, None)

    # ---- what happens ----------------------------------------------------------------------------------------------------------

    def _begin_work(self, joined: tuple[int, int, int]) -> None:
        cell, version, num_discards = joined
        if version == self._step.version and cell in self._scheduler.members and num_discards == self._num_discards:
            self._idle[cell] = None
            self._work(None)

    def _pack(self, decision: d.Consume) -> None:
        draw = self._rollout.take_draw(decision.group_id)
        count = self._settings.microsteps_per_group
        for number in range(count):
            item_id = f"{decision.group_id}/{number}"
            self._cost[item_id] = draw.train_rank_s / count
            self.queue.enqueue(item_id)
        self._journal.length_s += draw.work_s
        self._journal.train_rank_s += draw.train_rank_s
        self._step.expected_s += draw.query_s
        self._step.num_groups += 1
        self._is_group_wanted = False
        if decision.last:
            self.queue.close()
        self._work(None)

    def _work(self, _: None) -> None:
        """Let idle cells claim, ask for a group where the buffer is low, tell where the stream stands."""
        if self._scheduler.phase != "stepping":
            return
        for cell in list(self._idle):
            item = self.queue.claim(cell)
            if item is None:
                break
            del self._idle[cell]
            self._num_claims += 1
            self._busy[cell] = self._num_claims
            duration_s = self._cost[item.item_id] / self._num_ranks[cell] * self.slowdown
            self._clock.after(duration_s, self._finish_item, (cell, self._num_claims, item.item_id, duration_s))
        if not self.queue.is_closed and not self._is_group_wanted and self.queue.num_unclaimed < len(self._scheduler.members):
            self._is_group_wanted = True
            self._tell(self._scheduler.want_group)
        self._look_for_end()

    def _finish_item(self, done: tuple[int, int, str, float]) -> None:
        cell, claim, item_id, duration_s = done
        if self._busy.get(cell) != claim:
            return
        self._journal.busy_s[cell] += duration_s
        del self._busy[cell]
        self.queue.finish(cell, item_id)
        self._idle[cell] = None
        self._work(None)

    def _look_for_end(self) -> None:
        if self.queue.is_exhausted and not self._is_exhaustion_told:
            self._is_exhaustion_told = True
            self._tell(self._scheduler.stream_exhausted)
        if self.queue.is_drained and not self._is_drain_told and self._scheduler.phase == "stepping":
            self._is_drain_told = True
            self._tell(self._scheduler.drained)

    def _update(self, reduction: tuple[d.Reduce, int]) -> None:
        decision, number = reduction
        if number != self._num_reductions:
            return
        step, now_s = self._step, self._clock.now_s
        expected_s = step.expected_s / max(1, step.num_groups)
        self._journal.steps.append(StepRecord(step.version, step.burst, step.begun_s, now_s, decision.cells, expected_s))
        self._tell(self._scheduler.updated, decision.version)

    def find_busy(self) -> list[int]:
        """Cells that work on a micro-step."""
        return list(self._busy)

    def describe_waiting(self) -> str:
        """Where the step stands, for an error."""
        waits = "a group is wanted" if self._is_group_wanted else "no group is wanted"
        return f"step {self._step.version} has {self.queue.num_unclaimed} unclaimed micro-steps, cells {list(self._busy)} work, {waits}"
