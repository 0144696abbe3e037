"""Toy executions for the tests of gyre.trajectory: a tokenizer of one token per word, a proxy in miniature, random trees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from gyre.trajectory.messages import Message
from gyre.trajectory.restore import ToolCallCache, answer_digests, history_digests, is_blank, restore_history
from gyre.trajectory.tree import TrajectoryTree

ROLES = ("main", "main-summary", "sub-agent", "sub-agent-summary")


class ToyProxy:
    """What the proxy does with a request, without wire, renderer and engine: match, encode what is new, sample, add."""

    def __init__(self, execution_id: str = "g000000-00") -> None:
        self.tree = TrajectoryTree(execution_id, 1)
        self.cache = ToolCallCache()
        self.engine_inputs: list[list[int]] = []
        self._tokens = itertools.count(1)

    def call(self, messages: Sequence[Message], answer: Message, *, role: str = "main", num_output: int = 3) -> int:
        """Serve a request with a scripted answer; every token ever made is a new number, so contexts are told apart."""
        history = restore_history(messages, self.cache)
        digests = history_digests(history, self.cache)
        found = self.tree.match(digests)
        new = history[found.num_messages :]
        input_ids = [next(self._tokens) for _ in range(2 * len(new) + 1)]
        self.engine_inputs.append([*self.tree.context(found.node_id).tolist(), *input_ids])
        output_ids = [next(self._tokens) for _ in range(num_output)]
        first, *others = answer_digests(answer, self.cache)
        node = self.tree.add(
            found.node_id,
            [*digests[found.num_messages :], first],
            input_ids,
            output_ids,
            [-0.01 * token for token in output_ids],
            [(0, 0, num_output)],
            role=role,
            finish_reason="stop",
            started_at_s=0.0,
            finished_at_s=1.0,
            is_blank=is_blank(answer),
        )
        for digest in others:
            self.tree.alias(node, digest)
        return node


def add_node(tree: TrajectoryTree, parent: int | None, *, role: str, num_input: int, num_output: int, trainable: bool = True) -> int:
    """Append a node whose tokens and digests are its own."""
    number = len(tree)
    output_ids = np.arange(num_output) + 1000 * number + 500
    return tree.add(
        parent,
        [f"in{number}", f"out{number}"],
        np.arange(num_input) + 1000 * number,
        output_ids,
        -0.001 * output_ids,
        [(number // 3, 0, num_output)] if num_output else [],
        role=role,
        finish_reason="stop",
        started_at_s=0.0,
        finished_at_s=1.0,
        trainable=trainable,
    )


@st.composite
def trees(draw: st.DrawFn, *, roles: Sequence[str] = (*ROLES, "side"), max_nodes: int = 16) -> TrajectoryTree:
    """Any tree: forks, several roots, untrainable and empty outputs, every mixture of roles."""
    tree = TrajectoryTree(draw(st.sampled_from(["g000000-00", "g000003-01", "g000009-15"])), 1)
    for number in range(draw(st.integers(0, max_nodes))):
        add_node(
            tree,
            draw(st.none() | st.integers(0, number - 1)) if number else None,
            role=draw(st.sampled_from(list(roles))),
            num_input=draw(st.integers(1, 4)),
            num_output=draw(st.integers(0, 5)),
            trainable=draw(st.integers(0, 5)) > 0,
        )
    return tree
