"""Retention: whether every sampled token of a long history stays a target, however the harness echoes it and the model spells it.

Conversations of 200 turns go through the proxy's session (wire, restoration, digests, tree, chat template) with token drift p in
{0, .05, .2, 1} and echo rewriting p in {0, .05, 1}; then as many trajectories are drawn as there are true lineages. Figures, the
worst of all cells or files:

- `min_kept`: share of sampled tokens that are targets;
- `max_paths_per_lineage`: paths into which the calls of one agent fell;
- `exact_contexts`: whether every call's tokens, as the engine got them, are those stored along its path;
- `verbatim_min_kept`, `verbatim_max_paths`: the same two where messages must be echoed byte by byte, as a plain prefix match asks;
- `p50_ms`: median time of a call in the session.

Settings: `turns` (200), `sub_agent_turns` (20), `drifts` and `rewritings` (lists of probabilities), `seed` (0).

Input: JSON Lines, one model call per line, in order: {"lineage": "main", "body": {...}, "answer": {...}, "output_ids": [...]}. `body` is
the chat completions body that the harness sent, with the whole history; `answer` the assistant's message that it got, with its
tool-call ids; instead of `output_ids` a number of tokens may stand as "output_tokens". Calls with equal "execution" (a text, may be left
out) belong together.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gyre.bench._conversations import HistoryCall, make_calls
from gyre.bench._measuring import Limit, Line, outcome, read_lines, read_options, shipped_model_dir
from gyre.errors import UserError
from gyre.rollout.answers import AnswerReader, CallIds
from gyre.rollout.call import Call
from gyre.rollout.engines.protocol import Generation, SamplingParams, VersionSpan
from gyre.rollout.generation import EngineCaller, SamplingRules
from gyre.rollout.renderer import Renderer
from gyre.rollout.session import CallServices, Session
from gyre.rollout.wires import openai_chat
from gyre.rollout.wires.neutral import WireError
from gyre.trajectory.messages import Message
from gyre.trajectory.roles import RoleRules
from gyre.trajectory.sampling import select_trajectories
from gyre.trajectory.tree import TrajectoryTree

LIMITS: Mapping[str, Limit] = {
    "min_kept": Limit(at_least=1.0),
    "max_paths_per_lineage": Limit(at_most=1),
    "exact_contexts": Limit(at_least=1),
}

EXECUTION_ID = "g000000-00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    turns: int = 200
    """Calls of the main agent."""
    sub_agent_turns: int = 20
    """Calls of each of its two sub-agents."""
    drifts: tuple[float, ...] = (0, 0.05, 0.2, 1)
    """Probabilities that an answer is sampled in other tokens than its text has."""
    rewritings: tuple[float, ...] = (0, 0.05, 1)
    """Probabilities that a message is echoed in another form."""
    seed: int = 0
    """Of everything that is drawn."""
    input: Path | None = None
    """Histories from outside."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Send every conversation through a session and look at its tree."""
    options = read_options(Options, settings, name="retention")
    model_dir = shipped_model_dir()
    renderer = Renderer(model_dir)
    executions = _read_executions(options.input) if options.input else _make_executions(options, model_dir)
    kept = [asyncio.run(_follow(calls, renderer)) for calls in executions]
    if not kept:
        raise UserError("there is no call to follow", hint="write one call per line into the input file, or set turns above 0")
    figures = {
        "min_kept": min(item.share for item in kept),
        "max_paths_per_lineage": max(item.paths for item in kept),
        "exact_contexts": all(item.is_exact for item in kept),
        "verbatim_min_kept": min(item.verbatim_share for item in kept),
        "verbatim_max_paths": max(item.verbatim_paths for item in kept),
        "p50_ms": statistics.median(t for item in kept for t in item.times_ms),
    }
    return outcome("retention", figures, LIMITS)


class Kept(NamedTuple):
    """What became of one execution."""

    share: float
    paths: int
    is_exact: bool
    verbatim_share: float
    verbatim_paths: int
    times_ms: list[float]


class _Script:
    """Engine, answer reader and store of a session, for one call after another."""

    def __init__(self) -> None:
        self.contexts: list[NDArray[np.int32]] = []
        self._call: HistoryCall | None = None
        self._answer = Message(role="assistant")

    def prepare(self, call: HistoryCall) -> None:
        """Take the call whose answer comes next."""
        self._call = call
        self._answer = openai_chat.parse_request({"messages": [call.answer]}).messages[0]

    async def generate(self, execution_id: str, input_ids: NDArray[np.int32], sampling: SamplingParams, **_: Any) -> Generation:
        """`EngineCaller.generate`: the prepared tokens."""
        assert self._call is not None
        self.contexts.append(input_ids)
        ids = self._call.output_ids
        spans = [VersionSpan(0, 0, len(ids))] if ids else []
        return Generation(output_ids=ids, output_logprobs=[-0.5] * len(ids), weight_versions=spans, finish_reason="stop")

    def read(self, text: str, tools: Sequence[Any], *, is_cut: bool) -> _Script:
        """`AnswerReader.read`: whatever was sampled, the prepared answer was read from it."""
        return self

    def to_message(self, ids: CallIds) -> Message:
        """`ReadAnswer.to_message`: with the ids that the harness knows."""
        return self._answer

    async def on_call(self, row: Mapping[str, Any]) -> None:
        """`OnCall`: nothing is kept."""


async def _follow(calls: Sequence[HistoryCall], renderer: Renderer) -> Kept:
    """Send the calls of one execution through a session."""
    script = _Script()
    services = CallServices(
        renderer=renderer,
        reader=cast(AnswerReader, script),
        caller=cast(EngineCaller, script),
        sampling=SamplingRules(context_limit=2**31 - 1, max_new_tokens=2**20),
        on_call=script.on_call,
        clock=time.time,
    )
    session = Session(EXECUTION_ID, 1, roles=RoleRules.from_profile({}), services=services)
    times_ms: list[float] = []
    for call in calls:
        script.prepare(call)
        begun = time.perf_counter()
        submitted = await _submit(session, call)
        times_ms.append(1000 * (time.perf_counter() - begun))
        if submitted.error is not None:
            raise UserError(f"a call of {call.lineage} is refused: {submitted.error.message}", hint="correct its body")
        submitted.is_delivered = True
    lineages = [call.lineage for call in calls]
    verbatim = _verbatim_tree(calls)
    return Kept(
        share=_kept_share(session.tree, lineages),
        paths=_most_paths(session.tree, lineages),
        is_exact=_has_exact_contexts(session.tree, script.contexts),
        verbatim_share=_kept_share(verbatim, lineages),
        verbatim_paths=_most_paths(verbatim, lineages),
        times_ms=times_ms,
    )


async def _submit(session: Session, call: HistoryCall) -> Call:
    try:
        request = openai_chat.parse_request(call.body)
    except WireError as error:
        raise UserError(f"a body of {call.lineage} is no chat completions body: {error.message}") from error
    submitted = session.submit(request, headers={}, body=call.body, transport_fields=frozenset())
    await submitted.wait_done()
    return submitted


def _verbatim_tree(calls: Sequence[HistoryCall]) -> TrajectoryTree:
    """The tree of a proxy that knows a history only if every message comes back byte by byte."""
    tree = TrajectoryTree(EXECUTION_ID, 1)
    for call in calls:
        digests = [_verbatim(message) for message in call.body["messages"]]
        found = tree.match(digests)
        num = len(call.output_ids)
        fields: dict[str, Any] = {"role": "main", "finish_reason": "stop", "started_at_s": 0.0, "finished_at_s": 0.0}
        increment = [*digests[found.num_messages :], _verbatim(call.answer)]
        tree.add(found.node_id, increment, [0], call.output_ids, [-0.5] * num, [(0, 0, num)] if num else [], **fields)
    return tree


def _verbatim(message: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(message).encode(), digest_size=16).hexdigest()


def _kept_share(tree: TrajectoryTree, lineages: Sequence[str]) -> float:
    """Share of sampled tokens that are targets when one trajectory is drawn for each true lineage."""
    drawn = select_trajectories(tree, j_max=len(set(lineages)), seed=0, execution_id=EXECUTION_ID)
    sampled = sum(len(node.output_ids) for node in tree.nodes)
    return sum(item.num_targets for item in drawn) / sampled if sampled else 1.0


def _most_paths(tree: TrajectoryTree, lineages: Sequence[str]) -> int:
    """Most calls of one lineage that no other call of it continues."""
    continued = {node.parent_node_id for node in tree.nodes if _is_same_lineage(node.parent_node_id, node.node_id, lineages)}
    return max(Counter(lineages[node.node_id] for node in tree.nodes if node.node_id not in continued).values())


def _is_same_lineage(parent: int | None, child: int, lineages: Sequence[str]) -> bool:
    return parent is not None and lineages[parent] == lineages[child]


def _has_exact_contexts(tree: TrajectoryTree, contexts: Sequence[NDArray[np.int32]]) -> bool:
    for node, given in zip(tree.nodes, contexts, strict=True):
        stored = tree.context(node.node_id)
        if not np.array_equal(stored[: len(stored) - len(node.output_ids)], given):
            return False
    return True


def _make_executions(options: Options, model_dir: Path) -> Iterator[list[HistoryCall]]:
    for drift in options.drifts:
        for rewriting in options.rewritings:
            yield list(
                make_calls(
                    model_dir,
                    turns=options.turns,
                    sub_agent_turns=options.sub_agent_turns,
                    drift=drift,
                    rewriting=rewriting,
                    seed=options.seed,
                )
            )


def _read_executions(path: Path) -> Iterator[list[HistoryCall]]:
    executions: dict[str, list[HistoryCall]] = {}
    for line in read_lines(path):
        known = isinstance(line.value, dict) and all(isinstance(line.value.get(name), dict) for name in ("body", "answer"))
        if not known:
            raise _not_a_call(line)
        execution = str(line.value.get("execution", ""))
        executions.setdefault(execution, []).append(_read_call(line, len(executions.get(execution, ()))))
    yield from executions.values()


def _read_call(line: Line, number: int) -> HistoryCall:
    ids, count = line.value.get("output_ids"), line.value.get("output_tokens")
    if ids is None and isinstance(count, int) and count >= 0:
        ids = [3 + (number + place) % 200 for place in range(count)]
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise _not_a_call(line)
    lineage = str(line.value.get("lineage", "main"))
    return HistoryCall(lineage=lineage, body=line.value["body"], answer=line.value["answer"], output_ids=ids)


def _not_a_call(line: Line) -> UserError:
    form = '{"lineage": "main", "body": {...}, "answer": {...}, "output_ids": [...]}'
    return UserError(f"{line.place}: {str(line.value)[:60]} is no call", hint=f"write {form}")
