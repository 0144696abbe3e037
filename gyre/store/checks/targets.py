"""Checks of what was trained on (semantics.md, sections 5, 6, 8): table `trajectories` against `calls` and `assessments`.

Contexts are the concatenation along the path; targets are sampled tokens of the policy, disjoint within an execution, and exactly those
that the draws left unmasked; each has the one log-probability that its call recorded; the advantage follows from the group's rewards.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gyre.store.checks.data import Breach, CallNode, RunData, TrajectoryRow
from gyre.trajectory.advantage import group_advantages

ADVANTAGE_TOLERANCE = 1e-6
"""Relative: advantages are recomputed in float64; a learner may have kept them in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A root-to-leaf path, expanded."""

    nodes: list[CallNode]
    input_ids: np.ndarray
    """All its tokens."""
    logprobs: np.ndarray
    """Recorded log-probability of each token; NaN where it was supplied."""
    owner: np.ndarray
    """Node id of each token that may be a target; -1 elsewhere."""


@dataclass(slots=True)
class _Drawn:
    """What earlier draws of an execution have taken."""

    masked: set[int] = field(default_factory=set)
    count: int = 0


def find_path(tree: Sequence[CallNode], leaf_node_id: int) -> list[CallNode]:
    """The nodes from the root's child down to a leaf; empty where the tree does not lead there."""
    by_id = {node.row["node_id"]: node for node in tree}
    path: list[CallNode] = []
    node_id: int | None = leaf_node_id
    while node_id is not None:
        node = by_id.get(node_id)
        if node is None or len(path) > len(by_id):
            return []
        path.append(node)
        node_id = node.row["parent_node_id"]
    return path[::-1]


def expand_path(nodes: list[CallNode], role_order: Sequence[str]) -> Path:
    """Concatenate a path; tokens that may be targets carry their node's id."""
    owners, logprobs, ids = [], [], []
    for node in nodes:
        may_train = node.row["trainable"] and node.row["provenance"] == "policy" and node.row["role"] in role_order
        ids += [node.input_ids, node.output_ids]
        owners += [np.full(len(node.input_ids), -1), np.full(len(node.output_ids), node.row["node_id"] if may_train else -1)]
        padded = np.full(len(node.output_ids), np.nan, np.float32)
        padded[: len(node.logprobs)] = node.logprobs[: len(padded)]
        logprobs += [np.full(len(node.input_ids), np.nan, np.float32), padded]
    return Path(nodes=nodes, input_ids=np.concatenate(ids), logprobs=np.concatenate(logprobs), owner=np.concatenate(owners))


def check_membership(data: RunData) -> Iterator[Breach]:
    """Check that each trajectory is of the attempt that closed, of its own group, in the step that consumed the group."""
    for name, count in Counter(t.key for t in data.trajectories).items():
        if count > 1:
            yield Breach("trajectories", name, f"has {count} rows, so its tokens would train more than once")
    for trajectory in data.trajectories:
        row = trajectory.row
        execution = data.execution.get(row["execution_id"])
        if execution is None:
            yield Breach("trajectories", trajectory.key, "is of an execution that was never dispatched")
            continue
        if not trajectory.key.startswith(row["execution_id"] + "/"):
            yield Breach("trajectories", trajectory.key, f"is of execution {row['execution_id']}, which its id contradicts")
        if row["attempt"] != max(execution["attempts"], 1):
            yield Breach("trajectories", trajectory.key, f"is of attempt {row['attempt']}, but attempt {execution['attempts']} closed")
        if row["group_id"] != execution["group_id"]:
            yield Breach("trajectories", trajectory.key, f"is put in group {row['group_id']}, but its execution is not in that group")
        consumed_in = data.consumed_in.get(row["group_id"])
        if consumed_in != row["step_version"] and (consumed_in is not None or row["step_version"] <= data.version):
            yield Breach("trajectories", trajectory.key, f"is of step {row['step_version']}, but its group was consumed by {consumed_in}")
        if data.rewards.get(row["execution_id"]) is None:
            yield Breach("trajectories", trajectory.key, "is of an execution that has no valid reward")


def check_contexts_and_targets(data: RunData) -> Iterator[Breach]:
    """Check tokens, masks and log-probabilities of each trajectory against the calls along its path, in the order of draws."""
    drawn: dict[str, _Drawn] = defaultdict(_Drawn)
    for trajectory in sorted(data.committed, key=_draw_order):
        row = trajectory.row
        nodes = find_path(data.trees.get((row["execution_id"], row["attempt"]), ()), row["leaf_node_id"])
        if not nodes:
            yield Breach("trajectories", trajectory.key, f"ends at node {row['leaf_node_id']}, to which no path of `calls` leads")
            continue
        path = expand_path(nodes, data.settings.role_order)
        state = drawn[row["execution_id"]]
        for sentence in (*_context(trajectory, path), *_targets(trajectory, path, state.masked)):
            yield Breach("trajectories", trajectory.key, sentence)
        state.masked |= {node.row["node_id"] for node in nodes}
        state.count += 1
    yield from _undrawn(data, drawn)


def _draw_order(trajectory: TrajectoryRow) -> tuple[str, int]:
    number = trajectory.key.rpartition("/")[2]
    return trajectory.row["execution_id"], int(number) if number.isdigit() else -1


def _context(trajectory: TrajectoryRow, path: Path) -> Iterator[str]:
    if not len(trajectory.input_ids) == len(trajectory.target_mask) == len(trajectory.logprobs):
        yield "has lists of different lengths: tokens, target mask and log-probabilities speak of the same tokens"
    if not np.array_equal(trajectory.input_ids, path.input_ids):
        yield "has other tokens than the calls along its path"
    if trajectory.row["role"] != path.nodes[-1].row["role"]:
        yield f"has the role {trajectory.row['role']!r}, but its leaf is {path.nodes[-1].row['role']!r}"


def _targets(trajectory: TrajectoryRow, path: Path, masked: set[int]) -> Iterator[str]:
    mask, logprobs = trajectory.target_mask, trajectory.logprobs
    if not len(mask) == len(logprobs) == len(path.owner):
        return
    if np.any(np.isnan(logprobs) == mask):
        position = int(np.argmax(np.isnan(logprobs) == mask))
        yield f"has no log-probability at target {position}" if mask[position] else f"has a log-probability at token {position}, no target"
    if np.any(mask & (path.owner < 0)):
        yield f"has a target at token {int(np.argmax(mask & (path.owner < 0)))}, which the policy did not sample or which may not train"
    taken = mask & np.isin(path.owner, list(masked))
    if np.any(taken):
        yield f"has a target at token {int(np.argmax(taken))} that an earlier trajectory of the execution has, too"
    expected = (path.owner >= 0) & ~np.isin(path.owner, list(masked))
    if np.any(expected & ~mask):
        yield f"leaves out token {int(np.argmax(expected & ~mask))}, which was unmasked when it was drawn"
    differs = mask & ~np.isnan(logprobs) & (logprobs != path.logprobs)
    if np.any(differs):
        yield f"has another log-probability at token {int(np.argmax(differs))} than its call recorded"


def _undrawn(data: RunData, drawn: dict[str, _Drawn]) -> Iterator[Breach]:
    """Find executions of consumed groups whose draws ended too early or that have more draws than allowed."""
    for execution in data.executions:
        name = execution["execution_id"]
        if execution["group_id"] not in data.consumed_in or data.rewards[name] is None:
            continue
        state = drawn.get(name, _Drawn())
        if data.settings.j_max is not None and state.count > data.settings.j_max:
            yield Breach("trajectories", name, f"has {state.count} trajectories, but J_max is {data.settings.j_max}")
        left = [
            node
            for node in data.trees.get((name, execution["attempts"]), ())
            if node.row["node_id"] not in state.masked and np.any(expand_path([node], data.settings.role_order).owner >= 0)
        ]
        if left and (data.settings.j_max is None or state.count < data.settings.j_max):
            yield Breach("trajectories", name, f"misses a trajectory: node {left[0].row['node_id']} could train and was not drawn")


def check_advantages(data: RunData) -> Iterator[Breach]:
    """Check each trajectory's advantage against the rewards of its group."""
    expected: dict[str, float] = {}
    for rows in data.groups.values():
        names = [row["execution_id"] for row in rows]
        advantages = group_advantages([data.rewards[name] for name in names], normalize_std=data.settings.normalize_std)
        expected.update(zip(names, advantages, strict=True))
    for trajectory in data.committed:
        wanted, got = expected.get(trajectory.row["execution_id"]), trajectory.row["advantage"]
        if wanted is None or ((wanted == 0) == (got == 0) and math.isclose(got, wanted, rel_tol=ADVANTAGE_TOLERANCE)):
            continue
        yield Breach("trajectories", trajectory.key, f"has the advantage {got}, but the rewards of its group give {wanted}")
