"""Restoration and canonical form: which echoed history is the one that was recorded (paper §5.1).

Harnesses send their history back rewritten. Two things are done before matching. *Restoration* puts back what is ours: a tool
call whose id we gave out gets its original payload, parallel tool results stand in the order of their calls. *Digesting* then
reduces each message to what identifies it, so that no reformatting shows:

- a tool call with an id of ours is known by that id alone; an unknown one by its name and canonical arguments (key order,
  spaces, escapes and number formats do not matter);
- an assistant's text is known by its non-space characters, its thinking not at all (harnesses drop, move and trim them);
- an answer that showed nothing may be missing, with what the harness says of it glued to the message before it;
- null, missing and empty content are the same; outer space and carriage returns of other texts are ignored.

What remains different was really changed by the harness and is new content. Nothing here is rendered for the model except the
restored messages. Fed by the wires, eaten by `tree` (digests) and the renderer (restored messages).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from gyre.trajectory.messages import Message, ToolCall, ToolSpec

DIGEST_CHARS = 32
"""Hexadecimal digits kept of a SHA-256, which processors compute faster than any other: 128 bits."""


class ToolCallCache:
    """Original tool-call payloads of one execution, by call id.

    >>> cache = ToolCallCache()
    >>> cache.remember([ToolCall(id="c1", name="edit", arguments_json='{ "n": 5000.0 }')])
    >>> echoed = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="edit", arguments_json='{"n":5000,"all":false}'),))
    >>> cache.restore(echoed).tool_calls[0].arguments_json
    '{ "n": 5000.0 }'
    """

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}
        self._unanswered: set[str] = set()

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._calls

    def remember(self, calls: Iterable[ToolCall]) -> None:
        """Keep the calls of an answer as the model made them; the first payload of an id stays."""
        for call in calls:
            if call.id:
                self._calls.setdefault(call.id, call)

    def remember_unanswered(self, message: Message) -> None:
        """Keep a request's last message whose answer showed nothing: a harness drops the answer and adds blocks to this message."""
        if message.role == "user":
            self._unanswered.add(_digest(_text(message)))

    def split(self, message: Message) -> list[Message]:
        """The message as one or more: cut behind each beginning that got an answer which the harness dropped.

        The restored conversation then holds the dropped answer's place between the two.
        """
        parts = list(message.parts)
        if message.role != "user" or len(parts) < 2 or not self._unanswered:
            return [message]
        found: list[Message] = []
        start = 0
        for end in range(1, len(parts)):
            head = _of_parts(message, parts[start:end])
            if _digest(_text(head)) in self._unanswered:
                found.append(head)
                start = end
        return [*found, _of_parts(message, parts[start:])]

    def restore(self, message: Message) -> Message:
        """The message with the original payload of every call whose id is known."""
        if all(self._calls.get(call.id, call) == call for call in message.tool_calls):
            return message
        return replace(message, tool_calls=tuple(self._calls.get(call.id, call) for call in message.tool_calls))


def restore_history(messages: Sequence[Message], cache: ToolCallCache) -> list[Message]:
    """Put back original payloads, and parallel tool results into the order of their calls.

    A message that swallowed a dropped answer's follow-up is two again. The result is what is matched and rendered. Results of
    calls that the preceding assistant message did not make keep their place behind the others.
    """
    restored = [part for message in messages for part in cache.split(cache.restore(message))]
    start = 0
    while start < len(restored):
        if restored[start].role != "tool":
            start += 1
            continue
        end = start
        while end < len(restored) and restored[end].role == "tool":
            end += 1
        calls = restored[start - 1].tool_calls if start else ()
        order = {call.id: position for position, call in enumerate(calls)}
        restored[start:end] = sorted(restored[start:end], key=lambda m: order.get(m.tool_call_id, len(order)))
        start = end
    return restored


def history_digests(messages: Sequence[Message], cache: ToolCallCache, *, tools: Sequence[ToolSpec] = ()) -> list[str]:
    """Digest of each message of a restored history.

    The offered tools are part of the first digest: they stand in the prompt, so histories with other tools share no prefix.
    """
    digests = [message_digest(message, cache) for message in messages]
    if digests and tools:
        listed = sorted((tool.name, tool.description, canonical_json(tool.parameters_json)) for tool in tools)
        digests[0] = _digest(["tools", listed, digests[0]])
    return digests


def message_digest(message: Message, cache: ToolCallCache) -> str:
    """Digest of one restored message; calls and results with ids of ours are known by them."""
    calls = [call.id if call.id in cache else [call.name, canonical_json(call.arguments_json)] for call in message.tool_calls]
    return _digest([_role(message), calls, message.tool_call_id if message.tool_call_id in cache else ""], _text(message))


def answer_digests(answer: Message, cache: ToolCallCache) -> list[str]:
    """Remember an answer's calls; return its digest, then the form it takes where a harness gives the calls ids of its own.

    The first goes into `TrajectoryTree.add`, the others into `TrajectoryTree.alias`.
    """
    cache.remember(answer.tool_calls)
    digests = [message_digest(answer, cache)]
    if answer.tool_calls:
        digests.append(message_digest(answer, ToolCallCache()))
    return digests


def is_blank(answer: Message) -> bool:
    """Whether an answer shows nothing, so that a harness may leave it out of its history."""
    return not answer.text.strip() and not answer.tool_calls


def canonical_json(text: str) -> str:
    """One spelling for equal JSON values; text that is not JSON stands for itself, without outer space."""
    try:
        value: object = json.loads(text) if text.strip() else {}
        return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text.strip()


def _canonical(value: object) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in cast(Mapping[str, object], value).items()}
    if isinstance(value, list):
        return [_canonical(item) for item in cast(list[object], value)]
    return value


def _of_parts(message: Message, parts: Sequence[str]) -> Message:
    return replace(message, text="\n".join(parts), parts=tuple(parts) if len(parts) > 1 else ())


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _text(message: Message) -> str:
    if message.role == "assistant":
        return "".join(message.text.split())
    return message.text.replace("\r\n", "\n").strip()


def _digest(parts: object, text: str = "") -> str:
    # Python's notation of the parts holds no NUL, so the text may follow as it is: writing a long one as a literal costs more than
    # hashing it. Half characters, which JSON can carry, are kept.
    data = repr(parts).encode() + b"\0" + text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]
