"""The scheduler's settings, gathered from the operators and resources of a pipeline that carry them.

`dispatch` has the numbers of dispatch, `elastic` the policy, `cells` the capacities. Ranges are checked one by one, so that each
problem has its own path; what concerns several settings at once is left to `SchedulerConfig` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gyre.errors import Problem
from gyre.graph.resources import Resources
from gyre.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from gyre.graph.typed import TypedNode

LARGEST_GROUP = 100
"""Executions of a group have two digits in their ids."""


class Range(NamedTuple):
    """Closed range of a number; None: no bound."""

    least: float | None
    most: float | None = None
    is_open: bool = False
    """True: the least value itself is not allowed."""


RANGES: Mapping[str, Mapping[str, Range]] = {
    "dispatch": {
        "phi": Range(0),
        "mu": Range(1),
        "groups_per_step": Range(1),
        "group_size": Range(1, LARGEST_GROUP),
        "steps": Range(1),
        "oversample": Range(0, LARGEST_GROUP - 1),
    },
    "elastic": {"rho_min": Range(0, 1, is_open=True), "hold_s": Range(0), "train_cells": Range(1)},
    "harness_proxy": {"temperature": Range(0), "context_limit": Range(1), "max_new_tokens": Range(1)},
    "evaluate": {"budget_s": Range(0), "max_tries": Range(1), "workers": Range(1)},
    "tree_select": {"j_max": Range(1)},
    "train_cell": {"token_weight_cap": Range(0, is_open=True), "clip_low": Range(0, 1), "clip_high": Range(1)},
    "pack": {"max_tokens": Range(1)},
}
"""Ranges of settings of built-in operators."""
DISPATCH_SETTINGS = ("groups_per_step", "group_size", "phi", "mu", "steps", "oversample", "launch_order")
ELASTIC_SETTINGS = ("policy", "rho_min", "hold_s", "streaming", "train_cells")


def check_dispatch(nodes: Mapping[str, TypedNode], resources: Resources) -> list[Problem]:
    """Check the ranges of settings, then whether they make sense together."""
    problems = [problem for node in nodes.values() for problem in (*_check_ranges(node), *_check_greedy(node, nodes))]
    if problems or not _is_complete(nodes):
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


def _check_greedy(node: TypedNode, nodes: Mapping[str, TypedNode]) -> Iterator[Problem]:
    """Greedy answers have no distribution whose ratio could be trained on, and a group's executions would all be the same."""
    trains = any(other.operator.name == "train_cell" for other in nodes.values())
    if trains and node.operator.name == "harness_proxy" and node.settings.get("temperature") == 0:
        yield Problem(f"ops.{node.name}.args.temperature", "greedy answers cannot be trained on", "give a number above 0")


def _check_ranges(node: TypedNode) -> Iterator[Problem]:
    for name, allowed in RANGES.get(node.operator.name, {}).items():
        value = node.settings.get(name)
        if value is None or isinstance(value, bool):
            continue
        least, most, is_open = allowed
        is_low = least is not None and (value <= least if is_open else value < least)
        if is_low or (most is not None and value > most):
            low = f"above {least:g}" if is_open else f"{least:g} or more" if most is None else f"at least {least:g}"
            words = low if most is None else f"{low} and at most {most:g}"
            yield Problem(f"ops.{node.name}.args.{name}", f"{value} is out of range", f"give a number that is {words}")
