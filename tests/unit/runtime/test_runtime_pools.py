"""Operators in their pool, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gyre.records import Batch, PolicyVersion, Stream, Task, op
from gyre.runtime.pools import NodeRunner, NodeSpec, PortSpec
from gyre.store.run_store import RunStore


@op("first_only")
async def first_only(tasks: Stream[Task]) -> None:
    """Have enough after one batch."""
    async for _ in tasks:
        return


@op("pairs")
def pairs(tasks: Batch[Task], versions: Batch[PolicyVersion]) -> None:
    """Take one batch of each at a time."""


def runner_of(name: str, run_dir: Path, *, is_stream: bool, **inputs: Any) -> NodeRunner:
    ports = {port: PortSpec(record=record, is_stream=is_stream, capacity=1) for port, record in inputs.items()}
    spec = NodeSpec(node=name, target=f"test_runtime_pools:{name}", settings={}, resources={}, inputs=ports)
    return NodeRunner(spec, resources={}, store=RunStore(run_dir, writer=name), control=None)


async def send(runner: NodeRunner, port: str, batch: Batch[Any], count: int) -> None:
    for _ in range(count):
        await runner.inboxes[port].put(batch)
    await runner.inboxes[port].put(None)


async def test_an_operator_that_has_enough_does_not_hold_its_senders(tmp_path: Path) -> None:
    runner = runner_of("first_only", tmp_path, is_stream=True, tasks=Task)
    await asyncio.wait_for(asyncio.gather(runner.run(), send(runner, "tasks", Batch.of(Task, []), 6)), 20)


async def test_of_inputs_of_unequal_length_the_longer_one_is_let_go(tmp_path: Path) -> None:
    runner = runner_of("pairs", tmp_path, is_stream=False, tasks=Task, versions=PolicyVersion)
    short, long = send(runner, "tasks", Batch.of(Task, []), 1), send(runner, "versions", Batch.of(PolicyVersion, []), 6)
    await asyncio.wait_for(asyncio.gather(runner.run(), short, long), 20)
