"""The trajectory tree of one attempt of an execution (paper §5.1): increments only, whole-prefix matching, exact contexts.

One node is one model call. It holds the *increment*: input tokens that were new to the call, sampled tokens, their behaviour
log-probabilities. A trajectory's tokens are the concatenation along its path, so no token is held twice and nothing is ever
tokenized again. Invariants: a request attaches to the deepest node whose whole path is a prefix of its history; two generations
for one context are two nodes; a node never changes once added.

Fed by the proxy (digests from `restore`, tokens from renderer and engine); eaten by `sampling`, the store and `gyre inspect`.

    >>> tree = TrajectoryTree(execution_id="g000000-00", attempt=1)
    >>> fields = dict(role="main", finish_reason="stop", started_at_s=0.0, finished_at_s=1.0)
    >>> a = tree.add(None, ["sys", "user", "ans"], [1, 2], [3, 4], [-.1, -.2], [(0, 0, 2)], **fields)
    >>> tree.match(["sys", "user", "ans", "tool"])
    Match(node_id=0, num_messages=3)
    >>> b = tree.add(a, ["tool", "ans2"], [5], [6], [-.3], [(0, 0, 1)], **fields)
    >>> tree.context(b).tolist(), tree.num_tokens, tree.leaves()
    ([1, 2, 3, 4, 5, 6], 6, [1])
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (pyarrow has no type stubs)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from gyre.records import load_schema
from gyre.trajectory.columns import list_column, list_values, span_column
from gyre.trajectory.node import Node, Span, check_node
from gyre.trajectory.path_index import PathIndex


class Match(NamedTuple):
    """Where a request attaches."""

    node_id: int | None
    """Deepest node whose whole path is a prefix of the request; None: the root."""
    num_messages: int
    """How many leading messages of the request that path covers; only the rest is new."""


class TrajectoryTree:
    """All model calls of one attempt of one execution. The module's docstring has a worked example."""

    def __init__(self, execution_id: str, attempt: int) -> None:
        self.execution_id = execution_id
        self.attempt = attempt
        self.nodes: list[Node] = []
        self.num_tokens = 0
        """Tokens held in memory, over all nodes."""
        self._children: dict[int | None, list[int]] = {None: []}
        self._path_index = PathIndex()
        self._answers: set[str] = set()
        self._answer_forms: list[set[str]] = []
        self._skippable: set[int] = set()
        # First child of a node whose increment begins with a message: the others share its tokens as far as they are equal.
        self._eldest: dict[tuple[int | None, str], int] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    # ---------------------------------------------------------------- writing

    def add(
        self,
        parent_node_id: int | None,
        message_digests: Sequence[str],
        input_ids: ArrayLike,
        output_ids: ArrayLike,
        output_logprobs: ArrayLike,
        weight_versions: Sequence[tuple[int, int, int]],
        *,
        role: str,
        finish_reason: str,
        started_at_s: float,
        finished_at_s: float,
        sampling: str = "{}",
        trainable: bool = True,
        provenance: str = "policy",
        is_blank: bool = False,
    ) -> int:
        """Append one model call and return its node id.

        `message_digests` are of the increment: new messages of the request, then the answer. `weight_versions` are
        (version, start, end) spans that cover the output. `is_blank` says that the answer shows nothing (no text, no tool
        call), so that a harness may leave it out of its history.

        Raises:
            ValueError: the record does not hold together; it must be rejected, not repaired.
        """
        node = Node(
            node_id=len(self.nodes),
            parent_node_id=parent_node_id,
            message_digests=tuple(message_digests),
            input_parts=self._share_input(parent_node_id, message_digests, np.array(input_ids, dtype=np.int32)),
            output_ids=np.array(output_ids, dtype=np.int32),
            output_logprobs=np.array(output_logprobs, dtype=np.float32),
            weight_versions=tuple(Span(*span) for span in weight_versions),
            role=role,
            provenance=provenance,
            trainable=trainable,
            finish_reason=finish_reason,
            started_at_s=started_at_s,
            finished_at_s=finished_at_s,
            sampling=sampling,
        )
        check_node(node, num_nodes=len(self.nodes))
        self._index(node, is_blank=is_blank)
        return node.node_id

    def alias(self, node_id: int, digest: str) -> None:
        """Accept `digest` as another form of a node's answer, where a wire echoes it differently from how it was given."""
        if digest in self._answer_forms[node_id]:
            return
        self._answer_forms[node_id].add(digest)
        self._answers.add(digest)
        self._path_index.add_form(node_id, digest)

    def _index(self, node: Node, *, is_blank: bool) -> None:
        answer = node.message_digests[-1]
        self.nodes.append(node)
        self.num_tokens += len(node.input_parts[-1]) + len(node.output_ids)
        self._eldest.setdefault((node.parent_node_id, node.message_digests[0]), node.node_id)
        self._children.setdefault(node.parent_node_id, []).append(node.node_id)
        self._path_index.add(node.parent_node_id, node.message_digests)
        self._answers.add(answer)
        self._answer_forms.append({answer})
        if is_blank:
            self._skippable.add(node.node_id)

    def _share_input(self, parent: int | None, digests: Sequence[str], input_ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        """Split an input into a view on what the eldest sibling has as well, and the rest: agents repeat long system prompts."""
        eldest = self._eldest.get((parent, digests[0])) if digests else None
        if eldest is None:
            return (input_ids,)
        held = self.nodes[eldest].input_parts[0]
        length = min(len(held), len(input_ids))
        differs = np.flatnonzero(held[:length] != input_ids[:length])
        end = int(differs[0]) if differs.size else length
        return (held[:end], input_ids[end:].copy()) if end else (input_ids,)

    # ---------------------------------------------------------------- matching

    def match(self, digests: Sequence[str]) -> Match:
        """Find the longest stored path that is a whole prefix of a request's message digests.

        A path ends with an answer, so the last known answer in the history is tried first, by the paths that end there;
        only a history that was changed before that point, or uses another form of an answer, is walked from the root.
        """
        listed = digests if isinstance(digests, list) else list(digests)
        nodes, end = self._nodes_by_path(listed) or self._walk([None], 0, listed)
        if self._skippable:
            # No digest ends a path whose answer the harness left out: look below what was found.
            nodes, end = self._walk(nodes, end, listed)
        return Match(self._choose(nodes), end)

    def _nodes_by_path(self, digests: list[str]) -> tuple[list[int | None], int] | None:
        for end in range(len(digests), 0, -1):
            if digests[end - 1] in self._answers:
                nodes = self._path_index.find(digests, end)
                return ([*nodes], end) if nodes else None
        return None

    def _walk(self, starts: list[int | None], start_end: int, digests: list[str]) -> tuple[list[int | None], int]:
        """Descend along every path that is a whole prefix; return the nodes of the longest and what it covers."""
        best, best_end = starts, start_end
        frontier = [(node, start_end) for node in starts]
        while frontier:
            parent, begin = frontier.pop()
            for child in self._children.get(parent, ()):
                for end in self._ends(child, begin, digests):
                    frontier.append((child, end))
                    if end > best_end:
                        best, best_end = [], end
                    if end == best_end:
                        best.append(child)
        return best, best_end

    def _ends(self, child: int, begin: int, digests: list[str]) -> Iterator[int]:
        """Yield how many messages are covered when `child` follows the first `begin` ones, once for each way it fits."""
        increment = self.nodes[child].message_digests
        answer = begin + len(increment) - 1
        if answer > len(digests) or tuple(digests[begin:answer]) != increment[:-1]:
            return
        if answer < len(digests) and digests[answer] in self._answer_forms[child]:
            yield answer + 1
        elif child in self._skippable and begin < answer < len(digests):
            # Only with something new behind it: the very same request again is a new sample, not a continuation.
            yield answer

    def _choose(self, nodes: list[int | None]) -> int | None:
        """Pick among generations that no history can tell apart.

        The first that nothing continues yet, so that two agents with equal answers stay two lineages.
        """
        listed = sorted(node for node in nodes if node is not None)
        return next((node for node in listed if not self._children.get(node)), listed[0] if listed else None)

    # ---------------------------------------------------------------- reading

    def path(self, node_id: int | None) -> list[int]:
        """Node ids from the root's child down to `node_id`; empty for the root."""
        nodes: list[int] = []
        while node_id is not None:
            nodes.append(node_id)
            node_id = self.nodes[node_id].parent_node_id
        return nodes[::-1]

    def children(self, node_id: int | None) -> list[int]:
        """Node ids of the calls made on top of a node, in order; None: of the root."""
        return list(self._children.get(node_id, ()))

    def leaves(self) -> list[int]:
        """Node ids without children, in order."""
        return [node.node_id for node in self.nodes if not self._children.get(node.node_id)]

    def context(self, node_id: int | None) -> NDArray[np.int32]:
        """All tokens along a path, input and output, ready to be continued; empty for the root."""
        nodes = [self.nodes[i] for i in self.path(node_id)]
        parts = [part for node in nodes for part in (*node.input_parts, node.output_ids)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    # ---------------------------------------------------------------- tables

    def row(self, node_id: int) -> dict[str, Any]:
        """One node as a row of `calls.v1`."""
        return self.to_table([node_id]).to_pylist()[0]

    def to_table(self, node_ids: Sequence[int] | None = None) -> pa.Table:
        """The nodes (all of them, or the named ones) as a table of `calls.v1`, in node order."""
        nodes = self.nodes if node_ids is None else [self.nodes[i] for i in node_ids]
        columns: dict[str, Any] = {
            "execution_id": [self.execution_id] * len(nodes),
            "attempt": [self.attempt] * len(nodes),
            "call_index": [node.node_id for node in nodes],
            "messages": [len(node.message_digests) for node in nodes],
            "input_ids": list_column([node.input_ids for node in nodes], pa.int32()),
            "output_ids": list_column([node.output_ids for node in nodes], pa.int32()),
            "output_logprobs": list_column([node.output_logprobs for node in nodes], pa.float32()),
            "weight_versions": span_column([node.weight_versions for node in nodes]),
            "message_digests": [list(node.message_digests) for node in nodes],
        }
        schema = load_schema("calls.v1")
        for name in schema.names:
            if name not in columns:
                columns[name] = [getattr(node, name) for node in nodes]
        return pa.table([pa.array(columns[name], type=schema.field(name).type) for name in schema.names], schema=schema)

    @classmethod
    def from_table(cls, calls: pa.Table) -> TrajectoryTree:
        """Rebuild a tree from the rows of one attempt.

        Raises:
            ValueError: the table is empty, mixes attempts, or its nodes are not 0, 1, 2, …
        """
        rows = calls.sort_by("node_id")
        owners = set(zip(rows["execution_id"].to_pylist(), rows["attempt"].to_pylist(), strict=True))
        if len(owners) != 1:
            raise ValueError(f"a tree is built from the calls of one attempt of one execution, not of {len(owners)}")
        tree = cls(*owners.pop())
        names = ("role", "finish_reason", "started_at_s", "finished_at_s", "sampling", "trainable", "provenance")
        scalars = rows.select(["node_id", "parent_node_id", "message_digests", "weight_versions", *names]).to_pylist()
        arrays = [list_values(rows, name) for name in ("input_ids", "output_ids", "output_logprobs")]
        for row, input_ids, output_ids, logprobs in zip(scalars, *arrays, strict=True):
            if row["node_id"] != len(tree):
                raise ValueError(f"calls of {tree.execution_id}: node {len(tree)} is missing or there twice")
            spans = [(span["version"], span["start"], span["end"]) for span in row["weight_versions"]]
            fields = {name: row[name] for name in names}
            tree.add(row["parent_node_id"], row["message_digests"], input_ids, output_ids, logprobs, spans, **fields)
        return tree
