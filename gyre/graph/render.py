"""Plans as text, as a mermaid graph, and as JSON. Pure: the same plan gives the same characters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.graph.plan import CellPlan, EdgePlan, Plan, StandalonePlan
from gyre.scheduler.config import SchedulerConfig


def render_json(plan: Plan) -> str:
    """Write a plan as one JSON document."""
    return json.dumps(plan_document(plan), indent=2)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Turn a plan into JSON data."""
    document = _plain(plan)
    document["dispatch"] = dispatch_figures(plan.scheduler)
    return document


def dispatch_figures(config: SchedulerConfig | None) -> dict[str, Any] | None:
    """What follows from the settings of dispatch; None where the pipeline has none."""
    if config is None:
        return None
    return {
        "phi_eff": config.phi_eff,
        "extra_groups": config.extra_groups,
        "expected_staleness": config.expected_staleness,
        "total_groups": config.total_groups,
        "rollout_concurrency": sum(config.cells) + sum(config.standalone),
    }


def describe_dispatch(config: SchedulerConfig) -> list[str]:
    """Say in sentences what follows from the settings of dispatch."""
    groups = "groups without end" if config.total_groups is None else f"{config.total_groups} groups in all"
    lines = [
        f"dispatch: phi_eff = {config.phi_eff:g} ({config.extra_groups} extra groups), mu = {config.mu}, "
        f"{config.groups_per_step} groups of {config.executions_per_group} executions per step, {groups}"
    ]
    if config.train:
        lines.append(f"expected staleness: phi_eff + (mu - 1) / 2 = {config.expected_staleness:g} versions (stationary mean)")
    capacity = sum(config.cells) + sum(config.standalone)
    lines.append(f"rollout capacity: {capacity} concurrent executions while every cell serves")
    return lines + [f"note: {warning}" for warning in config.find_warnings()]


def render_text(plan: Plan) -> str:
    """Write a plan for people."""
    return "\n".join(_text_lines(plan)) + "\n"


def _text_lines(plan: Plan) -> Iterator[str]:
    yield f"pipeline {plan.pipeline}"
    for pool in plan.pools:
        yield f"\nprocess {pool.name}"
        for node in (n for n in plan.nodes if n.pool == pool.name):
            yield f"  {node.name} = {node.operator}({_arguments(node.settings)})"
    yield "\nedges (at most so many batches wait on each)"
    for edge in plan.edges:
        yield f"  {_edge_line(edge)}"
    if plan.cells:
        yield "\ncells"
        yield from (f"  {_engine_line(cell)}" for cell in (*plan.cells, *plan.standalone))
    yield "\nresources"
    for name, settings in plan.resources.items():
        if name != "cells":
            rest = {key: value for key, value in settings.items() if key != "kind"}
            yield f"  {name} = {settings['kind']}({_arguments(rest)})"
    if plan.scheduler is not None:
        yield ""
        yield from describe_dispatch(plan.scheduler)


def _arguments(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in settings.items() if value is not None)


def _short(value: Any) -> str:
    """One value for a line: objects by their name, long ones cut."""
    if isinstance(value, Mapping):
        return f"{{{value['name']}}}" if isinstance(value.get("name"), str) else "{…}" if value else "{}"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _edge_line(edge: EdgePlan) -> str:
    arrow = "⇢" if edge.is_feedback else "→"
    kept = f", kept in {edge.tap}" if edge.tap else ""
    back = ", feedback" if edge.is_feedback else ""
    return f"{edge.source} {arrow} {edge.target}: {edge.record}, {edge.capacity_batches}{back}{kept}"


def _engine_line(engine: CellPlan | StandalonePlan) -> str:
    bundle = engine.bundles[0]
    ranks = " + ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())
    size = f"{engine.concurrency} executions, {len(engine.bundles)} x ({ranks})"
    if isinstance(engine, StandalonePlan):
        return f"{engine.engine}: rollout only, {size}"
    layout = " ".join(f"{axis}={degree}" for axis, degree in engine.layout.items())
    role = "core" if engine.index == 0 else "satellite"
    return f"{engine.engine}: {role}, {size}, {layout}"


def render_mermaid(plan: Plan) -> str:
    """Write a plan as a mermaid flowchart: processes are boxes, feedback is dotted, cells hang on the operators they serve."""
    return "\n".join(_mermaid_lines(plan)) + "\n"


def _mermaid_lines(plan: Plan) -> Iterator[str]:
    yield "flowchart LR"
    for pool in plan.pools:
        yield f'  subgraph pool_{pool.name}["{pool.name}"]'
        for node in (n for n in plan.nodes if n.pool == pool.name):
            label = node.name if node.name == node.operator else f"{node.name}<br/><small>{node.operator}</small>"
            yield f'    {node.name}["{label}"]'
        yield "  end"
    if plan.cells:
        yield '  subgraph cells["cells"]'
        for cell in plan.cells:
            yield f'    {cell.engine}(["cell {cell.index}, {cell.concurrency} executions"])'
        for engine in plan.standalone:
            yield f'    {engine.engine}(["{engine.engine}, {engine.concurrency} executions"])'
        yield "  end"
    for edge in plan.edges:
        source, target = edge.source.partition(".")[0], edge.target.partition(".")[0]
        record = edge.record.partition(".")[0]
        yield f"  {source} -. {record} .-> {target}" if edge.is_feedback else f"  {source} -->|{record}| {target}"
    if plan.cells:
        yield from (f"  {n.name} <-->|model calls| cells" for n in plan.nodes if "Engines" in n.resources)
        yield from (f"  {n.name} ==>|micro-steps| cells" for n in plan.nodes if n.operator == "train_cell")


def _plain(value: Any) -> Any:
    """Turn dataclasses and tuples into JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
