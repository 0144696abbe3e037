"""A cell: one actor that holds an engine *and* a learner, in one role at a time (paper sections 4.1, 4.3, 4.4).

The conductor in the control room tells it what to do; it decides nothing. Processes and groups stay alive across role changes: the
engine gives its memory back before training state is restored, and the other way round. The learner lives in one thread of its own,
the engine in another; this actor's event loop only passes messages. A standalone engine is a cell without a learner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from gyre.errors import RunError
from gyre.runtime.doors import ControlClient

T = TypeVar("T")

LOCK_WAIT_S = 10.0
"""Longest wait for the run's lock, which the driver shares before it starts a cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerSpec:
    """How a cell trains."""

    checkpoint: Path
    """Checkpoint to start from."""
    adam: Mapping[str, Any]
    """Optimizer settings."""
    objective: Mapping[str, Any]
    """Bounds of the objective."""
    temperature: float
    """Sampling temperature of the run."""
    layout: Mapping[str, int]
    """Parallel layout."""
    device: str
    """'cpu' or 'cuda'."""
    timeout_s: float
    """Longest wait in a collective over cells."""
    seed: int
    """Seed of the learner's random state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSpec:
    """What a cell is made of."""

    name: str
    """`cell0`, `standalone1`."""
    index: int
    """Position in the order of cells; -1 for a standalone engine."""
    num_cells: int
    """Cells of the run."""
    concurrency: int
    """Concurrent executions of its engine."""
    engine_kind: str
    """'local', 'scripted' or 'sglang'."""
    engine: Mapping[str, Any]
    """Settings of the engine."""
    engine_url: str | None
    """Address of a server that somebody else runs; None: the cell runs its engine."""
    run_dir: Path
    """The run's directory."""
    model_dir: Path
    """Hugging Face folder of the published weights."""
    published_version: int
    """Their version."""
    context_limit: int
    """Most tokens of input and output together."""
    temperature: float
    """Sampling temperature, for engines that prepare for it."""
    threads: int
    """Torch threads."""
    seed: int
    """Seed of the engine's draws."""
    trains: bool
    """Whether the run publishes weights."""
    learner: LearnerSpec | None
    """None: the cell only serves rollouts."""
    is_remote: bool
    """Whether other cells may be on other machines."""
    protocol: str
    """Transport of weights."""
    network_device: str
    """Network device of that transport; empty: chosen by it."""


class Cell:
    """The actor. Made a Ray actor by the driver."""

    def __init__(self, *, spec: CellSpec) -> None:
        self.spec = spec
        self._learner_thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._engine_thread = ThreadPoolExecutor(1, thread_name_prefix="engine-admin")
        self._engine: Any = None
        self._server: Any = None
        self._learner: Any = None
        self._groups: Any = None
        self._endpoint: Any = None
        self._layout: Any = None
        self._snapshot: Any = None
        self._reduced: Any = None
        self._control: Any = None
        self._buffer: Any = None
        self._rendezvous: Any = None
        self._lock: Any = None
        self._is_closed = asyncio.Event()

    @cached_property
    def _host(self) -> str:
        """Address at which other processes reach this cell."""
        if not self.spec.is_remote:
            return "127.0.0.1"
        import ray

        return ray.util.get_node_ip_address()

    async def _learn(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._learner_thread, partial(call, *args))

    async def _serve(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._engine_thread, partial(call, *args))

    # Starting

    async def start(self) -> str:
        """Load the model, start the engine and the learner; returns the engine's base URL."""
        url = await self._serve(self._start_engine)
        if self.spec.learner is not None:
            await self._learn(self._start_learner)
        return url

    def _start_engine(self) -> str:
        import torch

        from gyre.runtime.engines import open_engine
        from gyre.store.lock import RunLock

        # Held to the end of the process: a resumed run must not begin while the core of a killed one still writes its checkpoint.
        self._lock = RunLock(self.spec.run_dir)
        self._lock.acquire_shared(wait_s=LOCK_WAIT_S)
        torch.set_num_threads(self.spec.threads)
        if self.spec.trains:
            from gyre.model_shape import read_shape
            from gyre.training.hf import flat_layout
            from gyre.training.transfer import TransferEndpoint

            # Read now: the folder is a checkpoint, which is deleted when newer ones are there.
            self._layout = flat_layout(read_shape(self.spec.model_dir))
            self._endpoint = TransferEndpoint(self._host, protocol=self.spec.protocol, device=self.spec.network_device)
        self._engine, self._server = open_engine(self.spec, host=self._host)
        return self._server.url

    def _start_learner(self) -> None:
        import torch

        from gyre.training.learner import MegatronLearner
        from gyre.training.objective import GspoSettings
        from gyre.training.replica import AdamSettings, Layout
        from gyre.training.transfer import WeightSource

        spec = self.spec.learner
        assert spec is not None
        torch.set_num_threads(self.spec.threads)
        is_core = self.spec.index == 0
        self._learner = MegatronLearner(
            spec.checkpoint / "model",
            layout=Layout(**spec.layout),
            adam=AdamSettings(**spec.adam),
            objective=GspoSettings(**spec.objective),
            temperature=spec.temperature,
            role="core" if is_core else "satellite",
            device=spec.device,
            seed=spec.seed,
        )
        if is_core:
            if (spec.checkpoint / "optimizer.pt").exists():
                self._learner.load_checkpoint(spec.checkpoint)
            self._snapshot = WeightSource(self._endpoint, self._learner.num_weights)

    async def open_rendezvous(self) -> tuple[str, int]:
        """Core: open the store where cells find each other; (host, port)."""
        from gyre.training.groups import open_rendezvous

        self._rendezvous, port = open_rendezvous(self._host)
        return self._host, port

    async def join_groups(self, pool: Any, rendezvous: tuple[str, int] | None) -> None:
        """Build the communication groups with the other cells; `pool` is where the control room is."""
        self._control = ControlClient(pool)
        if self.spec.learner is not None:
            assert rendezvous is not None, "cells that train meet somewhere"
            await self._learn(self._join_groups, *rendezvous)
            await self._learn(self._learner.release)

    def _join_groups(self, host: str, port: int) -> None:
        from gyre.training.groups import PrefixGroups

        spec = self.spec.learner
        assert spec is not None
        self._groups = PrefixGroups(
            host,
            port,
            cell=self.spec.index,
            num_cells=self.spec.num_cells,
            generation=0,
            timeout_s=spec.timeout_s,
            host=self._host,
        )

    # Roles

    async def close_gate(self) -> None:
        """Stop accepting model calls; what arrives later is refused at once, so that the proxy asks for a new route."""
        await self._serve(self._server.set_accepting, False)

    async def to_training(self) -> None:
        """Cancel outstanding calls, give the engine's memory back, restore training state."""
        await self._serve(self._engine.abort, None)
        await self._serve(self._engine.release_memory)
        await self._learn(self._learner.restore)

    async def to_rollout(self) -> None:
        """Give training state back and take the engine's memory again; not routable before its weights are published."""
        await self._learn(self._learner.release)
        await self._serve(self._engine.resume_memory)

    # Weights

    async def expose(self, version: int) -> Mapping[str, Any]:
        """Core: copy the weights into the registered buffer and say where they are."""
        return await self._learn(self._expose, version)

    def _expose(self, version: int) -> Mapping[str, Any]:
        self._learner.write_flat(self._snapshot.buffer)
        return dict(self._snapshot.expose(version))

    async def pull(self, descriptor: Mapping[str, Any]) -> None:
        """Satellite: take the core's snapshot as training weights."""
        await self._learn(self._pull, descriptor)

    def _pull(self, descriptor: Mapping[str, Any]) -> None:
        self._learner.load_flat(self._read(descriptor))

    def _read(self, descriptor: Mapping[str, Any]) -> Any:
        import torch

        from gyre.training.transfer import WeightSink

        if self._buffer is None:
            self._buffer = torch.zeros(descriptor["nbytes"] // 4, dtype=torch.float32)
        WeightSink(self._endpoint).pull(descriptor, self._buffer)  # pyright: ignore[reportArgumentType]
        return self._buffer

    async def load_published(self, descriptor: Mapping[str, Any]) -> int:
        """Serve the published weights; returns the version that the engine confirms."""
        if self.spec.engine_url is not None:
            return await self._serve(self._load_checkpoint, descriptor["version"])
        return await self._serve(self._load_published, descriptor)

    def _load_published(self, descriptor: Mapping[str, Any]) -> int:
        from gyre.rollout.engines.weights import unflatten

        flat = self._read(descriptor)
        self._engine.load_weights(unflatten(flat, self._layout), descriptor["version"])
        return self._confirm(descriptor["version"])

    async def load_checkpoint(self, version: int) -> int:
        """Serve a version from its checkpoint on disk; returns the version that the engine confirms."""
        return await self._serve(self._load_checkpoint, version)

    def _load_checkpoint(self, version: int) -> int:
        self._engine.load_weights_from_disk(str(self.spec.run_dir / "checkpoints" / str(version) / "model"), version)
        return self._confirm(version)

    def _confirm(self, version: int) -> int:
        """Open the gate if the engine serves this version."""
        confirmed = self._engine.info().version
        if confirmed == version:
            self._server.set_accepting(True)
        return confirmed

    # A training batch

    async def train(self, version: int, descriptor: Mapping[str, Any] | None) -> int:
        """Claim micro-steps of a step until there are none; a satellite that joins pulls the snapshot first.

        Returns:
            How many micro-steps this cell finished.
        """
        if descriptor is not None:
            await self.pull(descriptor)
        await self._learn(self._learner.zero_gradients)
        count = 0
        while (claim := await self._control.claim(self.spec.index, version)) is not None:
            row = await claim["row"][0]
            result = await self._learn(self._microstep, claim, row)
            await self._control.microstep_done(self.spec.index, claim["item_id"], result)
            count += 1
        return count

    def _microstep(self, claim: Mapping[str, Any], table: Any) -> Mapping[str, Any]:
        row = microstep_row(table)
        if claim["kind"] == "ratio":
            ratios = self._learner.ratio_item(row)
            return {"ratios": {name: tuple(value) for name, value in ratios.items()}}
        result = self._learner.train_microstep(row, claim["masks"])
        return {"loss_sum": result.loss_sum, "target_tokens": result.target_tokens, "clipped": list(result.clipped)}

    async def discard(self) -> None:
        """Throw away what this cell has accumulated."""
        await self._learn(self._learner.zero_gradients)

    async def reduce(self, num_cells: int) -> None:
        """Sum the accumulations of the participating prefix in the core, into a separate buffer."""
        self._reduced = await self._learn(self._groups.reduce_to_core, self._learner.gradients(), num_cells)

    async def update(self, num_executions: int, num_microsteps: int) -> float:
        """Core: divide once, clip, step; returns the gradient norm before clipping."""
        apply = partial(self._learner.apply, num_executions=num_executions, num_microsteps=num_microsteps)
        update = await self._learn(apply, self._reduced)
        self._reduced = None
        return update.grad_norm

    async def save_checkpoint(self, version: int, state: Mapping[str, Any], keep: int | None, published_version: int) -> None:
        """Core: write the checkpoint that commits a step."""
        await self._learn(self._save_checkpoint, version, state, keep, published_version)

    def _save_checkpoint(self, version: int, state: Mapping[str, Any], keep: int | None, published_version: int) -> None:
        from gyre.training.checkpoint import prune_checkpoints, write_checkpoint

        write_checkpoint(self.spec.run_dir, version, save=self._learner.save_checkpoint, state=state)
        prune_checkpoints(self.spec.run_dir, keep=keep, published_version=published_version)

    async def watch(self) -> None:
        """Return when this cell is closed: whoever waits for it learns at once when its process is gone."""
        await self._is_closed.wait()

    async def close(self) -> None:
        """Stop the engine; live requests end with what they have."""
        self._is_closed.set()
        if self._server is not None:
            await self._serve(self._server.stop)
            await self._serve(self._engine.close)


def microstep_row(table: Any) -> dict[str, Any]:
    """The only row of a `microstep.v1` table, its lists as numpy arrays."""
    if table.num_rows != 1:
        raise RunError(f"a claim carries one micro-step, this table has {table.num_rows}")
    row = {name: table.column(name)[0].as_py() for name in ("microstep_id", "kind", "segments")}
    for name in ("input_ids", "cu_seqlens", "target_mask", "behavior_logprobs"):
        row[name] = table.column(name).chunk(0)[0].values.to_numpy(zero_copy_only=False)
    return row
