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

from gyre.rollout.wires.fields import read_max_tokens
from gyre.rollout.wires.neutral import Answer, ChatRequest, bad_request
from gyre.rollout.wires.openai_chat import render_error, render_models
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
    if not isinstance(body, Mapping):
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
        has_forced_tool=choice == "required" or (isinstance(choice, Mapping) and choice.get("type") != "allowed_tools"),
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
    if not isinstance(item, Mapping):
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
    answer_id = _answer_id(item.get("id"))
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


def _answer_id(item_id: Any) -> str:
    """The answer in an item id of ours, e.g. `fc_gyre-…-0`; empty for any other."""
    if not isinstance(item_id, str):
        return ""
    _, _, rest = item_id.partition("_gyre-")
    return rest.rpartition("-")[0]


def _item_id(prefix: str, answer_id: str, number: int) -> str:
    return f"{prefix}_gyre-{answer_id}-{number}"


def _parse_call(item: Mapping[str, Any], kind: str, place: str, own_names: Mapping[tuple[str, str], str]) -> ToolCall:
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise bad_request(f"{place}: a {kind} has a call_id and a name", param=place)
    if kind == "custom_tool_call":
        arguments: Any = {"input": item.get("input") if isinstance(item.get("input"), str) else ""}
    else:
        arguments = item.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments, ensure_ascii=False)
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
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else None
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


CUSTOM = "custom tool"
"""Stands where a namespace would: no client can name one so."""


def _flatten(tools: Sequence[Any], namespace: str = "", place: str = "tools") -> Iterator[tuple[Mapping[str, Any], str, str]]:
    for index, tool in enumerate(tools):
        where = f"{place}[{index}]"
        if not isinstance(tool, Mapping):
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
        shown = json.dumps(parameters if isinstance(parameters, Mapping) else {}, ensure_ascii=False)
    return ToolSpec(name=name, description=description if isinstance(description, str) else "", parameters_json=shown)


# ---------------------------------------------------------------- answers


def render_response(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return _response(answer, request, answer_id=answer.answer_id, output=_output(answer, request, answer.answer_id))


def open_events(request: ChatRequest, *, answer_id: str, created_at_s: float, prompt_tokens: int) -> EventWriter:
    """A writer for one streamed answer."""
    return EventWriter(request, answer_id=answer_id, created_at_s=created_at_s)


class EventWriter:
    """The events of one streamed answer: items one after another, each opened, filled and closed, then the whole response.

    Reasoning is an item with a summary, since that is the part which clients show and echo.
    """

    def __init__(self, request: ChatRequest, *, answer_id: str, created_at_s: float) -> None:
        self._request = request
        self._answer_id = answer_id
        self._created_at_s = created_at_s
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text = ""

    def start(self) -> bytes:
        """The events that open the response."""
        return self._progress("response.created") + self._progress("response.in_progress")

    def text(self, text: str, *, is_reasoning: bool = False) -> bytes:
        """New text, in an item of its kind."""
        opened = self._into("reasoning" if is_reasoning else "message")
        self._text += text
        if is_reasoning:
            return opened + self._inside("response.reasoning_summary_text.delta", summary_index=0, delta=text)
        return opened + self._inside("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def ping(self) -> bytes:
        """The response goes on: clients time events, and a comment is none."""
        return self._progress("response.in_progress")

    def finish(self, answer: Answer) -> bytes:
        """Whole calls, then the whole response."""
        parts = [self._close()]
        for call in answer.message.tool_calls:
            item = _call_item(call, self._request, _item_id("fc", self._answer_id, len(self._output)))
            field = "input" if item["type"] == "custom_tool_call" else "arguments"
            events = "custom_tool_call_input" if field == "input" else "function_call_arguments"
            parts.append(self._event("response.output_item.added", **self._at(), item={**item, field: "", "status": "in_progress"}))
            parts.append(self._event(f"response.{events}.delta", **self._at(), item_id=item["id"], delta=item[field]))
            parts.append(self._event(f"response.{events}.done", **self._at(), item_id=item["id"], **{field: item[field]}))
            parts.append(self._done(item))
        response = _response(answer, self._request, answer_id=self._answer_id, output=self._output)
        parts.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(parts)

    def _progress(self, kind: str) -> bytes:
        shared = {"id": f"resp_{self._answer_id}", "created_at": int(self._created_at_s), "status": "in_progress"}
        return self._event(kind, response={**_head(self._request), **shared, "output": [], "usage": None})

    def _into(self, kind: str) -> bytes:
        """Open an item of a kind unless it is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open, self._text = kind, ""
        item = self._item("in_progress")
        added = self._event("response.output_item.added", **self._at(), item={**item, "summary" if kind == "reasoning" else "content": []})
        if kind == "reasoning":
            return closed + added + self._inside("response.reasoning_summary_part.added", summary_index=0, part=item["summary"][0])
        return closed + added + self._inside("response.content_part.added", content_index=0, part=item["content"][0])

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        item = self._item("completed")
        if self._open == "reasoning":
            done = self._inside("response.reasoning_summary_text.done", summary_index=0, text=self._text)
            done += self._inside("response.reasoning_summary_part.done", summary_index=0, part=item["summary"][0])
        else:
            done = self._inside("response.output_text.done", content_index=0, text=self._text, logprobs=[])
            done += self._inside("response.content_part.done", content_index=0, part=item["content"][0])
        self._open = None
        return done + self._done(item)

    def _item(self, status: str) -> dict[str, Any]:
        item_id = _item_id("rs" if self._open == "reasoning" else "msg", self._answer_id, len(self._output))
        if self._open == "reasoning":
            return _reasoning_item(self._text, item_id)
        return _message_item(self._text, item_id, status)

    def _done(self, item: dict[str, Any]) -> bytes:
        event = self._event("response.output_item.done", **self._at(), item=item)
        self._output.append(item)
        return event

    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    def _inside(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._at(), item_id=self._item("")["id"], **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": self._number, **fields}, separators=(",", ":"))
        self._number += 1
        return f"event: {kind}\ndata: {data}\n\n".encode()


def _output(answer: Answer, request: ChatRequest, answer_id: str) -> list[dict[str, Any]]:
    message, items = answer.message, list[dict[str, Any]]()
    if message.reasoning:
        items.append(_reasoning_item(message.reasoning, _item_id("rs", answer_id, 0)))
    if message.text.strip() or (message.text and not message.tool_calls):
        items.append(_message_item(message.text, _item_id("msg", answer_id, len(items)), "completed"))
    for call in message.tool_calls:
        items.append(_call_item(call, request, _item_id("fc", answer_id, len(items))))
    return items


def _reasoning_item(text: str, item_id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [{"type": "summary_text", "text": text}], "encrypted_content": None}


def _message_item(text: str, item_id: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": [part]}


def _call_item(call: ToolCall, request: ChatRequest, item_id: str) -> dict[str, Any]:
    namespace, name = request.wire_names.get(call.name, ("", call.name))
    shared = {"id": item_id, "call_id": call.id, "name": name, "status": "completed"}
    if namespace == CUSTOM:
        return {"type": "custom_tool_call", **shared, "input": _custom_input(call)}
    return {"type": "function_call", **shared, "arguments": call.arguments_json, **({"namespace": namespace} if namespace else {})}


def _custom_input(call: ToolCall) -> str:
    """The text for a custom tool; what is not in the agreed form is given as it is."""
    try:
        value = json.loads(call.arguments_json)
    except (ValueError, RecursionError):
        return call.arguments_json
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else call.arguments_json


def _head(request: ChatRequest) -> dict[str, Any]:
    """What every response object says, whatever its state."""
    asked = request.asked
    return {
        "object": "response",
        "model": request.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": [],
        "temperature": asked.get("temperature", 1.0),
        "top_p": asked.get("top_p", 1.0),
        "max_output_tokens": request.max_tokens,
        "previous_response_id": None,
        "store": False,
    }


def _response(answer: Answer, request: ChatRequest, *, answer_id: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    is_cut = answer.finish_reason == "length"
    return {
        **_head(request),
        "id": f"resp_{answer_id}",
        "created_at": int(answer.created_at_s),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": _usage(answer),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


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
