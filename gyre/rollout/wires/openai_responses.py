"""The OpenAI Responses wire: bodies of `/v1/responses` to neutral requests, neutral answers to bodies and events.

Pure translation, stateless: every request holds its whole history. A history is a flat list of items, of which one answer may have
been several (reasoning, text, calls); they are one assistant message again. Items that we gave out carry their answer's id in their
own, so that also an answer whose calls and outputs a client interleaved is put together; without ids, text or reasoning behind a
call begins another answer. Custom tools become functions of one argument `input` and back; tools in a namespace are offered by
their own names. Tools that the server would run are not offered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.rollout.wires.fields import read_max_tokens, to_json
from gyre.rollout.wires.neutral import ChatRequest, bad_request
from gyre.rollout.wires.openai_chat import render_error, render_models
from gyre.rollout.wires.openai_responses_answers import CUSTOM, find_answer_id, open_events, render_response
from gyre.rollout.wires.wire import TokenCount, Wire
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

ROLES: Mapping[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_TYPES = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
CUSTOM_PARAMETERS = json.dumps({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})

ASKED = (
    "temperature", "top_p", "max_output_tokens", "max_tool_calls", "tool_choice", "parallel_tool_calls", "reasoning", "text",
    "truncation", "service_tier", "top_logprobs",
)  # fmt: skip
"""Body fields that are recorded with the call."""

NOT_KEPT = ("previous_response_id", "conversation", "prompt")
"""Body fields that refer to state of a server; there is none here."""

SILENT_ITEMS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "compaction", "ghost_snapshot")
"""Items that this model cannot read and need not."""


def parse_request(body: Any) -> ChatRequest:
    """Read a parsed JSON body.

    Raises:
        WireError: what is wrong with it.
    """
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    for name in NOT_KEPT:
        if body.get(name) is not None:
            raise bad_request(f"{name} is not supported: nothing is stored here; send the whole input", param=name)
    if body.get("background") is True:
        raise bad_request("background is not supported; leave it out", param="background")
    instructions = body.get("instructions")
    system = [Message(role="system", text=instructions)] if isinstance(instructions, str) and instructions else []
    tools, wire_names = _parse_tools(body.get("tools"))
    choice = body.get("tool_choice")
    return ChatRequest(
        messages=(*system, *_parse_input(body.get("input"), wire_names)),
        tools=tools,
        wire_names=wire_names,
        model=body["model"] if isinstance(body.get("model"), str) else "",
        has_forced_tool=choice == "required" or (isinstance(choice, dict) and choice.get("type") != "allowed_tools"),
        is_streamed=body.get("stream") is True,
        max_tokens=read_max_tokens(body.get("max_output_tokens"), "max_output_tokens"),
        asked={name: body[name] for name in ASKED if body.get(name) is not None},
    )


# ---------------------------------------------------------------- history


@dataclass(slots=True)
class _Turn:
    """An answer of the history while its items are collected."""

    answer_id: str = ""
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def to_message(self) -> Message:
        return Message(role="assistant", text="\n".join(self.texts), reasoning="\n".join(self.reasoning), tool_calls=tuple(self.calls))


def _parse_input(given: Any, wire_names: Mapping[str, tuple[str, str]]) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", text=given)]
    if not isinstance(given, list) or not given:
        raise bad_request("input must be a string or a list with at least one item", param="input")
    own_names = {(namespace, name): own for own, (namespace, name) in wire_names.items()}
    found: list[Message | _Turn] = []
    for index, item in enumerate(given):
        _add_item(found, item, f"input[{index}]", own_names)
    messages = [entry.to_message() if isinstance(entry, _Turn) else entry for entry in found]
    if not messages:
        raise bad_request("input holds nothing that this model can read", param="input")
    return messages


def _add_item(found: list[Message | _Turn], item: Any, place: str, own_names: Mapping[tuple[str, str], str]) -> None:
    if not isinstance(item, dict):
        raise bad_request(f"{place} must be an object", param=place)
    kind = item.get("type", "message")
    if kind in ("function_call_output", "custom_tool_call_output"):
        found.append(_parse_output(item, place))
    elif kind in ("function_call", "custom_tool_call"):
        turn = _turn_of(found, item, begins=False)
        turn.calls.append(_parse_call(item, kind, place, own_names))
    elif kind == "reasoning":
        turn = _turn_of(found, item, begins=True)
        turn.reasoning += [*_texts(item.get("summary"), f"{place}.summary"), *_texts(item.get("content"), f"{place}.content")]
    elif kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise bad_request(f"{place}.role must be one of {', '.join(ROLES)}", param=f"{place}.role")
        texts = _texts(item.get("content"), f"{place}.content")
        if role == "assistant":
            _turn_of(found, item, begins=True).texts += texts
        else:
            parts = tuple(texts) if len(texts) > 1 and role == "user" else ()
            found.append(Message(role=ROLES[role], text="\n".join(texts), parts=parts))
    elif kind not in SILENT_ITEMS:
        raise bad_request(f"{place}: items of type {kind!r} are not supported", param=f"{place}.type")


def _turn_of(found: list[Message | _Turn], item: Mapping[str, Any], *, begins: bool) -> _Turn:
    """The answer that an item belongs to: of its id, else the one in front of it unless the item begins another."""
    answer_id = find_answer_id(item.get("id"))
    for entry in reversed(found):
        if isinstance(entry, _Turn):
            if answer_id and entry.answer_id == answer_id:
                return entry
            break
        if entry.role != "tool":
            break
    last = found[-1] if found else None
    if isinstance(last, _Turn) and not (answer_id and last.answer_id) and not (begins and last.calls):
        last.answer_id = last.answer_id or answer_id
        return last
    turn = _Turn(answer_id=answer_id)
    found.append(turn)
    return turn


def _parse_call(item: Mapping[str, Any], kind: str, place: str, own_names: Mapping[tuple[str, str], str]) -> ToolCall:
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise bad_request(f"{place}: a {kind} has a call_id and a name", param=place)
    if kind == "custom_tool_call":
        arguments: Any = {"input": item.get("input") if isinstance(item.get("input"), str) else ""}
    else:
        arguments = item.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json({} if arguments is None else arguments)
    namespace = item.get("namespace") if isinstance(item.get("namespace"), str) else ""
    return ToolCall(id=call_id, name=own_names.get((namespace or "", name), name), arguments_json=text)


def _parse_output(item: Mapping[str, Any], place: str) -> Message:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise bad_request(f"{place}.call_id must be a string", param=f"{place}.call_id")
    return Message(role="tool", text="\n".join(_texts(item.get("output"), f"{place}.output")), tool_call_id=call_id)


def _texts(content: Any, place: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad_request(f"{place} must be a string, a list of parts or null", param=place)
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in TEXT_TYPES or not isinstance(text, str):
            named = kind if isinstance(kind, str) else "this"
            raise bad_request(f"{place}[{index}]: {named} is not text; this model reads text only", param=f"{place}[{index}]")
        texts.append(text)
    return texts


# ---------------------------------------------------------------- tools


def _parse_tools(tools: Any) -> tuple[tuple[ToolSpec, ...], dict[str, tuple[str, str]]]:
    """The tools offered, and (namespace, name) of those that the client knows otherwise or that are custom.

    A custom tool has the namespace `CUSTOM`.
    """
    if tools is None:
        return (), {}
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", param="tools")
    specs: list[ToolSpec] = []
    wire_names: dict[str, tuple[str, str]] = {}
    for tool, namespace, place in _flatten(tools):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{place}: a {kind} tool has a name", param=place)
        own = name if all(spec.name != name for spec in specs) else f"{namespace}.{name}"
        if kind == "custom" or namespace:
            wire_names[own] = (CUSTOM if kind == "custom" else namespace, name)
        specs.append(_to_spec(tool, own))
    return tuple(specs), wire_names


def _flatten(tools: Sequence[Any], namespace: str = "", place: str = "tools") -> Iterator[tuple[Mapping[str, Any], str, str]]:
    for index, tool in enumerate(tools):
        where = f"{place}[{index}]"
        if not isinstance(tool, dict):
            raise bad_request(f"{where} must be an object", param=where)
        inner = tool.get("tools")
        if tool.get("type") == "namespace" and not namespace and isinstance(inner, list):
            yield from _flatten(inner, str(tool.get("name") or "namespace"), f"{where}.tools")
        else:
            yield tool, namespace, where


def _to_spec(tool: Mapping[str, Any], name: str) -> ToolSpec:
    description, parameters = tool.get("description"), tool.get("parameters")
    if tool.get("type") == "custom":
        shown = CUSTOM_PARAMETERS
    else:
        shown = to_json(parameters if isinstance(parameters, dict) else {})
    return ToolSpec(name=name, description=description if isinstance(description, str) else "", parameters_json=shown)


def _count(num_tokens: int) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": num_tokens}


WIRE = Wire(
    name="openai_responses",
    path="/v1/responses",
    base_path="/v1",
    # Codex tells the time of its turn in client_metadata; a retry asks for the same.
    transport_fields=frozenset({"stream", "stream_options", "client_metadata"}),
    parse_request=parse_request,
    render_response=render_response,
    render_error=render_error,
    render_models=render_models,
    open_events=open_events,
    count=TokenCount("/v1/responses/input_tokens", _count),
)
