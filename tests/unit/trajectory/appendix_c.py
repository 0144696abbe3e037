"""A synthetic execution with the structure that Appendix C of the paper publishes, made of whole requests.

Two agents with their own system prompts; both compact. Messages: 1,347 unique, 1,716 when the ten paths are expanded, in 636
requests. The 369 extra ones are 168 + 193 shared after the system prompts, and the two system prompts repeated 2 + 6 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from trajectory_toys import ToyProxy

from gyre.trajectory.messages import Message

MAIN = Message(role="system", text="You are the main agent.")
SUB = Message(role="system", text="You are a sub-agent.")


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


def _turns(lineage: Lineage, *, tag: str) -> list[list[Message]]:
    """Messages between the system prompt and the end, one list per call, the answer last; extra ones go to the first calls."""
    extra = lineage.num_messages - 2 * lineage.num_calls
    turns: list[list[Message]] = []
    for number in range(lineage.num_calls):
        supplied = 1 + extra // lineage.num_calls + (number < extra % lineage.num_calls)
        answer = Message(role="assistant", text=f"{tag} answer {number}")
        turns.append([*(Message(role="user", text=f"{tag} input {number}.{i}") for i in range(supplied)), answer])
    return turns


def conversations() -> dict[str, list[list[Message]]]:
    """The turns of every lineage; a fork starts with those of the lineage it forks from."""
    found: dict[str, list[list[Message]]] = {}
    for lineage in LINEAGES:
        turns = _turns(lineage, tag=lineage.forks_from or lineage.name)
        if lineage.forks_from:
            turns[-1] = [Message(role="user", text="Summarize the work so far."), Message(role="assistant", text=f"{lineage.name} summary")]
        found[lineage.name] = turns
    return found


def _requests(lineage: Lineage, turns: list[list[Message]]) -> Iterator[tuple[list[Message], Message, str]]:
    shared_turns = 0
    history = [lineage.system]
    while sum(map(len, turns[:shared_turns])) < lineage.shared:
        history += turns[shared_turns]
        shared_turns += 1
    for turn in turns[shared_turns:]:
        history = [*history, *turn[:-1]]
        last = turn is turns[-1]
        base = "main" if lineage.system is MAIN else "sub-agent"
        yield history, turn[-1], lineage.role if last else base
        history = [*history, turn[-1]]


def play(rng: np.random.Generator) -> ToyProxy:
    """Send every request of the execution through a toy proxy, concurrent lineages interleaved at random."""
    proxy = ToyProxy("g000042-07")
    found = conversations()
    live = {lineage.name: _requests(lineage, found[lineage.name]) for lineage in LINEAGES}
    finished: set[str] = set()
    while live:
        ready = [item for item in LINEAGES if item.name in live and (not item.forks_from or item.forks_from in finished)]
        lineage = ready[int(rng.integers(len(ready)))]
        step = next(live[lineage.name], None)
        if step is None:
            finished.add(lineage.name)
            del live[lineage.name]
        else:
            history, answer, role = step
            proxy.call(history, answer, role=role, num_output=int(rng.integers(1, 40)))
    return proxy
