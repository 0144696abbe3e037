"""Turns a typed graph into what each process of a run is told: operators with their ports, resources, and who is where.

Pure until `Wiring.prepare`, which a pool calls in its own process to make its resources and operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.errors import SpecError
from gyre.graph.plan import Plan, find_tap
from gyre.graph.registry import Operator, find_operator
from gyre.graph.settings import bind_settings
from gyre.graph.typed import TypedGraph
from gyre.records import ScoredExecution
from gyre.runtime.doors import ControlClient, EngineRoutes, GraphScorers, RunTrees
from gyre.runtime.edges import Send
from gyre.runtime.pools import NodeRunner, NodeSpec, Pool, PortSpec, build_operator
from gyre.runtime.resume import ResumeState
from gyre.scheduler.config import SchedulerConfig

CONTROL_POOL = "control"
"""Pool of the control room; also where there is no operator to host beside it."""


def node_specs(graph: TypedGraph, plan: Plan) -> dict[str, NodeSpec]:
    """What to run for each operator of a pipeline, by its name."""
    pool_of = {node.name: node.pool for node in plan.nodes}
    capacity = {edge.target: edge.capacity_batches for edge in plan.edges}
    return {name: _node_spec(name, graph, pool_of, capacity) for name in graph.nodes}


def _node_spec(name: str, graph: TypedGraph, pool_of: Mapping[str, str], capacity: Mapping[str, int]) -> NodeSpec:
    node = graph.nodes[name]
    operator = node.operator
    return NodeSpec(
        node=name,
        target=operator.target_path,
        settings=node.settings,
        resources=operator.resources,
        inputs={
            port: PortSpec(
                record=declared.record,
                is_stream=declared.kind == "stream",
                capacity=capacity.get(f"{name}.{port}", 1),
                is_gated=_is_gated(graph, name, port),
            )
            for port, declared in operator.inputs.items()
            if any(edge.target == name and edge.target_port == port for edge in graph.edges)
        },
        outputs={
            port: PortSpec(
                record=declared.record,
                is_stream=declared.kind == "stream",
                targets=tuple(
                    (pool_of[edge.target], edge.target, edge.target_port)
                    for edge in graph.edges
                    if edge.source == name and edge.source_port == port
                ),
                tap=find_tap(operator, declared.record),
            )
            for port, declared in operator.outputs.items()
        },
    )


def _is_gated(graph: TypedGraph, name: str, port: str) -> bool:
    """Ready groups leave the first edge that carries them to training in the scheduler's order.

    The scheduler names each group once, so an operator that only looks at them, beside the way to training, gets them as they come.
    """
    if graph.nodes[name].operator.inputs[port].record is not ScoredExecution or not _leads_to_training(graph, name):
        return False
    source = next(edge.source for edge in graph.edges if edge.target == name and edge.target_port == port)
    return all(declared.record is not ScoredExecution for declared in graph.nodes[source].operator.inputs.values())


def _leads_to_training(graph: TypedGraph, name: str) -> bool:
    """Whether what an operator emits comes to `train_cell` in the end."""
    reached, waiting = {name}, [name]
    while waiting:
        source = waiting.pop()
        followers = {edge.target for edge in graph.edges if edge.source == source and not edge.is_feedback} - reached
        reached |= followers
        waiting += followers
    return any(graph.nodes[node].operator.name == "train_cell" for node in reached)


def build_scorer(name: str, settings: Mapping[str, Any], resources: Mapping[str, Any], *, base_dir: Path) -> Any:
    """What to call with closed executions to have them scored by the operator `name`.

    Raises:
        SpecError: its settings do not fit its signature.
    """
    operator: Operator = find_operator(name)
    bound = bind_settings("scorer_args", settings, operator.settings, base_dir=base_dir, owner=f"scorer '{name}'")
    if bound.problems:
        raise SpecError(bound.problems)
    given = {parameter: resources[protocol] for parameter, protocol in operator.resources.items()}
    return build_operator(operator.target, {**bound.values, **given})[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningPipeline:
    """The `Pipeline` protocol."""

    base_dir: Path
    """Folder of the pipeline's file."""
    trains: bool
    """Whether anything is trained on what it rolls out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlSpec:
    """What the control room needs beside the operators."""

    scheduler: SchedulerConfig
    """Settings of the scheduler."""
    cells: tuple[Any, ...]
    """Handles of the cells, in their order."""
    engines: Mapping[str, Any]
    """Handles of everything that has an engine, by the engine's name."""
    resume: ResumeState | None
    """None for a new run."""
    last_step: int | None
    """Step after which the run ends though its horizon is open; None: the scheduler knows the end, or there is none."""
    clip_bounds: tuple[float, float]
    """Bounds of the execution clip."""
    keep_checkpoints: int | None
    """Newest checkpoints that are kept; None keeps all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """What one pool is told."""

    nodes: tuple[NodeSpec, ...]
    """Operators of this pool."""
    run_dir: Path
    """The run's directory."""
    base_dir: Path
    """Folder of the pipeline's file."""
    trains: bool
    """Whether the pipeline trains."""
    pools: Mapping[str, Any]
    """Handles of all pools, by name."""
    proxy: tuple[str, str] | None
    """Pool and node of the harness proxy."""
    model_dir: Path | None
    """Hugging Face folder of the policy: tokenizer and chat template."""
    engine_urls: Mapping[str, str]
    """Where each engine listens."""
    control: ControlSpec | None
    """Set for the pool that has the control room."""

    async def prepare(self, pool: Pool) -> None:
        """Make this pool's resources and operators."""
        from gyre.store.lock import RunLock
        from gyre.store.run_store import RunStore

        pool.lock = RunLock(self.run_dir)
        pool.lock.acquire_shared(wait_s=10.0)
        store = RunStore(self.run_dir, writer=pool.name)
        if self.control is not None:
            pool.room = self._control_room(self.control, store)
        control = pool.room if pool.room is not None else ControlClient(self.pools[CONTROL_POOL])
        pool.resources = self._resources(control, store)
        for spec in self.nodes:
            pool.nodes[spec.node] = await asyncio.to_thread(NodeRunner, spec, resources=pool.resources, store=store, control=control)
        for runner in pool.nodes.values():
            runner.connect(lambda *target: self._sender(pool, *target))

    def _resources(self, control: Any, store: Any) -> dict[str, Any]:
        resources: dict[str, Any] = {
            "Control": control,
            "Store": store,
            "Pipeline": RunningPipeline(base_dir=self.base_dir, trains=self.trains),
        }
        if self.model_dir is not None:
            resources["Engines"] = EngineRoutes(model_dir=self.model_dir, urls=self.engine_urls)
        if self.proxy is not None:
            resources["Trees"] = RunTrees(pool=self.pools[self.proxy[0]], node=self.proxy[1], store=store)
        resources["Scorers"] = GraphScorers(lambda name, settings: build_scorer(name, settings, resources, base_dir=self.base_dir))
        return resources

    def _control_room(self, spec: ControlSpec, store: Any) -> Any:
        import ray

        from gyre.runtime.conductor import Conductor, ray_cell
        from gyre.runtime.control import ControlRoom

        conductor = Conductor(
            cells=[ray_cell(handle) for handle in spec.cells],
            engines={name: ray_cell(handle) for name, handle in spec.engines.items()},
            reroute=self._reroute,
            put_object=ray.put,
            store=store,
            clip_bounds=spec.clip_bounds,
            keep_checkpoints=spec.keep_checkpoints,
        )
        return ControlRoom(config=spec.scheduler, store=store, conductor=conductor, resume=spec.resume, last_step=spec.last_step)

    async def _reroute(self, moves: Mapping[str, str]) -> None:
        if self.proxy is not None and moves:
            await self.pools[self.proxy[0]].reroute.remote(moves)

    def _sender(self, pool: Pool, target_pool: str, node: str, port: str) -> Send:
        if target_pool == pool.name:
            return pool.nodes[node].inboxes[port].put
        handle = self.pools[target_pool]

        async def send(batch: Any) -> None:
            await handle.put.remote(node, port, batch)

        return send
