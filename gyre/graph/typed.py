"""The typed graph: operators found, settings and edges checked, or a list of everything that is wrong.

Invariants of a graph that was built: every operator exists and its settings fit its signature; every port that must be fed is fed by
a port whose Arrow schema has what it needs; only feedback edges close cycles; every resource an operator asks for is there.

Fed by `spec.py`; eaten by `plan.py` and the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.errors import Problem, SpecError, UserError
from gyre.graph.cycles import find_cycles
from gyre.graph.dispatching import check_dispatch
from gyre.graph.hints import list_names, suggest
from gyre.graph.loop import check_loop
from gyre.graph.registry import Operator, Port, find_operator, find_scorer
from gyre.graph.resources import Resources, read_resources
from gyre.graph.schemas import compare_schemas
from gyre.graph.settings import bind_settings
from gyre.graph.spec import OpSpec, Source, Spec

NEEDED_BY_PROTOCOL: Mapping[str, tuple[str, ...]] = {"Engines": ("cells", "engine")}
"""Resources of a pipeline that an operator needs whose signature asks for this protocol."""
NEEDED_BY_OPERATOR: Mapping[str, tuple[str, ...]] = {"train_cell": ("cells", "learner", "weights")}
"""Resources of a pipeline that the cells need when this operator feeds them."""
RESOURCE_EXAMPLES: Mapping[str, str] = {
    "cells": "gyre.cells({ count: 1 })",
    "engine": "gyre.engine('local')",
    "learner": "gyre.learner('megatron', { model: 'DIR' })",
    "weights": "gyre.transfer('mooncake')",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedNode:
    """One operator of the pipeline."""

    name: str
    """Its name in `ops`."""
    operator: Operator
    """What its signature declares."""
    settings: Mapping[str, Any]
    """Every setting with its checked value, defaults filled in; paths are absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedEdge:
    """One connection between two ports whose schemas fit."""

    source: str
    """Node it comes from."""
    source_port: str
    """Output port there."""
    target: str
    """Node it goes to."""
    target_port: str
    """Input port there."""
    offered: Port
    """What the source emits."""
    needed: Port
    """What the target takes."""
    is_feedback: bool
    """True where it carries what a later operator tells an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """A pipeline that can be planned and run."""

    spec: Spec
    """The pipeline as written."""
    resources: Resources
    """Its resources."""
    nodes: Mapping[str, TypedNode]
    """Operators by name, in the order of data flow."""
    edges: tuple[TypedEdge, ...]
    """Connections, in the order of their targets."""

    def find_node(self, operator: str) -> TypedNode | None:
        """The first node of an operator, by the operator's name; None where the pipeline has none."""
        return next((node for node in self.nodes.values() if node.operator.name == operator), None)


def build_graph(spec: Spec) -> TypedGraph:
    """Check a pipeline and build its typed graph.

    Raises:
        SpecError: with every problem of the pipeline.
    """
    problems = list(spec.problems)
    resources = read_resources(spec.resources, base_dir=spec.base_dir, problems=problems)
    operators = _find_operators(spec, problems)
    nodes = {name: _build_node(spec, spec.ops[name], operator, problems) for name, operator in operators.items()}
    edges = [edge for op in spec.ops.values() for edge in _build_edges(spec, op, operators, problems)]
    problems.extend(_check_open_ports(spec, operators))
    problems.extend(_check_cycles(spec))
    problems.extend(_check_needed(spec, operators))
    if len(nodes) == len(spec.ops):
        problems.extend(check_loop(nodes, edges, {op.name: op.sources.keys() for op in spec.ops.values()}))
    problems.extend(check_dispatch(nodes, resources))
    if problems:
        raise SpecError(problems)
    order = _flow_order(list(nodes), edges)
    return TypedGraph(
        spec=spec,
        resources=resources,
        nodes={name: nodes[name] for name in order},
        edges=tuple(sorted(edges, key=lambda e: (order.index(e.target), e.target_port))),
    )


def _find_operators(spec: Spec, problems: list[Problem]) -> dict[str, Operator]:
    found: dict[str, Operator] = {}
    for op in spec.ops.values():
        try:
            found[op.name] = find_operator(op.operator)
        except UserError as error:
            problems.append(Problem(f"ops.{op.name}.op", str(error), error.hint))
    return found


def _build_node(spec: Spec, op: OpSpec, operator: Operator, problems: list[Problem]) -> TypedNode:
    path = f"ops.{op.name}.args"
    owner = f"operator '{operator.name}'"
    bound = bind_settings(path, op.args, operator.settings, base_dir=spec.base_dir, owner=owner)
    problems.extend(bound.problems)
    node = TypedNode(name=op.name, operator=operator, settings=bound.values)
    if not bound.problems:
        problems.extend(_own_check(operator, node.settings, path, spec))
        problems.extend(_check_scorer(spec, node))
    return node


def _own_check(operator: Operator, settings: Mapping[str, Any], path: str, spec: Spec) -> Iterator[Problem]:
    """Ask an operator itself what is wrong with its settings, which stand at `path`."""
    if operator.check is None:
        return
    try:
        found = [p._replace(path=f"{path}.{p.path}".rstrip(".")) for p in operator.check(dict(settings), spec.base_dir) or ()]
    except Exception as error:  # an operator's author may raise anything; here is the boundary that names it
        message = f"the check of operator '{operator.name}' fails: {type(error).__name__}: {error}"
        found = [Problem(path, message, "correct the operator's check, or the settings that upset it")]
    yield from found


def _check_scorer(spec: Spec, node: TypedNode) -> Iterator[Problem]:
    """A setting called `scorer` names an operator from closed executions to assessments; `scorer_args` are its settings."""
    name = node.settings.get("scorer")
    if not isinstance(name, str):
        return
    path = f"ops.{node.name}.args"
    try:
        scorer = find_scorer(name)
    except UserError as error:
        yield Problem(f"{path}.scorer", str(error), error.hint)
        return
    given = node.settings.get("scorer_args") or {}
    bound = bind_settings(f"{path}.scorer_args", given, scorer.settings, base_dir=spec.base_dir, owner=f"scorer '{name}'")
    yield from bound.problems
    if not bound.problems:
        yield from _own_check(scorer, bound.values, f"{path}.scorer_args", spec)


def _build_edges(spec: Spec, op: OpSpec, operators: Mapping[str, Operator], problems: list[Problem]) -> Iterator[TypedEdge]:
    target = operators.get(op.name)
    for port, source in op.sources.items():
        path = f"ops.{op.name}.from.{port}"
        if target is not None and port not in target.inputs:
            hint = suggest(port, target.inputs, what="its inputs are")
            problems.append(Problem(path, f"operator '{target.name}' has no input '{port}'", hint))
        elif source is not None:
            edge = _build_edge(spec, op, path, port, source, operators, problems)
            if edge is not None:
                yield edge


def _build_edge(
    spec: Spec,
    op: OpSpec,
    path: str,
    port: str,
    source: Source,
    operators: Mapping[str, Operator],
    problems: list[Problem],
) -> TypedEdge | None:
    ops = spec.document.get("ops", {})
    if source.node not in ops:
        message = f"there is no operator '{source.node}' in ops"
        problems.append(Problem(path, message, suggest(source.node, ops, what="operators here are")))
        return None
    if source.node not in operators:
        return None
    offering = operators[source.node]
    name = source.port or (next(iter(offering.outputs)) if len(offering.outputs) == 1 else "")
    if name not in offering.outputs:
        problems.append(_no_such_output(path, source, offering))
        return None
    if op.name not in operators:
        return None
    offered, needed = offering.outputs[name], operators[op.name].inputs[port]
    misfits = compare_schemas(offered.record.schema(), needed.record.schema())
    if misfits:
        message = f"'{source}' emits {offered.record.schema_name}, '{port}' needs {needed.record.schema_name}: {'; '.join(misfits)}"
        problems.append(Problem(path, message, _who_emits(needed, operators)))
        return None
    return TypedEdge(
        source=source.node,
        source_port=name,
        target=op.name,
        target_port=port,
        offered=offered,
        needed=needed,
        is_feedback=source.is_feedback,
    )


def _no_such_output(path: str, source: Source, offering: Operator) -> Problem:
    if not offering.outputs:
        return Problem(path, f"'{source.node}' has no output: operator '{offering.name}' returns nothing", "connect another one")
    if source.port is None:
        hint = f"name one of them: {list_names(f'{source.node}.{port}' for port in offering.outputs)}"
        return Problem(path, f"'{source.node}' has several outputs", hint)
    hint = suggest(source.port, offering.outputs, what="its outputs are")
    return Problem(path, f"'{source.node}' has no output '{source.port}'", hint)


def _who_emits(needed: Port, operators: Mapping[str, Operator]) -> str:
    """Hint for a misfit: the outputs of this pipeline that emit what is needed."""
    emitting = [
        node if len(operator.outputs) == 1 else f"{node}.{name}"
        for node, operator in operators.items()
        for name, port in operator.outputs.items()
        if port.record is needed.record
    ]
    if emitting:
        return f"connect {' or '.join(repr(name) for name in emitting)}"
    return f"add an operator that emits {needed.record.schema_name} (gyre ops lists them)"


def _check_open_ports(spec: Spec, operators: Mapping[str, Operator]) -> Iterator[Problem]:
    for name, operator in operators.items():
        for port, declared in operator.inputs.items():
            if not declared.is_optional and port not in spec.ops[name].sources:
                message = f"input '{port}' of operator '{operator.name}' is not connected"
                yield Problem(f"ops.{name}.from.{port}", message, _who_emits(declared, operators))


def _check_cycles(spec: Spec) -> Iterator[Problem]:
    """Refuse cycles of what is written, also where an edge of them has other problems."""
    forward = {
        (source.node, op.name): (port, source)
        for op in spec.ops.values()
        for port, source in op.sources.items()
        if source is not None and not source.is_feedback
    }
    for cycle in find_cycles(list(forward)):
        port, source = forward[(cycle[-1], cycle[0])]
        message = f"this closes a cycle: {' → '.join([*cycle, cycle[0]])}"
        yield Problem(f"ops.{cycle[0]}.from.{port}", message, f"only feedback may go back: gyre.feedback('{source}')")


def _check_needed(spec: Spec, operators: Mapping[str, Operator]) -> Iterator[Problem]:
    given = spec.document.get("resources", {})
    if not isinstance(given, dict):
        return
    needed_by: dict[str, str] = {}
    has_trees = any(op.operator == "harness_proxy" for op in spec.ops.values())
    for name, operator in operators.items():
        if "Trees" in operator.resources.values() and not has_trees:
            message = f"'{name}' needs the trees of executions, which 'harness_proxy' grows"
            yield Problem(f"ops.{name}.op", message, "add an operator gyre.op('harness_proxy'), or remove this one")
        protocols = [need for p in operator.resources.values() for need in NEEDED_BY_PROTOCOL.get(p, ())]
        for need in (*protocols, *NEEDED_BY_OPERATOR.get(operator.name, ())):
            needed_by.setdefault(need, name)
    for need, name in sorted(needed_by.items()):
        if need not in given:
            hint = f"add resources+: {{ {need}: {RESOURCE_EXAMPLES[need]} }}"
            yield Problem(f"resources.{need}", f"'{name}' needs the resource '{need}'", hint)
    engine = spec.resources.get("engine", {})
    if "engine" in needed_by and "learner" not in given and engine and "model" not in engine:
        message = "the engine has no model and there is no learner to take it from"
        yield Problem("resources.engine.model", message, "give the Hugging Face folder of the policy")


def _flow_order(names: list[str], edges: Iterable[TypedEdge]) -> list[str]:
    """Order the nodes so that data flows forward; among equals, by name."""
    waiting = {name: {e.source for e in edges if e.target == name and not e.is_feedback} for name in sorted(names)}
    order: list[str] = []
    while waiting:
        name = next(n for n, sources in waiting.items() if not sources & waiting.keys())
        order.append(name)
        del waiting[name]
    return order
