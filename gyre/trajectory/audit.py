"""Audit of stored trajectories against the tree they were drawn from: what `gyre verify` asks of the trajectory processor.

Each check is its own function and finds one kind of breach: tokens that are not the path's, a token that is a target twice or
was not sampled by the policy, a target without its recorded log-probability. Rows come from the store, so nothing about them is
trusted: a breach is a finding with a sentence, never an exception.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (pyarrow has no type stubs)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gyre.trajectory.columns import list_values
from gyre.trajectory.tree import TrajectoryTree


class Finding(NamedTuple):
    """One breach."""

    trajectory_id: str
    """Row that shows it."""
    sentence: str
    """What is wrong, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectory:
    """One row of `trajectories`, as arrays."""

    trajectory_id: str
    leaf_node_id: int
    input_ids: NDArray[np.int32]
    target_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    """NaN where the store has null."""


def read_trajectories(table: pa.Table) -> list[StoredTrajectory]:
    """Rows of `trajectories.v1` or `trajectory.v1` as arrays."""
    scalars = table.select(["trajectory_id", "leaf_node_id"]).to_pylist()
    arrays = [list_values(table, name) for name in ("input_ids", "target_mask", "behavior_logprobs")]
    return [
        StoredTrajectory(**row, input_ids=input_ids, target_mask=mask.astype(np.bool_), logprobs=logprobs)
        for row, input_ids, mask, logprobs in zip(scalars, *arrays, strict=True)
    ]


def check_contexts(tree: TrajectoryTree, rows: Sequence[StoredTrajectory]) -> list[Finding]:
    """Every row's tokens are those along its path, and its three lists have equal lengths."""
    return [Finding(row.trajectory_id, sentence) for row in rows for sentence in _context_breaches(tree, row)]


def _context_breaches(tree: TrajectoryTree, row: StoredTrajectory) -> Iterator[str]:
    if not 0 <= row.leaf_node_id < len(tree):
        yield f"leaf {row.leaf_node_id} is no node of the execution's tree"
        return
    lengths = (len(row.input_ids), len(row.target_mask), len(row.logprobs))
    if len(set(lengths)) != 1:
        yield f"input_ids, target_mask and behavior_logprobs have different lengths: {lengths}"
    context = tree.context(row.leaf_node_id)
    if len(context) != len(row.input_ids):
        yield f"has {len(row.input_ids)} tokens, its path has {len(context)}"
    elif (different := np.flatnonzero(context != row.input_ids)).size:
        at = int(different[0])
        yield f"token {at} is {int(row.input_ids[at])}, along its path it is {int(context[at])}"


def check_disjoint_targets(tree: TrajectoryTree, rows: Sequence[StoredTrajectory]) -> list[Finding]:
    """No sampled token of an execution is a target in two of its rows."""
    findings: list[Finding] = []
    first: dict[tuple[int, int], str] = {}
    for row in _sound(tree, rows):
        owners = token_owners(tree, row.leaf_node_id)[row.target_mask].tolist()
        for node, offset in owners:
            other = first.setdefault((node, offset), row.trajectory_id)
            if other != row.trajectory_id:
                findings.append(Finding(row.trajectory_id, f"output token {offset} of node {node} is a target of {other} as well"))
                break
    return findings


def check_provenance(tree: TrajectoryTree, rows: Sequence[StoredTrajectory]) -> list[Finding]:
    """Every target was sampled by the policy, in a call that may train."""
    findings: list[Finding] = []
    for row in _sound(tree, rows):
        for node, offset in token_owners(tree, row.leaf_node_id)[row.target_mask].tolist():
            if offset < 0 or not tree.nodes[node].num_targets:
                what = "supplied, not sampled" if offset < 0 else "sampled in a call that may not train"
                findings.append(Finding(row.trajectory_id, f"a target in node {node} was {what}"))
                break
    return findings


def check_logprobs(tree: TrajectoryTree, rows: Sequence[StoredTrajectory]) -> list[Finding]:
    """Every target has the log-probability recorded when it was sampled; other tokens have none."""
    findings: list[Finding] = []
    for row in _sound(tree, rows):
        owners = token_owners(tree, row.leaf_node_id)
        recorded = np.array(
            [
                tree.nodes[node].output_logprobs[offset] if is_target and offset >= 0 else np.nan
                for (node, offset), is_target in zip(owners.tolist(), row.target_mask.tolist(), strict=True)
            ],
            dtype=np.float32,
        )
        wrong = np.flatnonzero(~((recorded == row.logprobs) | (np.isnan(recorded) & np.isnan(row.logprobs))))
        if wrong.size:
            at = int(wrong[0])
            findings.append(
                Finding(
                    row.trajectory_id,
                    f"token {at} has log-probability {row.logprobs[at]}, recorded was {recorded[at]} (nan: none)",
                )
            )
    return findings


def token_owners(tree: TrajectoryTree, leaf_node_id: int) -> NDArray[np.int64]:
    """For each token of a path: (node, offset in its output), offset -1 for a supplied token; shape [tokens, 2]."""
    parts: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
    for node_id in tree.path(leaf_node_id):
        node = tree.nodes[node_id]
        offsets = np.concatenate([np.full(node.num_input_tokens, -1), np.arange(len(node.output_ids))])
        parts.append(np.stack([np.full(len(offsets), node_id), offsets], axis=1))
    return np.concatenate(parts)


def _sound(tree: TrajectoryTree, rows: Sequence[StoredTrajectory]) -> Iterator[StoredTrajectory]:
    """Rows whose lists line up with their path; `check_contexts` names the others."""
    for row in rows:
        if 0 <= row.leaf_node_id < len(tree):
            length = sum(tree.nodes[i].num_input_tokens + len(tree.nodes[i].output_ids) for i in tree.path(row.leaf_node_id))
            if length == len(row.input_ids) == len(row.target_mask) == len(row.logprobs):
                yield row
