"""Paths of messages by their end: finds the nodes whose path is a given history, without walking the tree.

Nodes of one lineage share a *spine*, the list of all its message digests; a node knows where on it its path ends. So a child costs
its increment, a fork one copy of references, and asking whether a history is a node's path is one comparison of two lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class _Place(NamedTuple):
    """A node's path: the first `end` digests of a spine."""

    spine: list[str]
    end: int


class PathIndex:
    """Nodes by their path; they are added in the order of their ids, from 0.

    >>> index = PathIndex()
    >>> index.add(None, ["sys", "user", "answer"])
    >>> index.add(0, ["tool", "done"])
    >>> index.find(["sys", "user", "answer", "tool", "done"], 5), index.find(["sys", "other", "answer"], 3)
    ([1], [])
    >>> index.add_form(0, "answer in other words")
    >>> index.find(["sys", "user", "answer in other words", "tool"], 3)
    [0]
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._ending: dict[tuple[str, int], list[int]] = {}

    def add(self, parent: int | None, increment: Sequence[str]) -> None:
        """Append the next node, whose path is its parent's and the increment; its answer ends the increment."""
        spine, end = ([], 0) if parent is None else self._places[parent]
        if len(spine) != end:
            spine = spine[:end]  # a fork: another child of the parent went on along the old one
        spine.extend(increment)
        self._places.append(_Place(spine, len(spine)))
        self.add_form(len(self._places) - 1, increment[-1])

    def add_form(self, node_id: int, answer: str) -> None:
        """Say that a node's path may end with this form of its answer."""
        self._ending.setdefault((answer, self._places[node_id].end), []).append(node_id)

    def find(self, history: list[str], end: int) -> list[int]:
        """Nodes whose path is the first `end` messages of a history, in the order they were added."""
        found = self._ending.get((history[end - 1], end))
        if found is None:
            return []
        past = history[: end - 1]
        return [node for node in found if self._places[node].spine[: end - 1] == past]
