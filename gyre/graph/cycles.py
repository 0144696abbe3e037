"""Cycles of a directed graph, one per strongly connected part.

Pure and deterministic: the same edges give the same cycles in the same rotation, whatever order they come in, so that the text of an
error is stable. A cycle is turned so that its last edge is the one that goes back against the flow from the graph's sources.
"""

from __future__ import annotations

from collections.abc import Sequence


def find_cycles(edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Find a cycle in each strongly connected part.

    >>> find_cycles([("tasks", "dispatch"), ("dispatch", "train"), ("train", "dispatch")])
    [['dispatch', 'train']]

    Returns:
        Each cycle as its nodes in order; the edge from the last node to the first closes it.
    """
    following: dict[str, list[str]] = {}
    for source, target in sorted(edges):
        following.setdefault(source, []).append(target)
        following.setdefault(target, [])
    fed = {target for _, target in edges}
    # Walking from the sources first makes the edge that goes back be the one found last.
    starts = sorted(following, key=lambda node: (node in fed, node))
    cycles: list[list[str]] = []
    in_cycle: set[str] = set()
    done: set[str] = set()
    for start in starts:
        _walk(start, following, [], done, in_cycle, cycles)
    return cycles


def _walk(
    node: str,
    following: dict[str, list[str]],
    path: list[str],
    done: set[str],
    in_cycle: set[str],
    cycles: list[list[str]],
) -> None:
    if node in done:
        return
    path.append(node)
    for target in following[node]:
        if target in path:
            cycle = path[path.index(target) :]
            if not in_cycle.intersection(cycle):
                cycles.append(cycle)
                in_cycle.update(cycle)
        else:
            _walk(target, following, path, done, in_cycle, cycles)
    path.pop()
    done.add(node)
