"""One model call as a node of the trajectory tree: what a TITO record holds, and what makes it hold together.

A node is frozen: it is checked once when it is added and never changes. Tokens are numpy arrays, so that a path is one
concatenation; what two siblings have in common at their beginning (the system prompt of two agents) is held once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROLES: tuple[str, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary", "side")


class Span(NamedTuple):
    """Tokens [start, end) were sampled under one version of the weights."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One model call."""

    node_id: int
    """Position in the tree, from 0."""
    parent_node_id: int | None
    """None: child of the root."""
    message_digests: tuple[str, ...]
    """Digests of the increment's messages; the last is the answer's."""
    input_parts: tuple[NDArray[np.int32], ...]
    """New input tokens, in parts: what an earlier sibling's input has as well (a view on it), then the rest."""
    output_ids: NDArray[np.int32]
    """Sampled tokens."""
    output_logprobs: NDArray[np.float32]
    """Behaviour log-probability of each sampled token."""
    weight_versions: tuple[Span, ...]
    """Spans over `output_ids`, contiguous and complete."""
    role: str
    """Class of the call, one of ROLES."""
    provenance: str
    """Whose output it is: 'policy' or 'evaluator'."""
    trainable: bool
    """False where the output may not be a target."""
    finish_reason: str
    """'stop', 'length' or 'abort'."""
    started_at_s: float
    """When the request came."""
    finished_at_s: float
    """When the record was complete."""
    sampling: str
    """JSON of the sampling parameters asked for and used."""

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """New input tokens."""
        return self.input_parts[0] if len(self.input_parts) == 1 else np.concatenate(self.input_parts)

    @property
    def num_input_tokens(self) -> int:
        """New input tokens, counted."""
        return sum(map(len, self.input_parts))

    @property
    def num_targets(self) -> int:
        """Sampled tokens that may be targets."""
        return len(self.output_ids) if self.trainable and self.provenance == "policy" else 0


def check_node(node: Node, *, num_nodes: int) -> None:
    """Refuse a record that does not hold together.

    Raises:
        ValueError: what is wrong with it.
    """
    if node.parent_node_id is not None and not 0 <= node.parent_node_id < num_nodes:
        raise ValueError(f"node {node.node_id}: parent {node.parent_node_id} is not in the tree")
    if not node.message_digests:
        raise ValueError(f"node {node.node_id}: the increment has at least one message, the answer")
    if node.parent_node_id is None and not node.num_input_tokens:
        raise ValueError(f"node {node.node_id}: a call at the root has input tokens, this one was sampled from nothing")
    if node.role not in ROLES:
        raise ValueError(f"node {node.node_id}: role {node.role!r} is none of {', '.join(ROLES)}")
    if len(node.output_ids) != len(node.output_logprobs):
        raise ValueError(f"node {node.node_id}: {len(node.output_ids)} sampled tokens but {len(node.output_logprobs)} log-probabilities")
    position = 0
    for span in node.weight_versions:
        if span.start != position or span.end <= span.start:
            raise ValueError(f"node {node.node_id}: weight version spans are not contiguous at token {position}")
        position = span.end
    if position != len(node.output_ids):
        raise ValueError(f"node {node.node_id}: weight version spans cover {position} of {len(node.output_ids)} tokens")
