"""One attempt of an execution behind the proxy: its tree, its calls in flight, and which request is a retry.

A request is restored and digested, attached to the deepest whole prefix in the tree, and only what is new is encoded. The
sampled tokens become one node and one row of `calls`; the answer's last event waits until that row is durable.

Retry or new sample: the key is the agent's headers and the body without transport fields. If an earlier call of that key was
not delivered whole and no client of it is connected, the request joins it (or gets its answer again); otherwise it is a new
sample. Calls that no retry can be of are forgotten: each holds a whole history. At closure calls in flight are cancelled and leave
no record; a record being committed is committed.

Fed by the proxy (neutral requests), eaten by it (answers), the store (rows) and `tree_select` (the frozen tree).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from gyre.errors import EngineError, RunError
from gyre.records import load_schema
from gyre.rollout.answers import AnswerReader, CallIds
from gyre.rollout.call import Call, Progress, complete
from gyre.rollout.engines.protocol import Generation, SamplingParams
from gyre.rollout.generation import EngineCaller, SamplingRules
from gyre.rollout.renderer import Renderer, TemplateRefusedError
from gyre.rollout.stopping import end_at_stop
from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, bad_request, not_authorized, prompt_too_long
from gyre.trajectory.messages import Message
from gyre.trajectory.restore import ToolCallCache, answer_digests, history_digests, is_blank, message_digest, restore_history
from gyre.trajectory.roles import RequestFacts, RoleRules
from gyre.trajectory.tree import Match, TrajectoryTree

OnCall = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Makes one row of `calls` durable; awaited before the answer ends."""

AGENT_HEADERS = ("x-agent-id", "x-claude-code-agent-id", "x-openai-subagent", "x-codex-parent-thread-id", "thread-id", "x-session-id")
"""Headers that tell apart agents of one execution whose bodies are byte-identical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallServices:
    """What all sessions of a proxy share."""

    renderer: Renderer
    reader: AnswerReader
    caller: EngineCaller
    sampling: SamplingRules
    on_call: OnCall
    clock: Callable[[], float]


class Session:
    """Serves the calls of one attempt of an execution."""

    def __init__(self, execution_id: str, attempt: int, *, roles: RoleRules, services: CallServices) -> None:
        self.tree = TrajectoryTree(execution_id, attempt)
        self.is_closed = False
        self._roles = roles
        self._services = services
        self._cache = ToolCallCache()
        self._ids = CallIds(execution_id, attempt)
        self._undelivered: dict[bytes, list[Call]] = {}
        self._running: set[Call] = set()
        self._num_requests = 0

    def submit(
        self, request: ChatRequest, *, headers: Mapping[str, str], body: Mapping[str, Any], transport_fields: frozenset[str]
    ) -> Call:
        """Join the call that this request repeats, or start a new one."""
        if self.is_closed:
            raise not_authorized()
        key = _call_key(headers, body, transport_fields)
        self._forget_settled()
        earlier = self._undelivered.setdefault(key, [])
        if (joined := next((call for call in earlier if call.can_be_joined()), None)) is not None:
            return joined
        facts = RequestFacts.of(
            request.messages,
            headers=headers,
            fields=body,
            has_tools=bool(request.tools),
            has_forced_tool=request.has_forced_tool,
            server_note=request.server_note,
        )
        call = Call(request, role=self._roles.classify(facts), started_at_s=self._services.clock())
        earlier.append(call)
        self._running.add(call)
        call.task = asyncio.get_running_loop().create_task(self._serve(call))
        return call

    def _forget_settled(self) -> None:
        """Let go of calls that failed or were delivered: nobody can join them any more."""
        kept = {key: [call for call in calls if not call.is_settled] for key, calls in self._undelivered.items()}
        self._undelivered = {key: calls for key, calls in kept.items() if calls}

    async def close(self) -> None:
        """Freeze the records: calls in flight are cancelled, those being committed are waited for."""
        self.is_closed = True
        running = [call for call in self._running if call.task is not None]
        for call in running:
            if not call.is_committing and call.task is not None:
                call.task.cancel()
        await asyncio.gather(*(call.task for call in running if call.task is not None), return_exceptions=True)
        for call in running:
            if not call.is_done:  # cancelled before its first step, so that nothing of `_serve` ran; its client waits
                call.error = not_authorized()
                call.announce()
        self._undelivered.clear()

    async def _serve(self, call: Call) -> None:
        try:
            call.answer = await self._answer(call)
        except WireError as error:
            call.error = error
        except (TemplateRefusedError, RecursionError) as error:
            call.error = bad_request(str(error), param="messages")
        except RunError as error:
            call.error = WireError(503 if isinstance(error, EngineError) else 500, "server_error", str(error))
        except asyncio.CancelledError:
            call.error = not_authorized()
            raise
        except Exception as error:
            call.error = WireError(500, "server_error", f"the proxy failed: {error!r}")
            raise
        finally:
            self._running.discard(call)
            call.announce()

    async def _answer(self, call: Call) -> Answer:
        services, request = self._services, call.request
        history, digests, match = self._locate(request)
        increment, context = self._encode(history, match, request)
        call.num_prompt_tokens = len(context)
        sampling = self._sampling(request, len(context))
        self._num_requests += 1
        progress = Progress(call, services.renderer, services.reader) if request.is_streamed else None
        sampled = await services.caller.generate(self.tree.execution_id, context, sampling, on_progress=progress)
        generation = end_at_stop(sampled, request.stop, services.renderer.open_decoder().feed)
        message, stop_string = self._read(generation, request)
        pieces = list(call.pieces)
        seen = complete(pieces, message)
        call.is_committing = True
        node_id = self._record(call, match, digests, increment, generation, message, sampling)
        if seen is not message:
            self.tree.alias(node_id, message_digest(seen, self._cache))
        if is_blank(message):
            self._cache.remember_unanswered(history[-1])
        await services.on_call(call_row(self.tree, node_id))
        call.pieces = pieces
        return Answer(
            answer_id=f"{self.tree.execution_id}-{self.tree.attempt}-{node_id}",
            message=message,
            finish_reason=generation.finish_reason or "stop",
            prompt_tokens=len(context),
            completion_tokens=len(generation.output_ids),
            cached_tokens=generation.cached_tokens,
            created_at_s=call.started_at_s,
            stop_string=stop_string,
        )

    def count_tokens(self, request: ChatRequest) -> int:
        """Tokens that the request's context would have.

        Raises:
            WireError: the model's template cannot render it.
        """
        try:
            history, _, match = self._locate(request)
            return len(self._encode(history, match, request)[1])
        except (TemplateRefusedError, RecursionError) as error:
            raise bad_request(str(error), param="messages") from error

    def _locate(self, request: ChatRequest) -> tuple[list[Message], list[str], Match]:
        """The restored history, its digests, and where it attaches."""
        history = restore_history(request.messages, self._cache)
        digests = history_digests(history, self._cache, tools=request.tools)
        return history, digests, self.tree.match(digests)

    def _encode(self, history: Sequence[Message], match: Match, request: ChatRequest) -> tuple[list[int], Any]:
        """Tokens of the increment, and the whole context."""
        renderer = self._services.renderer
        if match.node_id is None:
            increment = renderer.render_prefix(history, request.tools)
            return increment, np.asarray(increment, dtype=np.int32)
        past = self.tree.context(match.node_id)
        is_closed = len(past) > 0 and int(past[-1]) == renderer.turn_end_id
        increment = renderer.render_delta(history[match.num_messages :], request.tools, is_turn_closed=is_closed)
        return increment, np.concatenate([past, np.asarray(increment, dtype=np.int32)])

    def _sampling(self, request: ChatRequest, num_context: int) -> SamplingParams:
        rules = self._services.sampling
        if num_context >= rules.context_limit:
            raise prompt_too_long(num_context, rules.context_limit)
        asked = request.max_tokens or rules.max_new_tokens
        return SamplingParams(
            max_new_tokens=min(rules.max_new_tokens, asked, rules.context_limit - num_context),
            temperature=rules.temperature,
            stop_token_ids=self._services.renderer.stop_token_ids,
            stop=request.stop,
            sampling_seed=rules.seed_of(self.tree.execution_id, self.tree.attempt, self._num_requests),
        )

    def _read(self, generation: Generation, request: ChatRequest) -> tuple[Message, str | None]:
        """The answer's message, and the client's stop string that ended it."""
        text = self._services.renderer.answer_text(generation.output_ids)
        places = [(place, stop) for stop in request.stop if (place := text.find(stop)) >= 0]
        place, stop_string = min(places, default=(len(text), None))
        is_cut = generation.finish_reason == "length" or stop_string is not None
        answer = self._services.reader.read(text[:place], request.tools, is_cut=is_cut)
        return answer.to_message(self._ids), stop_string

    def _record(
        self,
        call: Call,
        match: Match,
        digests: Sequence[str],
        increment: Sequence[int],
        generation: Generation,
        message: Message,
        sampling: SamplingParams,
    ) -> int:
        """Add the finished generation to the tree."""
        forms = answer_digests(message, self._cache)
        # A server without exact spans tells its version at the end only: after a retraction the span may mix two.
        is_exact = generation.has_exact_versions or generation.num_retractions == 0
        node_id = self.tree.add(
            match.node_id,
            [*digests[match.num_messages :], forms[0]],
            increment,
            generation.output_ids,
            generation.output_logprobs,
            [(span.version, span.start, span.end) for span in generation.weight_versions],
            role=call.role,
            finish_reason=generation.finish_reason or "stop",
            started_at_s=call.started_at_s,
            finished_at_s=self._services.clock(),
            sampling=_sampling_json(call.request, sampling, is_exact=is_exact),
            trainable=is_exact,
            is_blank=is_blank(message),
        )
        for form in forms[1:]:
            self.tree.alias(node_id, form)
        return node_id


def call_row(tree: TrajectoryTree, node_id: int) -> dict[str, Any]:
    """`tree.row(node_id)` without a detour over Arrow, which would be a fifth of a call's cost."""
    node = tree.nodes[node_id]
    made: dict[str, Any] = {
        "execution_id": tree.execution_id,
        "attempt": tree.attempt,
        "call_index": node_id,
        "messages": len(node.message_digests),
        "message_digests": list(node.message_digests),
        "input_ids": node.input_ids.tolist(),
        "output_ids": node.output_ids.tolist(),
        "output_logprobs": node.output_logprobs.tolist(),
        "weight_versions": [span._asdict() for span in node.weight_versions],
    }
    return {name: made[name] if name in made else getattr(node, name) for name in load_schema("calls.v1").names}


def _call_key(headers: Mapping[str, str], body: Mapping[str, Any], transport_fields: frozenset[str]) -> bytes:
    agent = [headers.get(name, "") for name in AGENT_HEADERS]
    asked = {name: value for name, value in body.items() if name not in transport_fields}
    try:
        data = orjson.dumps([agent, asked], option=orjson.OPT_SORT_KEYS)
    except TypeError:  # half characters and huge numbers, which are no proper JSON
        data = json.dumps([agent, asked], sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=16).digest()


def _sampling_json(request: ChatRequest, sampling: SamplingParams, *, is_exact: bool) -> str:
    used: dict[str, Any] = {"temperature": sampling.temperature, "max_new_tokens": sampling.max_new_tokens}
    if sampling.stop:
        used["stop"] = list(sampling.stop)
    if sampling.sampling_seed is not None:
        used["seed"] = sampling.sampling_seed
    record = {"asked": dict(request.asked), "used": used, **({} if is_exact else {"versions": "mixed"})}
    return json.dumps(record, separators=(",", ":"))
