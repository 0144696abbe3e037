"""Other shapes of a history, for chat templates that refuse the one a harness sent.

Harnesses put system entries between turns, several user messages in a row, parallel calls; some templates allow one system message
at the beginning, strict alternation, one call a turn. Each shape says the same with less: the first that the template takes is
used. No content is dropped that a template with those rules could show.

Fed by the renderer with new messages only: what was rendered once is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gyre.trajectory.messages import Message

Reshape = Callable[[list[Message], bool], list[Message]]


def shapes_of(messages: Sequence[Message], *, is_start: bool) -> Iterator[list[Message]]:
    """The messages as they are, then in poorer and poorer shapes.

    Args:
        messages: what is to be rendered.
        is_start: whether the conversation begins with them; otherwise an answer stands before them.
    """
    latest = list(messages)
    yield latest
    reshapes: tuple[Reshape, ...] = (_with_one_system, _with_single_calls, _alternating)
    for reshape in reshapes:
        shape = reshape(latest, is_start)
        if shape != latest:
            latest = shape
            yield latest


def _with_one_system(messages: list[Message], is_start: bool) -> list[Message]:
    """System text at the beginning is one message; later it speaks as the user."""
    num_leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages)) if is_start else 0
    system = [_merge(messages[:num_leading])] if num_leading else []
    return [*system, *(replace(m, role="user") if m.role == "system" else m for m in messages[num_leading:])]


def _with_single_calls(messages: list[Message], is_start: bool) -> list[Message]:
    """Parallel calls are made one after another, each followed by its result."""
    shaped: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if len(message.tool_calls) < 2:
            shaped.append(message)
            continue
        end = next((i for i in range(position, len(messages)) if messages[i].role != "tool"), len(messages))
        results, position = messages[position:end], end
        for number, call in enumerate(message.tool_calls):
            shaped.append(replace(message, text="" if number else message.text, tool_calls=(call,)))
            shaped += [result for result in results if result.tool_call_id == call.id]
            results = [result for result in results if result.tool_call_id != call.id]
        shaped += results
    return shaped


def _alternating(messages: list[Message], is_start: bool) -> list[Message]:
    """User and assistant take turns; whatever is not the assistant's is the user's."""
    shaped: list[Message] = []
    for message in messages:
        spoken = message if message.role == "assistant" else Message(role="user", text=message.text)
        if shaped and shaped[-1].role == spoken.role:
            spoken = _merge([shaped.pop(), spoken])
        shaped.append(spoken)
    return shaped


def _merge(messages: Sequence[Message]) -> Message:
    calls = tuple(call for message in messages for call in message.tool_calls)
    text = "\n\n".join(message.text for message in messages if message.text)
    return replace(messages[0], text=text, tool_calls=calls, parts=())
