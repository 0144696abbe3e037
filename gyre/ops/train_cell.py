"""`train_cell`: hands micro-steps to the training cells and tells of published versions (paper section 4.4).

The work itself is done by the cells that the scheduler has moved to training; they claim micro-steps from one shared queue. This
operator fills the queue, closes it at the end of a training batch, and is the source of the feedback edge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from gyre.ops._background import Background
from gyre.records import Batch, Control, MicroStep, PolicyVersion, Stream, op


class TrainOutputs(NamedTuple):
    """Output ports of `train_cell`."""

    versions: Stream[PolicyVersion]
    """Published versions, as every engine has confirmed them."""


@op("train_cell", state="store")
class TrainCell:
    """Train on micro-steps and publish.

    State across batches: weights, optimizer and counters, in the run's checkpoints.
    """

    def __init__(
        self,
        *,
        objective: Literal["gspo"] = "gspo",
        token_weight_cap: float = 5.0,
        clip_low: float = 0.995,
        clip_high: float = 1.005,
        control: Control,
    ) -> None:
        """Take the settings of the objective (semantics.md, section 5).

        Args:
            objective: 'gspo', execution-level clip with token-level importance weights.
            token_weight_cap: most that a token's importance weight may be.
            clip_low: an execution with negative advantage and a ratio below this is masked.
            clip_high: an execution with positive advantage and a ratio above this is masked.
            control: the scheduler's doors.
        """
        self.control = control

    def run(self, microsteps: Stream[MicroStep]) -> TrainOutputs:
        """Feed the queue; the output tells of versions as they are published."""
        return TrainOutputs(versions=self._versions(microsteps))

    async def _versions(self, microsteps: Stream[MicroStep]) -> AsyncIterator[Batch[PolicyVersion]]:
        background = Background()
        feeder = background.start(self._feed(microsteps))
        try:
            while (version := await background.wait(self.control.next_version())) is not None:
                yield Batch.of(PolicyVersion, [version])
            await feeder
        finally:
            await background.cancel()

    async def _feed(self, microsteps: Stream[MicroStep]) -> None:
        async for batch in microsteps:
            assert batch.step is not None, "a micro-step belongs to a training batch"
            if len(batch):
                await self.control.enqueue(batch.table)
            if batch.step.last:
                await self.control.close_stream(batch.step.version)
