"""The loop around the scheduler: what a pipeline with `dispatch` needs so that its run can come to an end.

Each port may be fed and each setting may fit, and still nothing would tell the scheduler what it waits for, or it would be told twice:
that shows as a run that hangs or trains twice, so it is refused here. Every rule holds for operators by their built-in names; one of
the user's own that stands in for them is not judged.

Fed by `typed.py` with operators that were found and edges whose schemas fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gyre.errors import Problem

if TYPE_CHECKING:
    from gyre.graph.typed import TypedEdge, TypedNode

ONE_OF_EACH = ("dispatch", "elastic", "evaluate", "harness_proxy", "train_cell", "tree_select")
"""Operators that speak to the scheduler, or use trees up, for the whole run: from a second one it would hear everything twice."""


class Next(NamedTuple):
    """Who usually takes what an operator emits."""

    operator: str
    port: str
    is_training: bool
    """True: only a pipeline that trains waits for it."""


NEXT: Mapping[str, Next] = {
    "dispatch": Next("harness_proxy", "executions", is_training=False),
    "harness_proxy": Next("evaluate", "closed", is_training=False),
    "evaluate": Next("tree_select", "scored", is_training=True),
    "tree_select": Next("pack", "trajectories", is_training=True),
    "pack": Next("train_cell", "microsteps", is_training=True),
}


def check_loop(nodes: Mapping[str, TypedNode], edges: Iterable[TypedEdge], fed_ports: Mapping[str, Iterable[str]]) -> Iterator[Problem]:
    """Name what would make a run hang or count twice.

    Args:
        nodes: operators by name, settings that are wrong left out.
        edges: connections that fit.
        fed_ports: by name of an operator, the ports that its `from` has, right or wrong.
    """
    by_operator: dict[str, TypedNode] = {}
    for name, node in nodes.items():
        first = by_operator.setdefault(node.operator.name, node)
        if first is not node and node.operator.name in ONE_OF_EACH:
            message = f"a run has one '{node.operator.name}', and '{first.name}' is it"
            yield Problem(f"ops.{name}.op", message, f"remove '{name}' or '{first.name}'")
    if "dispatch" not in by_operator:
        return
    trains = "train_cell" in by_operator
    yield from _check_ends(by_operator, nodes, {edge.source for edge in edges}, trains=trains)
    if not trains:
        return
    dispatch, train = by_operator["dispatch"], by_operator["train_cell"]
    if "versions" not in fed_ports[dispatch.name]:
        message = f"'{dispatch.name}' is not told of new versions, so it would wait for them without end after the first burst"
        yield Problem(f"ops.{dispatch.name}.from.versions", message, f"add versions: gyre.feedback('{train.name}.versions')")
    rollout = by_operator.get("harness_proxy")
    if rollout is not None and rollout.settings.get("temperature") == 0:
        message = "0 is greedy sampling, which has no probabilities to train with"
        yield Problem(f"ops.{rollout.name}.args.temperature", message, "give a number above 0; 0 is for a pipeline without train_cell")


def _check_ends(
    by_operator: Mapping[str, TypedNode], nodes: Mapping[str, TypedNode], feeding: set[str], *, trains: bool
) -> Iterator[Problem]:
    """Refuse a chain that ends too early. One whose next operator is there, badly fed, has its problem already."""
    for name, following in NEXT.items():
        node = by_operator.get(name)
        if node is None or node.name in feeding or (following.is_training and not trains):
            continue
        offered = next(iter(node.operator.outputs.values())).record
        if not any(port.record is offered for other in nodes.values() for port in other.operator.inputs.values()):
            message = f"nothing takes what '{node.name}' emits ({offered.schema_name}), so the run would never end"
            hint = f"add an operator, e.g. gyre.op('{following.operator}') {{ from: {{ {following.port}: '{node.name}' }} }}"
            yield Problem(f"ops.{node.name}", message, hint)
