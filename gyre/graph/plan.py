"""The plan: which process hosts which operator, which bundles the cells get, how the edges are bounded.

Pure and deterministic: the same graph gives the same plan, on any machine (paths stay relative to the pipeline's file where they
are below it), so plans of shipped pipelines are kept as golden files. The runtime makes Ray actors of it, the simulator walks it in
virtual time, `render.py` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.graph.dispatching import scheduler_config
from gyre.graph.registry import Operator
from gyre.graph.resources import KINDS, CellsSettings
from gyre.graph.settings import plain
from gyre.graph.typed import TypedEdge, TypedGraph, TypedNode
from gyre.records import Record
from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine

POOL_OF_OPERATOR: Mapping[str, str] = {
    # One process owns the scheduler's state; the operators beside it only ask and tell.
    "read_tasks": "control",
    "dispatch": "control",
    "elastic": "control",
    "train_cell": "control",
    # The proxy and the harnesses' supervisor share memory: trajectory trees.
    "harness_proxy": "rollout",
    "evaluate": "evaluate",
    # Selection and packing pass arrays, so they share a process.
    "tree_select": "materialize",
    "pack": "materialize",
}
"""Process of each built-in operator. Any other operator gets one of its own."""
POOL_ORDER = ("control", "rollout", "evaluate", "materialize")
EDGE_CAPACITY_BATCHES = 8
"""Batches that wait on an edge before its source is held: enough to hide one transfer, few enough that a slow sink is felt."""
TAPS: Mapping[str, str] = {"trajectory.v1": "trajectories"}
"""Table of the run to which the runtime also appends every batch of an edge. Other tables are written by their operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One operator with what it is called with."""

    name: str
    """Its name in `ops`."""
    operator: str
    """Its operator's name."""
    target: str
    """What to import: `module:attr`."""
    pool: str
    """Process that hosts it."""
    settings: Mapping[str, Any]
    """Its settings as JSON data."""
    resources: tuple[str, ...]
    """Resource protocols it asks for."""
    state: str
    """How its state is kept: 'none' or 'store'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One process that hosts operators."""

    name: str
    """Its name."""
    nodes: tuple[str, ...]
    """Operators in it, in the order of data flow."""
    cpus: float
    """CPUs reserved for it: none, since the cells are what is sized to the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """One cell: an engine and a learner on the same bundles."""

    index: int
    """Its number; cell 0 is the core."""
    engine: str
    """Name of its engine."""
    concurrency: int
    """Concurrent executions its engine serves."""
    layout: Mapping[str, int]
    """Parallel layout of its training replica."""
    bundles: tuple[Mapping[str, float], ...]
    """One Ray bundle per rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandalonePlan:
    """One engine that only ever serves rollouts."""

    engine: str
    """Its name."""
    concurrency: int
    """Concurrent executions it serves."""
    bundles: tuple[Mapping[str, float], ...]
    """One Ray bundle per rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """One bounded connection."""

    source: str
    """`node.port` it comes from."""
    target: str
    """`node.port` it goes to."""
    record: str
    """Schema of what travels."""
    capacity_batches: int
    """Batches that may wait on it."""
    is_feedback: bool
    """True where it carries what a later operator tells an earlier one."""
    tap: str | None
    """Table of the run that also gets every batch; None: none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline, laid out."""

    pipeline: str
    """Its name."""
    nodes: tuple[NodePlan, ...]
    """Operators in the order of data flow."""
    pools: tuple[PoolPlan, ...]
    """Processes."""
    cells: tuple[CellPlan, ...]
    """Cells in order; empty where no operator needs engines or training."""
    standalone: tuple[StandalonePlan, ...]
    """Standalone engines."""
    edges: tuple[EdgePlan, ...]
    """Connections."""
    resources: Mapping[str, Any]
    """Checked resources as JSON data, each kind named."""
    scheduler: SchedulerConfig | None
    """Settings of dispatch and placement; None where the pipeline has no `dispatch`."""


def plan_pipeline(graph: TypedGraph) -> Plan:
    """Lay a typed graph out over processes and cells."""
    base_dir = graph.spec.base_dir
    nodes = tuple(_plan_node(node, base_dir) for node in graph.nodes.values())
    needs_cells = any({"Engines"} & set(n.resources) or n.operator == "train_cell" for n in nodes)
    cells = graph.resources.cells
    return Plan(
        pipeline=graph.spec.name,
        nodes=nodes,
        pools=_plan_pools(nodes),
        cells=_plan_cells(cells) if needs_cells else (),
        standalone=_plan_standalone(cells) if needs_cells else (),
        edges=tuple(_plan_edge(edge, graph) for edge in graph.edges),
        resources=_plan_resources(graph, needs_cells=needs_cells),
        scheduler=scheduler_config(graph.nodes, graph.resources),
    )


def _plan_node(node: TypedNode, base_dir: Path) -> NodePlan:
    return NodePlan(
        name=node.name,
        operator=node.operator.name,
        target=node.operator.target_path,
        pool=POOL_OF_OPERATOR.get(node.operator.name) or _own_pool(node.name),
        settings=_relative(plain(dict(sorted(node.settings.items()))), base_dir),
        resources=tuple(sorted(node.operator.resources.values())),
        state=node.operator.state,
    )


def _own_pool(node: str) -> str:
    """Pool of an operator that is not built in: its node's name, kept apart from the built-in pools'."""
    return f"{node}_op" if node in POOL_ORDER else node


def _plan_pools(nodes: tuple[NodePlan, ...]) -> tuple[PoolPlan, ...]:
    names = list(dict.fromkeys(node.pool for node in nodes))
    ordered = [n for n in POOL_ORDER if n in names] + [n for n in names if n not in POOL_ORDER]
    return tuple(PoolPlan(name=name, nodes=tuple(n.name for n in nodes if n.pool == name), cpus=0.0) for name in ordered)


def _plan_cells(cells: CellsSettings) -> tuple[CellPlan, ...]:
    return tuple(
        CellPlan(
            index=index,
            engine=cell_engine(index),
            concurrency=concurrency,
            layout=plain(cells.layout),
            bundles=_bundles(cells),
        )
        for index, concurrency in enumerate(cells.concurrencies)
    )


def _plan_standalone(cells: CellsSettings) -> tuple[StandalonePlan, ...]:
    return tuple(
        StandalonePlan(engine=standalone_engine(index), concurrency=concurrency, bundles=_bundles(cells))
        for index, concurrency in enumerate(cells.standalone_concurrencies)
    )


def _bundles(cells: CellsSettings) -> tuple[Mapping[str, float], ...]:
    bundle = {"CPU": cells.cpus_per_rank} | ({"GPU": 1.0} if cells.device == "gpu" else {})
    return (bundle,) * cells.layout.num_ranks


def find_tap(operator: Operator, record: type[Record]) -> str | None:
    """Table that gets what an operator emits. Records are written where they arise, not again behind an operator that filters them."""
    passes_on = any(port.record is record for port in operator.inputs.values())
    return None if passes_on else TAPS.get(record.schema_name)


def _plan_edge(edge: TypedEdge, graph: TypedGraph) -> EdgePlan:
    schema_name = edge.offered.record.schema_name
    return EdgePlan(
        source=f"{edge.source}.{edge.source_port}",
        target=f"{edge.target}.{edge.target_port}",
        record=schema_name,
        capacity_batches=EDGE_CAPACITY_BATCHES,
        is_feedback=edge.is_feedback,
        tap=find_tap(graph.nodes[edge.source].operator, edge.offered.record),
    )


def _plan_resources(graph: TypedGraph, *, needs_cells: bool) -> dict[str, Any]:
    planned: dict[str, Any] = {"cells": plain(graph.resources.cells)} if needs_cells else {}
    for name, kinds in KINDS.items():
        settings = getattr(graph.resources, name)
        if settings is not None:
            kind = next(kind for kind, settings_type in kinds.items() if isinstance(settings, settings_type))
            planned[name] = {"kind": kind, **plain(settings)}
    return _relative(planned, graph.spec.base_dir)


def _relative(value: Any, base_dir: Path) -> Any:
    """Write absolute paths below the pipeline's folder relative to it again, so that a plan reads the same everywhere."""
    if isinstance(value, dict):
        return {key: _relative(item, base_dir) for key, item in value.items()}
    if isinstance(value, list):
        return [_relative(item, base_dir) for item in value]
    if isinstance(value, str) and value.startswith("/") and Path(value).is_relative_to(base_dir):
        return Path(value).relative_to(base_dir).as_posix()
    return value
