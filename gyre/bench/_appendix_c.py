"""An execution with the structure that Appendix C of the paper publishes, made of whole requests.

Two agents with their own system prompts; both compact. Messages: 1,347 unique, 1,716 when the ten paths are expanded, in 636
requests. The 369 extra ones are 168 + 193 shared after the system prompts, and the two system prompts repeated 2 + 6 times. The
paper publishes no token counts: the benchmarks draw them so that the requests hold about 42 M tokens, 0.87 M of them unique.

Fed to the benchmarks `tree` and `select` and to the tests of the trajectory room.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gyre.trajectory.messages import Message
from gyre.trajectory.restore import ToolCallCache, message_digest
from gyre.trajectory.tree import TrajectoryTree

MAIN = Message(role="system", text="You are the main agent.")
SUB = Message(role="system", text="You are a sub-agent.")
NUM_MESSAGES = 1347
"""Unique messages, the system prompts counted once each."""
NUM_EXPANDED = 1716
"""Messages of the ten paths, each counted whole."""

SYSTEM_TOKENS = 1_500
"""Tokens of a system prompt with its tools."""
MEAN_MESSAGE_TOKENS = 675
"""Mean of the other messages: with the system prompts, 0.87 M unique tokens."""
MESSAGE_SIGMA = 0.8
"""Of the log-normal lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One path: messages after the system prompt, how many of them are the policy's, and the class of its last call."""

    name: str
    system: Message
    num_messages: int
    num_calls: int
    role: str
    forks_from: str = ""
    """Lineage whose first messages it shares."""
    shared: int = 0
    """How many messages after the system prompt it shares."""


# The main agent: 168 shared messages, then a response, or the request for a summary and the summary; then the continuation. The
# catalog sub-agent does the same after 193. FDW has an interrupted attempt of 53 messages and one of 202.
LINEAGES = (
    Lineage(name="main-1", system=MAIN, num_messages=170, num_calls=85, role="main"),
    Lineage(name="main-s", system=MAIN, num_messages=170, num_calls=85, role="main-summary", forks_from="main-1", shared=168),
    Lineage(name="main-2", system=MAIN, num_messages=292, num_calls=130, role="main"),
    Lineage(name="catalog-1", system=SUB, num_messages=195, num_calls=89, role="sub-agent"),
    Lineage(name="catalog-s", system=SUB, num_messages=195, num_calls=89, role="sub-agent-summary", forks_from="catalog-1", shared=193),
    Lineage(name="catalog-2", system=SUB, num_messages=149, num_calls=74, role="sub-agent"),
    Lineage(name="fdw-1", system=SUB, num_messages=52, num_calls=26, role="sub-agent"),
    Lineage(name="fdw-2", system=SUB, num_messages=201, num_calls=90, role="sub-agent"),
    Lineage(name="dbt", system=SUB, num_messages=145, num_calls=72, role="sub-agent"),
    Lineage(name="pipeline", system=SUB, num_messages=137, num_calls=68, role="sub-agent"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call of the execution."""

    history: tuple[Message, ...]
    """What the harness sends."""
    answer: Message
    """What the model gives back."""
    role: str
    """Class of the call."""


def play(rng: np.random.Generator) -> Iterator[Request]:
    """Every request of the execution in an order that could have been: concurrent lineages are interleaved at random."""
    live = {lineage.name: _requests(lineage) for lineage in LINEAGES}
    finished: set[str] = set()
    while live:
        ready = [item for item in LINEAGES if item.name in live and (not item.forks_from or item.forks_from in finished)]
        lineage = ready[int(rng.integers(len(ready)))]
        request = next(live[lineage.name], None)
        if request is None:
            finished.add(lineage.name)
            del live[lineage.name]
        else:
            yield request


def _turns(lineage: Lineage) -> list[list[Message]]:
    """Messages after the system prompt, one list per call, the answer last; a fork starts with those that it shares."""
    tag = lineage.forks_from or lineage.name
    extra = lineage.num_messages - 2 * lineage.num_calls
    turns: list[list[Message]] = []
    for number in range(lineage.num_calls):
        supplied = 1 + extra // lineage.num_calls + (number < extra % lineage.num_calls)
        answer = Message(role="assistant", text=f"{tag} answer {number}")
        turns.append([*(Message(role="user", text=f"{tag} input {number}.{i}") for i in range(supplied)), answer])
    if lineage.forks_from:
        turns[-1] = [Message(role="user", text="Summarize the work so far."), Message(role="assistant", text=f"{lineage.name} summary")]
    return turns


def _requests(lineage: Lineage) -> Iterator[Request]:
    turns = _turns(lineage)
    base = "main" if lineage.system is MAIN else "sub-agent"
    history: tuple[Message, ...] = (lineage.system,)
    for turn in turns:
        history += tuple(turn[:-1])
        if len(history) > lineage.shared:
            yield Request(history=history, answer=turn[-1], role=lineage.role if turn is turns[-1] else base)
        history += (turn[-1],)


class MessageTokens:
    """Made-up tokens of messages, the same for the same message."""

    def __init__(self, *, scale: float = 1.0) -> None:
        """Take `scale`, by which all lengths are multiplied."""
        self._scale = scale
        self._known: dict[Message, np.ndarray] = {}

    def of(self, message: Message) -> np.ndarray:
        """Token ids of a message."""
        if message not in self._known:
            seed = int.from_bytes(hashlib.sha256(f"{message.role}/{message.text}".encode()).digest()[:8], "little")
            rng = np.random.default_rng(seed)
            mean = np.log(MEAN_MESSAGE_TOKENS) - MESSAGE_SIGMA**2 / 2
            length = SYSTEM_TOKENS if message.role == "system" else rng.lognormal(mean, MESSAGE_SIGMA)
            self._known[message] = rng.integers(150_000, size=max(1, round(self._scale * length)), dtype=np.int32)
        return self._known[message]


def grow_tree(rng: np.random.Generator, tokens: MessageTokens) -> TrajectoryTree:
    """The tree of the execution."""
    tree, digests = TrajectoryTree("g000042-07", 1), Digests()
    for request in play(rng):
        listed = digests.of(request.history)
        found = tree.match(listed)
        output = tokens.of(request.answer)
        tree.add(
            found.node_id,
            [*listed[found.num_messages :], *digests.of([request.answer])],
            np.concatenate([tokens.of(message) for message in request.history[found.num_messages :]]),
            output,
            np.full(len(output), -0.5, dtype=np.float32),
            [(0, 0, len(output))],
            role=request.role,
            finish_reason="stop",
            started_at_s=0.0,
            finished_at_s=1.0,
        )
    return tree


class Digests:
    """Digests of messages, each message digested once."""

    def __init__(self) -> None:
        self._cache = ToolCallCache()
        self._known: dict[Message, str] = {}

    def of(self, messages: tuple[Message, ...] | list[Message]) -> list[str]:
        """Digest of each message."""
        return [self._known.get(message) or self._add(message) for message in messages]

    def _add(self, message: Message) -> str:
        self._known[message] = message_digest(message, self._cache)
        return self._known[message]
