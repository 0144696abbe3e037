"""A pool: one process (a Ray actor) that hosts operators of the plan, their inboxes and their resources.

Fed over edges by other pools, it runs each of its operators as a task of one event loop: a source once, a batch operator per batch, a
stream operator once per run. An operator that fails on a batch costs that batch: its records go to the quarantine with the reason and
an empty batch takes their place, so nothing waits for them. A stream operator that fails ends the run (resumable).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from gyre.errors import RunError
from gyre.records import Batch, Record
from gyre.runtime.doorcheck import check_batch, register_batch_checker
from gyre.runtime.edges import GroupGate, Inbox, Outbox, Send


@dataclass(frozen=True, kw_only=True, slots=True)
class PortSpec:
    """One port of an operator as the plan has it."""

    record: type[Record]
    """What travels over it."""
    is_stream: bool
    """Whether the operator sees an iterator of batches instead of one batch."""
    capacity: int = 4
    """Inputs: most batches in the edge."""
    is_gated: bool = False
    """Inputs: ready groups that leave in the scheduler's order."""
    targets: tuple[tuple[str, str, str], ...] = ()
    """Outputs: (pool, node, port) of every receiver."""
    tap: str | None = None
    """Outputs: table of the run that also gets every batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """One operator of a pool."""

    node: str
    """Its name in the pipeline."""
    target: str
    """Where it is, as `module:attr`."""
    settings: Mapping[str, Any]
    """What it is given."""
    resources: Mapping[str, str]
    """Parameter to name of the resource protocol."""
    inputs: Mapping[str, PortSpec] = field(default_factory=dict)
    """Input ports."""
    outputs: Mapping[str, PortSpec] = field(default_factory=dict)
    """Output ports."""


def import_target(path: str) -> Callable[..., Any]:
    """Import `module:attr`."""
    module, _, attribute = path.partition(":")
    target: Any = import_module(module)
    for name in attribute.split("."):
        target = getattr(target, name)
    return target


def build_operator(target: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """Make the operator: (object or None, what to call with the ports)."""
    if inspect.isclass(target):
        made: Any = target(**arguments)
        return made, made.run
    if not arguments:
        return None, target

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs, **arguments)

    if inspect.iscoroutinefunction(target):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await target(*args, **kwargs, **arguments)

        return None, call_async
    return None, call


class NodeRunner:
    """Runs one operator: reads its inboxes, calls it, checks and sends what comes out."""

    def __init__(self, spec: NodeSpec, *, resources: Mapping[str, Any], store: Any, control: Any) -> None:
        self.spec = spec
        self._store = store
        self._control = control
        arguments = {**spec.settings, **{name: resources[protocol] for name, protocol in spec.resources.items()}}
        self.made, self._call = build_operator(import_target(spec.target), arguments)
        self.inboxes: dict[str, Any] = {
            name: GroupGate(control) if port.is_gated else Inbox(port.capacity) for name, port in spec.inputs.items()
        }
        self._outboxes: dict[str, Outbox] = {}

    def connect(self, send_to: Callable[[str, str, str], Send]) -> None:
        """Fix where outputs go."""
        for name, port in self.spec.outputs.items():
            self._outboxes[name] = Outbox([send_to(*target) for target in port.targets])

    async def run(self) -> None:
        """Run the operator to its end, then end its outputs; what still comes in after that is let go."""
        ports = (*self.spec.inputs.values(), *self.spec.outputs.values())
        if any(port.is_stream for port in ports) or not ports:
            await self._run_stream()
        elif not self.spec.inputs:
            await self._send_outputs(await _maybe(self._call))
        else:
            await self._run_batches()
        await asyncio.gather(*(outbox.put(None) for outbox in self._outboxes.values()))
        await asyncio.gather(*(inbox.drain() for inbox in self.inboxes.values()))

    async def _run_stream(self) -> None:
        result = self._call(**{name: self._checked(name) for name in self.spec.inputs})
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, tuple):
            names = result._fields  # pyright: ignore[reportAttributeAccessIssue]
            await asyncio.gather(*(self._pump(name, getattr(result, name)) for name in names))
        elif result is not None and hasattr(result, "__aiter__"):
            await self._pump(next(iter(self.spec.outputs)), result)
        elif isinstance(result, Batch):
            await self._send_outputs(result)

    async def _checked(self, name: str) -> AsyncIterator[Batch[Any]]:
        record = self.spec.inputs[name].record
        async for batch in self.inboxes[name]:
            check_batch(batch, record)
            yield batch

    async def _pump(self, name: str, batches: AsyncIterator[Batch[Any]]) -> None:
        async for batch in batches:
            await self._send(name, batch)

    async def _run_batches(self) -> None:
        iterators = {name: aiter(self._checked(name)) for name in self.spec.inputs}
        while True:
            given: dict[str, Batch[Any]] = {}
            for name, iterator in iterators.items():
                batch = await anext(iterator, None)
                if batch is None:
                    return
                given[name] = batch
            await self._call_once(given)

    async def _call_once(self, given: Mapping[str, Batch[Any]]) -> None:
        step = next((b.step for b in given.values() if b.step is not None), None)
        try:
            result = await _maybe(self._call, **given)
        except RunError:
            raise
        except Exception as error:
            await self._quarantine(given, error)
            result = {name: Batch.of(port.record, []) for name, port in self.spec.outputs.items()}
        await self._send_outputs(result, step=step)

    async def _send_outputs(self, result: Any, *, step: Any = None) -> None:
        named: dict[str, Batch[Any]]
        if isinstance(result, Mapping):
            named = dict(result)
        elif isinstance(result, tuple):
            named = {name: getattr(result, name) for name in result._fields}  # pyright: ignore[reportAttributeAccessIssue]
        else:
            named = {name: result for name in list(self.spec.outputs)[:1]}  # noqa: C420
        for name, batch in named.items():
            await self._send(name, batch if batch.step is not None or step is None else Batch(batch.table, step))

    async def _send(self, name: str, batch: Batch[Any]) -> None:
        port = self.spec.outputs[name]
        check_batch(batch, port.record)
        if port.tap is not None and len(batch):
            extra = {"step_version": batch.step.version} if batch.step else {}
            self._store.append(port.tap, _fit(port.tap, batch, extra))
        await self._outboxes[name].put(batch)

    async def _quarantine(self, given: Mapping[str, Batch[Any]], error: Exception) -> None:
        for name, batch in given.items():
            for row in batch.rows():
                record = str(row.get("trajectory_id") or row.get("execution_id") or row.get("query_id") or "?")
                reason = f"{type(error).__name__}: {error}"
                entry = {"time_s": time.time(), "operator": self.spec.node, "port": name, "record": record, "reason": reason}
                with (self._store.run_dir / "quarantine.jsonl").open("a", encoding="utf-8") as out:
                    out.write(json.dumps(entry) + "\n")
                await self._control.record_event("quarantined", -1, entry)


def _fit(table: str, batch: Batch[Any], extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    from gyre.records import load_schema

    names = set(load_schema(f"{table}.v1").names)
    return [{k: v for k, v in {**row, **extra}.items() if k in names} for row in batch.rows()]


async def _maybe(call: Callable[..., Any], **kwargs: Any) -> Any:
    """Call a function that may be async; a sync one runs beside the event loop."""
    if inspect.iscoroutinefunction(call):
        return await call(**kwargs)
    return await asyncio.to_thread(call, **kwargs)


class Pool:
    """The actor: hosts `NodeRunner`s, takes batches in for them, answers for its resources. Made a Ray actor by the driver."""

    def __init__(self, *, name: str, run_dir: str) -> None:
        register_batch_checker()
        self.name = name
        self.run_dir = Path(run_dir)
        self.nodes: dict[str, NodeRunner] = {}
        self.room: Any = None
        self.lock: Any = None
        self.resources: dict[str, Any] = {}
        self._tasks: list[asyncio.Future[Any]] = []

    async def ping(self) -> str:
        """Answer once the process is up."""
        return self.name

    async def prepare(self, wiring: Any) -> None:
        """Make resources and operators; `wiring` is `gyre.runtime.wiring.Wiring`, which knows how."""
        await wiring.prepare(self)

    async def put(self, node: str, port: str, batch: Batch[Any] | None) -> None:
        """Take a batch into an inbox; returns when it is in."""
        await self.nodes[node].inboxes[port].put(batch)

    async def control(self, name: str, *args: Any) -> Any:
        """Knock at a door of the control room."""
        result = getattr(self.room, name)(*args)
        return await result if inspect.isawaitable(result) else result

    async def operator(self, node: str, name: str, *args: Any) -> Any:
        """Ask an operator of this pool for something."""
        result = getattr(self.nodes[node].made, name)(*args)
        return await result if inspect.isawaitable(result) else result

    async def reroute(self, moves: Mapping[str, str]) -> None:
        """Rewrite routes of running executions."""
        self.resources["Engines"].reroute(moves)

    async def run(self) -> None:
        """Run all operators of this pool until the run is over; raises the first failure."""
        self._tasks = [asyncio.ensure_future(runner.run()) for runner in self.nodes.values()]
        if self.room is not None:
            self._tasks.append(asyncio.ensure_future(self.room.run()))
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._end()

    async def leave(self) -> None:
        """Stop what is still running and close what is open; the process may be killed after this."""
        await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for runner in self.nodes.values():
            close = getattr(runner.made, "close", None)
            if close is not None:
                await _maybe(close)
        if "Store" in self.resources:
            self.resources["Store"].close()
