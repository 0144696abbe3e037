"""`train_cell` with doors that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from gyre.ops.train_cell import TrainCell
from gyre.records import Batch, MicroStep, StepMark


class Doors:
    """A queue that refuses micro-steps, and no version that would ever be published."""

    async def enqueue(self, microsteps: pa.Table) -> None:
        raise AssertionError("v000001/0001/0 was enqueued twice")

    async def close_stream(self, step_version: int) -> None:
        raise RuntimeError(f"step {step_version} is not running")

    async def next_version(self) -> None:
        await asyncio.Event().wait()


def microsteps(count: int) -> Batch[MicroStep]:
    row = {"microstep_id": "m", "kind": "gradient", "input_ids": [1], "cu_seqlens": [0, 1], "target_mask": [True]}
    return Batch.of(MicroStep, [{**row, "behavior_logprobs": [-1.0], "segments": []}] * count, step=StepMark(1, True))


@pytest.mark.parametrize(("count", "sentence"), [(1, "enqueued twice"), (0, "is not running")])
async def test_micro_steps_that_are_refused_end_the_operator_while_it_waits_for_a_version(count: int, sentence: str) -> None:
    async def stream() -> AsyncIterator[Batch[MicroStep]]:
        yield microsteps(count)
        await asyncio.Event().wait()

    doors: Any = Doors()
    outputs = TrainCell(control=doors).run(stream())
    with pytest.raises((AssertionError, RuntimeError), match=sentence):
        await asyncio.wait_for(anext(aiter(outputs.versions)), 10)
