"""A server that somebody else runs, as the engine of a cell: SGLang, or anything that speaks its contract.

It keeps its own memory, so a role change only cancels its requests; until the next publication it serves the published weights, which
is what every late request must get. New weights come from the checkpoint on disk, which both sides must see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from gyre.rollout.engines.client import EngineClient

T = TypeVar("T")


class RemoteInfo(NamedTuple):
    """What a cell asks of its engine."""

    version: int
    """Version of the weights that the server says it serves."""


class RemoteEngine:
    """The part of `Engine` that a cell needs, over HTTP; called from the cell's engine thread."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def _ask(self, call: Callable[[EngineClient], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            async with EngineClient(self.url) as client:
                return await call(client)

        return asyncio.run(ask())

    def abort(self, rid: str | None) -> None:
        """End the request with this id, or all (None), with what they have."""
        self._ask(lambda client: client.abort_all() if rid is None else client.abort(rid))

    def release_memory(self, tags: Sequence[str] = ()) -> None:
        """Leave the server's memory alone: it is not this cell's."""

    def resume_memory(self, tags: Sequence[str] = ()) -> None:
        """Leave the server's memory alone: it is not this cell's."""

    def load_weights_from_disk(self, model_dir: str, version: int) -> None:
        """Cut live requests, load a Hugging Face folder as `version`, and let them go on under it."""

        async def load(client: EngineClient) -> None:
            await client.pause("retract")
            try:
                await client.load_weights_from_disk(model_dir, version)
            finally:
                await client.resume()

        self._ask(load)

    def info(self) -> RemoteInfo:
        """What the server says of itself."""
        return RemoteInfo(version=self._ask(lambda client: client.version()))

    def close(self) -> None:
        """Leave the server running."""


class RemoteServer:
    """Stands for the server in the place of `server.RunningServer`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def set_accepting(self, is_open: bool) -> None:
        """Do nothing: routes decide who asks it."""

    def stop(self) -> None:
        """Leave the server running."""
