"""Fingerprints of message paths: finds the node at the end of a path in a few microseconds, however long the path.

A fingerprint is a multilinear hash modulo 2^64 over the hashes of the path's message digests, so that a child's follows from its
parent's and the increment alone, and a whole history is one product of arrays. Digests are cryptographic already; two paths of
equal length meet by accident with probability 2^-60 or so. Fingerprints live in memory only: Python salts its string hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MODULUS = 1 << 64
_MULTIPLIER_KEY = 20_931
"""Any fixed key: the multipliers only have to look random."""


class PathPrint(NamedTuple):
    """Fingerprint of a path of messages."""

    num_messages: int
    value: int


EMPTY_PATH = PathPrint(0, 0)


class PathIndex:
    """Nodes by the fingerprint of their path.

    >>> index = PathIndex()
    >>> first = index.extend(EMPTY_PATH, ["sys", "user", "answer"])
    >>> index.add(first, 0)
    >>> index.extend(EMPTY_PATH, ["sys", "user"]) == index.extend(EMPTY_PATH, ["user", "sys"])
    False
    >>> index.find(index.extend(index.extend(EMPTY_PATH, ["sys", "user"]), ["answer"]))
    [0]
    """

    def __init__(self) -> None:
        self._nodes: dict[PathPrint, list[int]] = {}
        self._multipliers = _make_multipliers(256)

    def extend(self, path: PathPrint, digests: Sequence[str]) -> PathPrint:
        """Fingerprint of a path that goes on with `digests`."""
        end = path.num_messages + len(digests)
        if end > len(self._multipliers):
            self._multipliers = _make_multipliers(2 * end)
        hashes = np.fromiter(map(hash, digests), dtype=np.int64, count=len(digests)).view(np.uint64)
        added = int((hashes * self._multipliers[path.num_messages : end]).sum())
        return PathPrint(end, (path.value + added) % _MODULUS)

    def add(self, path: PathPrint, node_id: int) -> None:
        """Say that a node ends this path."""
        self._nodes.setdefault(path, []).append(node_id)

    def find(self, path: PathPrint) -> list[int]:
        """Nodes that end this path, in the order they were added."""
        return list(self._nodes.get(path, ()))


def _make_multipliers(count: int) -> NDArray[np.uint64]:
    """The first `count` multipliers, one per position; odd, so that none of them loses a bit."""
    rng = np.random.Generator(np.random.Philox(key=_MULTIPLIER_KEY))
    return rng.integers(_MODULUS, size=count, dtype=np.uint64) | np.uint64(1)
