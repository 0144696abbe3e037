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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a tree offers for selection, before the first draw."""

    num_targets: NDArray[np.int64]
    """Trainable tokens of each node's output."""
    paths: tuple[NDArray[np.int64], ...]
    """Candidate paths, as node ids from the root's child to the leaf."""
    classes: dict[str, tuple[int, ...]]
    """Numbers of the paths of each class, classes by falling priority."""


def find_candidates(tree: TrajectoryTree, role_order: Sequence[str] = ROLE_ORDER) -> Candidates:
    """Apply the provenance mask and list the paths that selection may draw."""
    leaves = trainable_leaves(tree, role_order)
    roles = [tree.nodes[leaf].role for leaf in leaves]
    return Candidates(
        num_targets=np.array([node.num_targets if node.role in role_order else 0 for node in tree.nodes], dtype=np.int64),
        paths=tuple(np.array(tree.path(leaf), dtype=np.int64) for leaf in leaves),
        classes={role: tuple(i for i, found in enumerate(roles) if found == role) for role in role_order},
    )


def draw_trajectories(candidates: Candidates, *, j_max: int | None, seed: int, execution_id: str) -> list[Selected]:
    """Draw at most `j_max` trajectories (None: all) with disjoint targets, in the order of the draws."""
    rng = execution_rng(seed, execution_id)
    unmasked = candidates.num_targets.copy()
    selected: list[Selected] = []
    while j_max is None or len(selected) < j_max:
        role, counts = _highest_class(candidates, unmasked)
        if not counts:
            break
        path = candidates.paths[_draw(counts, rng)]
        targets = path[unmasked[path] > 0]
        selected.append(
            Selected(
                leaf_node_id=int(path[-1]),
                role=role,
                target_node_ids=tuple(targets.tolist()),
                num_targets=int(unmasked[targets].sum()),
            )
        )
        unmasked[path] = 0
    return selected


def select_trajectories(
    tree: TrajectoryTree, *, j_max: int | None, seed: int, execution_id: str, role_order: Sequence[str] = ROLE_ORDER
) -> list[Selected]:
    """Select the trajectories of one execution: candidates of its tree, then the draws."""
    return draw_trajectories(find_candidates(tree, role_order), j_max=j_max, seed=seed, execution_id=execution_id)


def trainable_leaves(tree: TrajectoryTree, role_order: Sequence[str] = ROLE_ORDER) -> list[int]:
    """Nodes of a role in the order below which no other such node stands: where trajectories end."""
    has_below = [False] * len(tree)
    for node in reversed(tree.nodes):  # Children have higher ids than their parents.
        if node.parent_node_id is not None and (has_below[node.node_id] or node.role in role_order):
            has_below[node.parent_node_id] = True
    return [node.node_id for node in tree.nodes if node.role in role_order and not has_below[node.node_id]]


def _highest_class(candidates: Candidates, unmasked: NDArray[np.int64]) -> tuple[str, dict[int, int]]:
    """First class with something left to train, and what each of its paths has left; nothing left: no counts."""
    for role, paths in candidates.classes.items():
        counts = {path: int(unmasked[candidates.paths[path]].sum()) for path in paths}
        if any(counts.values()):
            return role, counts
    return "", {}


def _draw(counts: dict[int, int], rng: np.random.Generator) -> int:
    """Draw a path proportionally to its integer count, without rounding."""
    ticket = int(rng.integers(sum(counts.values())))
    for path, count in counts.items():
        if ticket < count:
            return path
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
        start = position + node.num_input_tokens
        position = start + len(node.output_ids)
        if node.node_id in targets:
            mask[start:position] = True
            logprobs[start:position] = node.output_logprobs
            spans += [(span.version, start + span.start, start + span.end) for span in node.weight_versions]
    return _ExpandedPath(input_ids=input_ids, target_mask=mask, logprobs=logprobs, spans=spans)
