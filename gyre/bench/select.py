"""Select: what it saves that an execution's paths share one tree until some of them are drawn.

On an execution shaped like Appendix C (ten paths, 636 requests) candidates are found, trajectories are drawn and expanded. Figures:

- `expanded_over_unique`: messages of all paths, each expanded whole, over the messages of the tree: 1,716 over 1,347 in the paper;
- `expanded_over_unique_tokens`: the same in tokens, over the tokens that the tree holds;
- `requests_over_unique_tokens`: tokens of all requests over those, which is what keeping every request costs;
- `drawn_over_expanded_tokens`: tokens of the drawn trajectories over those of all paths;
- `drawn_target_share`: sampled tokens that the drawn trajectories train, of all;
- `draw_ms`, `materialize_ms`: median times of drawing, and of expanding what was drawn.

Settings: `j_max` (5), `seeds` (50) for which trajectories are drawn, `scale` (1.0) by which the lengths of the messages are multiplied.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gyre.bench._appendix_c import NUM_EXPANDED, NUM_MESSAGES, MessageTokens, grow_tree, play
from gyre.bench._measuring import Limit, outcome, read_options
from gyre.trajectory.sampling import materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

T = TypeVar("T")

LIMITS: Mapping[str, Limit] = {
    "expanded_over_unique": Limit(at_least=NUM_EXPANDED / NUM_MESSAGES - 1e-9, at_most=NUM_EXPANDED / NUM_MESSAGES + 1e-9),
    "draw_ms": Limit(at_most=20.0),
    "materialize_ms": Limit(at_most=200.0),
}

MATERIALIZE_ROUNDS = 5
"""Times that one draw is expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    j_max: int = 5
    """Most trajectories of the execution."""
    seeds: int = 50
    """Run seeds for which trajectories are drawn."""
    scale: float = 1.0
    """Factor on the lengths of messages."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Grow the tree, count it, draw from it."""
    options = read_options(Options, settings, name="select")
    tokens = MessageTokens(scale=options.scale)
    tree = grow_tree(np.random.default_rng(0), tokens)
    requested = sum(len(tokens.of(message)) for request in play(np.random.default_rng(0)) for message in request.history)
    expanded = sum(len(tree.context(leaf)) for leaf in tree.leaves())
    draws_s, draws = _timed(options.seeds, lambda seed: select_trajectories(tree, j_max=options.j_max, seed=seed, execution_id="g"))
    drawn = draws[0]
    rows_s, _ = _timed(MATERIALIZE_ROUNDS, lambda _: materialize(tree, drawn, group_id="g", advantage=1.0))
    figures = {
        "expanded_over_unique": _expanded_messages(tree) / _unique_messages(tree),
        "expanded_over_unique_tokens": expanded / tree.num_tokens,
        "requests_over_unique_tokens": requested / tree.num_tokens,
        "drawn_over_expanded_tokens": sum(len(tree.context(item.leaf_node_id)) for item in drawn) / expanded,
        "drawn_target_share": sum(item.num_targets for item in drawn) / sum(node.num_targets for node in tree.nodes),
        "draw_ms": 1000 * draws_s,
        "materialize_ms": 1000 * rows_s,
    }
    return outcome("select", figures, LIMITS)


def _timed(rounds: int, function: Callable[[int], T]) -> tuple[float, list[T]]:
    """Median time of a call, and every result."""
    times_s: list[float] = []
    results: list[T] = []
    for number in range(max(1, rounds)):
        begun = time.perf_counter()
        results.append(function(number))
        times_s.append(time.perf_counter() - begun)
    return statistics.median(times_s), results


def _path_digests(tree: TrajectoryTree, leaf: int) -> list[str]:
    return [digest for node in tree.path(leaf) for digest in tree.nodes[node].message_digests]


def _expanded_messages(tree: TrajectoryTree) -> int:
    return sum(len(_path_digests(tree, leaf)) for leaf in tree.leaves())


def _unique_messages(tree: TrajectoryTree) -> int:
    """Messages when equal beginnings of paths are merged, as the paper's figure merges them: system prompts are shared."""
    listed = [tuple(_path_digests(tree, leaf)) for leaf in tree.leaves()]
    return len({digests[:end] for digests in listed for end in range(1, len(digests) + 1)})
