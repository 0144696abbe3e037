"""Trajectory sampling (paper §5.3): which paths of an execution's tree train, and which of their tokens.

Draws go one at a time: the highest-priority class that still has a leaf with unmasked trainable tokens, then one of its leaves
with probability proportional to that count; the drawn trajectory's targets are fixed and its whole path is masked. So target
sets are disjoint, and a shared prefix trains once. A node's output is masked as a whole, hence targets are sets of nodes.

Roles outside the order (side calls) train nothing: their outputs are no targets, and a path ends at its last call of a role in
the order. The draw depends on (run seed, execution id) alone. Fed by `tree_select` with trees, eaten by `packing`.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (pyarrow has no type stubs)

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gyre.records import load_schema
from gyre.trajectory.columns import list_column, span_column
from gyre.trajectory.tree import TrajectoryTree

ROLE_ORDER: tuple[str, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """One drawn trajectory."""

    leaf_node_id: int
    """Leaf of its path."""
    role: str
    """Class of the leaf."""
    target_node_ids: tuple[int, ...]
    """Nodes of the path whose outputs are its targets, in path order."""
    num_targets: int
    """Tokens in those outputs."""


def execution_rng(seed: int, execution_id: str) -> np.random.Generator:
    """The generator of one execution's draws: the same for equal (run seed, execution id), on every machine."""
    key = hashlib.sha256(f"{seed}:{execution_id}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def select_trajectories(
    tree: TrajectoryTree, *, j_max: int | None, seed: int, execution_id: str, role_order: Sequence[str] = ROLE_ORDER
) -> list[Selected]:
    """Draw at most `j_max` trajectories (None: all) with disjoint targets, in the order of the draws."""
    rng = execution_rng(seed, execution_id)
    unmasked = np.array([node.num_targets if node.role in role_order else 0 for node in tree.nodes], dtype=np.int64)
    paths = {leaf: np.array(tree.path(leaf)) for leaf in trainable_leaves(tree, role_order)}
    selected: list[Selected] = []
    while j_max is None or len(selected) < j_max:
        counts = {leaf: int(unmasked[path].sum()) for leaf, path in paths.items()}
        leaves = _highest_class({leaf: count for leaf, count in counts.items() if count}, tree, role_order)
        if not leaves:
            break
        leaf = _draw(leaves, [counts[leaf] for leaf in leaves], rng)
        path = paths[leaf]
        selected.append(
            Selected(
                leaf_node_id=leaf,
                role=tree.nodes[leaf].role,
                target_node_ids=tuple(path[unmasked[path] > 0].tolist()),
                num_targets=counts[leaf],
            )
        )
        unmasked[path] = 0
    return selected


def trainable_leaves(tree: TrajectoryTree, role_order: Sequence[str] = ROLE_ORDER) -> list[int]:
    """Nodes of a role in the order below which no other such node stands: where trajectories end."""
    has_below = [False] * len(tree)
    for node in reversed(tree.nodes):  # Children have higher ids than their parents.
        if node.parent_node_id is not None and (has_below[node.node_id] or node.role in role_order):
            has_below[node.parent_node_id] = True
    return [node.node_id for node in tree.nodes if node.role in role_order and not has_below[node.node_id]]


def _highest_class(counts: dict[int, int], tree: TrajectoryTree, role_order: Sequence[str]) -> list[int]:
    for role in role_order:
        leaves = [leaf for leaf in counts if tree.nodes[leaf].role == role]
        if leaves:
            return leaves
    return []


def _draw(leaves: Sequence[int], counts: Sequence[int], rng: np.random.Generator) -> int:
    """Draw proportionally to integer counts, without rounding."""
    ticket = int(rng.integers(sum(counts)))
    for leaf, count in zip(leaves, counts, strict=True):
        if ticket < count:
            return leaf
        ticket -= count
    raise AssertionError("the ticket is below the sum of the counts")


def materialize(tree: TrajectoryTree, selected: Sequence[Selected], *, group_id: str, advantage: float) -> pa.Table:
    """Expand drawn trajectories into rows of `trajectory.v1`: tokens of the whole path, mask and log-probabilities on targets."""
    paths = [_expand(tree, item) for item in selected]
    num = len(paths)
    columns: dict[str, Any] = {
        "execution_id": [tree.execution_id] * num,
        "group_id": [group_id] * num,
        "attempt": [tree.attempt] * num,
        "trajectory_id": [f"{tree.execution_id}/{draw}" for draw in range(num)],
        "leaf_node_id": [item.leaf_node_id for item in selected],
        "role": [item.role for item in selected],
        "input_ids": list_column([path.input_ids for path in paths], pa.int32()),
        "target_mask": list_column([path.target_mask for path in paths], pa.bool_()),
        "behavior_logprobs": list_column([path.logprobs for path in paths], pa.float32(), valid=[path.target_mask for path in paths]),
        "advantage": [float(advantage)] * num,
        "execution_targets": [sum(item.num_targets for item in selected)] * num,
        "num_trajectories": [num] * num,
        "weight_versions": span_column([path.spans for path in paths]),
    }
    schema = load_schema("trajectory.v1")
    return pa.table([pa.array(columns[name], type=schema.field(name).type) for name in schema.names], schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpandedPath:
    input_ids: NDArray[np.int32]
    target_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    spans: list[tuple[int, int, int]]


def _expand(tree: TrajectoryTree, selected: Selected) -> _ExpandedPath:
    input_ids = tree.context(selected.leaf_node_id)
    mask = np.zeros(len(input_ids), dtype=np.bool_)
    logprobs = np.zeros(len(input_ids), dtype=np.float32)
    spans: list[tuple[int, int, int]] = []
    targets = set(selected.target_node_ids)
    position = 0
    for node in (tree.nodes[i] for i in tree.path(selected.leaf_node_id)):
        start = position + len(node.input_ids)
        position = start + len(node.output_ids)
        if node.node_id in targets:
            mask[start:position] = True
            logprobs[start:position] = node.output_logprobs
            spans += [(span.version, start + span.start, start + span.end) for span in node.weight_versions]
    return _ExpandedPath(input_ids=input_ids, target_mask=mask, logprobs=logprobs, spans=spans)
