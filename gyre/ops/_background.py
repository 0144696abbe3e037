"""Background work of a stream operator: whatever fails in it fails the operator, at once and with its own error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Tasks beside an operator's main loop, which waits for its queue and for their first failure together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[None] | None = None

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task."""
        if self._failure is None:
            self._failure = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def get(self, queue: asyncio.Queue[T]) -> T:
        """The queue's next item; raises what failed in a task, if that comes first."""
        return await self.wait(queue.get())

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to; raises what failed in a task, if that comes first."""
        waiter = asyncio.ensure_future(work)
        waited = {waiter} if self._failure is None else {waiter, self._failure}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if waiter.done():
            return waiter.result()
        waiter.cancel()
        assert self._failure is not None
        return self._failure.result()  # pyright: ignore[reportReturnType]  (it raises)

    async def drain(self, *, but: asyncio.Task[Any] | None = None) -> None:
        """Wait until no task is left, `but` excepted."""
        while others := [task for task in self._tasks if task is not but]:
            await asyncio.wait(others)

    async def cancel(self) -> None:
        """End every task."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None and self._failure.done():
            self._failure.exception()  # seen, or the loop complains about it when it is collected
