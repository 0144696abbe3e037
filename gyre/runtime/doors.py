"""Resources as operators see them, wherever their process is.

`ControlClient`, `RunTrees` and `EngineRoutes` implement the protocols of `gyre.records` over Ray actors; `find_scorer` binds a scorer
operator. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gyre.errors import RunError
from gyre.records import Assessment, Batch, ClosedExecution, Store


class ControlClient:
    """The `Control` protocol, spoken to the control room in another process."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(*args: Any) -> Any:
            return await answer_of(self._pool.control.remote(name, *args))

        return call


async def answer_of(reference: Awaitable[Any]) -> Any:
    """Wait for the answer of another process.

    Raises:
        RunError: the process is gone. It is the run that has failed, not the record that an operator was asking about.
    """
    try:
        return await reference
    except Exception as error:
        from ray.exceptions import RayActorError

        if isinstance(error, RayActorError):
            raise RunError(f"a process of the run is gone: {str(error).strip().splitlines()[0]}") from error
        raise


class EngineRoutes:
    """The `Engines` protocol in the proxy's process: a table of routes that launches fill and role changes rewrite."""

    def __init__(self, *, model_dir: Path, urls: Mapping[str, str]) -> None:
        self._model_dir = model_dir
        self._urls = dict(urls)
        self._routes: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def model_dir(self) -> Path:
        """Hugging Face folder of the policy."""
        return self._model_dir

    def assign(self, execution_id: str, engine: str) -> None:
        """Serve an execution that is launched from an engine, unless a role change has moved it on already.

        Launches and role changes come over different doors. A launch that is performed after a move was decided before it, so the
        engine that it names has left rollout: the move stays.
        """
        self._routes.setdefault(execution_id, engine)
        self._changed.set()

    def reroute(self, moves: Mapping[str, str]) -> None:
        """Rewrite routes, also of executions whose launch is still on its way."""
        self._routes.update(moves)
        self._changed.set()

    def forget(self, execution_id: str) -> None:
        """Drop the route of an execution that has ended."""
        self._routes.pop(execution_id, None)

    async def route(self, execution_id: str) -> str:
        """Base URL of the engine that serves an execution; waits until it has one."""
        while execution_id not in self._routes:
            self._changed.clear()
            await self._changed.wait()
        return self._urls[self._routes[execution_id]]


class RunTrees:
    """The `Trees` protocol: the proxy's memory while it holds a tree, the `calls` table otherwise."""

    def __init__(self, *, pool: Any, node: str, store: Store) -> None:
        self._pool = pool
        self._node = node
        self._store = store

    async def calls(self, execution_id: str, attempt: int) -> pa.Table:
        """Nodes of one execution's tree, in node order."""
        held = await answer_of(self._pool.operator.remote(self._node, "held_calls", execution_id, attempt))
        if held is not None:
            return held
        where = f"execution_id = '{execution_id}' and attempt = {attempt}"
        return (await asyncio.to_thread(self._store.read, "calls", where=where)).sort_by("node_id")

    async def drop(self, execution_id: str) -> None:
        """Forget the tree of an execution whose group has been selected."""
        await answer_of(self._pool.operator.remote(self._node, "drop_tree", execution_id))


class GraphScorers:
    """The `Scorers` protocol over the operator registry."""

    def __init__(self, build: Callable[[str, Mapping[str, Any]], Any]) -> None:
        self._build = build

    def find(self, name: str, settings: Mapping[str, Any]) -> BoundScorer:
        """The scorer `name` with these settings and the resources that it names."""
        return BoundScorer(self._build(name, settings))


class BoundScorer:
    """A scorer operator, a function or a class with `run`, sync or async; a sync one runs beside the event loop."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    async def __call__(self, closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        """Score each closed execution once."""
        if asyncio.iscoroutinefunction(self._target):
            return await self._target(closed)
        return await asyncio.to_thread(self._target, closed)
