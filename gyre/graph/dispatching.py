"""The scheduler's settings, gathered from the operators and resources of a pipeline that carry them.

`dispatch` has the numbers of dispatch, `elastic` the policy, `cells` the capacities. Ranges are checked one by one, so that each
problem has its own path; what concerns several settings at once is left to `SchedulerConfig` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gyre.errors import Problem
from gyre.graph.ranges import LARGEST_GROUP, OPERATOR_RANGES, check_ranges
from gyre.graph.resources import Resources, check_cells
from gyre.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from gyre.graph.typed import TypedNode

DISPATCH_SETTINGS = ("groups_per_step", "group_size", "phi", "mu", "steps", "oversample", "launch_order")
ELASTIC_SETTINGS = ("policy", "rho_min", "hold_s", "streaming", "train_cells")


def check_dispatch(nodes: Mapping[str, TypedNode], resources: Resources) -> list[Problem]:
    """Check the ranges of settings, then whether they make sense together."""
    problems = [
        problem
        for node in nodes.values()
        for problem in check_ranges(f"ops.{node.name}.args", node.settings, OPERATOR_RANGES.get(node.operator.name, {}))
    ]
    problems += [problem for node in nodes.values() for problem in _check_group(node)]
    if problems or not _is_complete(nodes) or any(check_cells(resources.cells)):
        return problems
    try:
        scheduler_config(nodes, resources)
    except ValueError as error:
        name = next(n.name for n in nodes.values() if n.operator.name == "dispatch")
        elastic = next((n.name for n in nodes.values() if n.operator.name == "elastic"), name)
        place = f"ops.{elastic}.args" if "policy" in str(error) or "train_cells" in str(error) else f"ops.{name}.args"
        problems.append(Problem(place, str(error), "change one of the settings named here"))
    return problems


def scheduler_config(nodes: Mapping[str, TypedNode], resources: Resources) -> SchedulerConfig | None:
    """Gather the scheduler's settings; None where the pipeline has no `dispatch`.

    Raises:
        ValueError: the settings do not make sense together.
    """
    by_operator = {node.operator.name: node for node in nodes.values()}
    if "dispatch" not in by_operator:
        return None
    dispatch = by_operator["dispatch"].settings
    elastic: Mapping[str, Any] = by_operator["elastic"].settings if "elastic" in by_operator else {}
    values = {name: dispatch[name] for name in DISPATCH_SETTINGS if name in dispatch}
    values |= {name: elastic[name] for name in ELASTIC_SETTINGS if name in elastic}
    return SchedulerConfig(
        **values,
        cells=resources.cells.concurrencies,
        standalone=resources.cells.standalone_concurrencies,
        train="train_cell" in by_operator,
    )


def _is_complete(nodes: Mapping[str, TypedNode]) -> bool:
    """Tell whether every node has all its settings: one with a problem lacks some."""
    return all(set(node.settings) == set(node.operator.settings) for node in nodes.values())


def _check_group(node: TypedNode) -> Iterator[Problem]:
    """Ids of a group's executions have one length, since engines match them by prefix: the surplus counts, too."""
    if node.operator.name != "dispatch":
        return
    size, surplus = node.settings.get("group_size", 0), node.settings.get("oversample", 0)
    if max(size, surplus) <= LARGEST_GROUP < size + surplus:
        message = f"{size} executions and {surplus} more are over {LARGEST_GROUP} in a group"
        yield Problem(f"ops.{node.name}.args.oversample", message, f"give at most {LARGEST_GROUP - size}, or a smaller group_size")
