"""Edges: bounded queues between operators, in one process or across two.

An edge holds at most `capacity` batches. A sender waits until the receiver has taken its batch into the queue, so a slow sink slows
its source and nothing is buffered without a bound. A batch crosses processes as an Arrow table, which Ray keeps in its object store
where it is large. `None` ends a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gyre.records import Batch, Control

Send = Callable[[Batch[Any] | None], Awaitable[None]]
"""Hands a batch to one receiving port; returns when it is in the receiver's queue."""


class Inbox:
    """The receiving end of an edge: an async iterator of batches."""

    def __init__(self, capacity: int) -> None:
        self._queue: asyncio.Queue[Batch[Any] | None] = asyncio.Queue(capacity)
        self._has_ended = False

    async def put(self, batch: Batch[Any] | None) -> None:
        """Take a batch in; waits while the edge is full."""
        await self._queue.put(batch)

    async def __aiter__(self) -> AsyncIterator[Batch[Any]]:
        while (batch := await self._queue.get()) is not None:
            yield batch
        self._has_ended = True

    async def drain(self) -> None:
        """Take what still comes and forget it: a receiver that has enough must not hold its senders for ever."""
        if not self._has_ended:
            async for _ in self:
                pass


class GroupGate:
    """The edge that carries ready groups: they leave it in the order in which the scheduler consumes them.

    Groups arrive as they become ready and wait here, at most as many as are outstanding; the scheduler names the next one (oldest
    version first), and says which training batch it belongs to.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._groups: dict[str, Batch[Any]] = {}
        self._came = asyncio.Event()

    async def put(self, batch: Batch[Any] | None) -> None:
        """Take a ready group in."""
        if batch is not None:
            self._groups[batch.table.column("group_id")[0].as_py()] = batch
            self._came.set()

    async def drain(self) -> None:
        """Leave what waits: groups that come here hold nobody."""

    async def __aiter__(self) -> AsyncIterator[Batch[Any]]:
        from gyre.records import StepMark

        while (order := await self._control.next_group()) is not None:
            while order["group_id"] not in self._groups:
                self._came.clear()
                await self._came.wait()
            group = self._groups.pop(order["group_id"])
            yield Batch(group.table, StepMark(version=order["version"], last=order["last"]))


class Outbox:
    """The sending end of a port: every connected receiver gets every batch."""

    def __init__(self, receivers: list[Send]) -> None:
        self._receivers = receivers

    async def put(self, batch: Batch[Any] | None) -> None:
        """Send to all receivers; returns when all have taken it."""
        await asyncio.gather(*(send(batch) for send in self._receivers))
