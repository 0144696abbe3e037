"""Tree: what a call sequence costs in memory, and how long one call takes to find its place.

An execution shaped like Appendix C (636 requests, about 42 M tokens in all of them together, 0.87 M unique) is inserted from message
digests and new tokens, as the proxy has them after parsing and restoring a body. Figures:

- `held_over_unique`: tokens held in memory over tokens of the distinct message paths, counted without the tree;
- `insert_p99_ms`, `insert_p50_ms`: match plus add, per call the median of the rounds;
- `last_over_first`: median insertion of the last tenth of the calls over that of the first;
- `calls`, `cumulative_tokens`, `unique_tokens`: what was inserted.

Settings: `rounds` (5), `seed` (0) of the interleaving, `scale` (1.0) by which the lengths of the messages are multiplied.

Input: JSON Lines, one call per line in the order of the calls: {"messages": [["digest", tokens], ...], "answer": ["digest", tokens]}
with the whole history of the request in `messages`; `tokens` is a number of tokens or a list of token ids, equal digests have equal
tokens; "role" (main, main-summary, sub-agent, sub-agent-summary, side) may be added.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gyre.bench._appendix_c import Digests, MessageTokens, play
from gyre.bench._measuring import Limit, Line, outcome, percentile, read_lines, read_options
from gyre.errors import UserError
from gyre.trajectory.tree import TrajectoryTree

LIMITS: Mapping[str, Limit] = {
    "held_over_unique": Limit(at_most=1.05),
    "insert_p99_ms": Limit(at_most=1.0),
    "last_over_first": Limit(at_most=1.5),
}

VOCABULARY = 150_000
"""Made-up token ids lie below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    rounds: int = 5
    """Times the sequence is inserted into an empty tree."""
    seed: int = 0
    """Of the interleaving of the lineages."""
    scale: float = 1.0
    """Factor on the lengths of messages."""
    input: Path | None = None
    """Calls from outside."""


class InsertedCall(NamedTuple):
    """One call as the tree sees it."""

    digests: list[str]
    """Of the request's messages, the whole history."""
    tokens: list[NDArray[np.int32]]
    """Of the same messages."""
    answer_digest: str
    """Of the answer."""
    answer_ids: NDArray[np.int32]
    """Sampled tokens."""
    role: str
    """Class of the call."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Insert the calls several times and compare the tree with a count of its own."""
    options = read_options(Options, settings, name="tree")
    calls = list(_read_calls(options.input) if options.input else _appendix_c(options))
    if not calls:
        raise UserError(f"the input file {options.input} holds no call", hint="write one call per line")
    try:
        rounds = [_insert(calls) for _ in range(max(1, options.rounds))]
    except ValueError as error:
        raise UserError(f"the calls of {options.input} make no tree: {error}", hint=_FORM) from error
    tree = rounds[-1].tree
    times_ms = np.median([found.times_ms for found in rounds], axis=0).tolist()
    tenth = max(1, len(calls) // 10)
    unique = _unique_tokens(calls)
    figures = {
        "held_over_unique": _held_tokens(tree) / unique,
        "insert_p99_ms": percentile(times_ms, 0.99),
        "last_over_first": float(np.median(times_ms[-tenth:]) / np.median(times_ms[:tenth])),
        "insert_p50_ms": percentile(times_ms, 0.5),
        "calls": len(calls),
        "cumulative_tokens": sum(sum(map(len, call.tokens)) for call in calls),
        "unique_tokens": unique,
    }
    return outcome("tree", figures, LIMITS)


class _Round(NamedTuple):
    tree: TrajectoryTree
    times_ms: list[float]


def _insert(calls: Sequence[InsertedCall]) -> _Round:
    tree = TrajectoryTree("g000000-00", 1)
    times_ms: list[float] = []
    for call in calls:
        # Digests of a request are new strings: a hash that Python remembers in an old one would be a gift.
        digests = [digest.encode().decode() for digest in call.digests]
        begun = time.perf_counter()
        found = tree.match(digests)
        matched_s = time.perf_counter() - begun
        parts = call.tokens[found.num_messages :]
        input_ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        logprobs = np.full(len(call.answer_ids), -0.5, dtype=np.float32)
        spans = [(0, 0, len(call.answer_ids))] if len(call.answer_ids) else []
        begun = time.perf_counter()
        tree.add(
            found.node_id,
            [*digests[found.num_messages :], call.answer_digest],
            input_ids,
            call.answer_ids,
            logprobs,
            spans,
            role=call.role,
            finish_reason="stop",
            started_at_s=0.0,
            finished_at_s=1.0,
        )
        times_ms.append(1000 * (matched_s + time.perf_counter() - begun))
    return _Round(tree, times_ms)


def _held_tokens(tree: TrajectoryTree) -> int:
    """Tokens in memory that the tree's arrays own; a view on another array holds none."""
    arrays = [array for node in tree.nodes for array in (*node.input_parts, node.output_ids)]
    return sum(len(array) for array in arrays if array.base is None)


def _unique_tokens(calls: Sequence[InsertedCall]) -> int:
    """Tokens of all message paths when equal beginnings are merged, message by message."""
    paths: dict[tuple[int, str], int] = {}
    total = 0
    for call in calls:
        path = 0
        for digest, tokens in zip([*call.digests, call.answer_digest], [*call.tokens, call.answer_ids], strict=True):
            if (path, digest) not in paths:
                paths[path, digest] = len(paths) + 1
                total += len(tokens)
            path = paths[path, digest]
    return total


def _appendix_c(options: Options) -> Iterator[InsertedCall]:
    tokens, digests = MessageTokens(scale=options.scale), Digests()
    for request in play(np.random.default_rng(options.seed)):
        yield InsertedCall(
            digests=digests.of(request.history),
            tokens=[tokens.of(message) for message in request.history],
            answer_digest=digests.of([request.answer])[0],
            answer_ids=tokens.of(request.answer),
            role=request.role,
        )


def _read_calls(path: Path) -> Iterator[InsertedCall]:
    for line in read_lines(path):
        known = isinstance(line.value, dict) and isinstance(line.value.get("messages"), list) and "answer" in line.value
        if not known:
            raise UserError(f"{line.place}: a call is an object with messages and answer", hint=_FORM)
        history = [_read_message(item, line) for item in line.value["messages"]]
        answer = _read_message(line.value["answer"], line)
        yield InsertedCall(
            digests=[digest for digest, _ in history],
            tokens=[tokens for _, tokens in history],
            answer_digest=answer[0],
            answer_ids=answer[1],
            role=line.value.get("role", "main"),
        )


_FORM = 'write {"messages": [["digest", tokens], ...], "answer": ["digest", tokens]}, tokens being a number or a list of ids'


def _read_message(item: Any, line: Line) -> tuple[str, NDArray[np.int32]]:
    match item:
        case [str(digest), bool()]:
            pass
        case [str(digest), int(count)] if count >= 0:
            return digest, np.random.default_rng([*digest.encode()]).integers(VOCABULARY, size=count, dtype=np.int32)
        case [str(digest), list(ids)] if all(isinstance(token, int) for token in ids):
            return digest, np.array(ids, dtype=np.int32)
        case _:
            pass
    raise UserError(f"{line.place}: {str(item)[:60]} is no message", hint=_FORM)
