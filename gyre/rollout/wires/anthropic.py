"""The Anthropic Messages wire: bodies of `/v1/messages` to neutral requests, neutral answers to bodies and events.

Pure translation. One user message may hold tool results and text: the results come first, one neutral message each, then the text.
Cache marks, signatures and redacted thinking say nothing to this model and are left out; so is the client's billing line, which
is addressed to the server, changes after a compaction and would hide that two prompts are equal. Tools that the server would run
are not offered. Images and documents are refused in the wire's own error shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gyre.rollout.wires.fields import read_max_tokens, read_stop, to_json
from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, bad_request
from gyre.rollout.wires.wire import TokenCount, Wire
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

ASKED = (
    "temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "tool_choice", "thinking", "output_config", "output_format",
    "context_management", "service_tier",
)  # fmt: skip
"""Body fields that are recorded with the call."""

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""The wire's word for a status; any other is an `api_error`."""

BILLING_LINE = "x-anthropic-billing-header:"
"""Begins a system block that is a note to the server."""

SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
"""Begin the types of tools that the server would run."""

SILENT_BLOCKS = ("redacted_thinking", "server_tool_use", "compaction", "container_upload", "fallback")
"""Blocks of an assistant that this model cannot read and need not."""


def parse_request(body: Any) -> ChatRequest:
    """Read a parsed JSON body.

    Raises:
        WireError: what is wrong with it.
    """
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        raise bad_request("messages: must be a list with at least one message", param="messages")
    system, note = _parse_system(body.get("system"))
    messages = [m for i, item in enumerate(listed) for m in _parse_message(item, f"messages.{i}")]
    choice, thinking = body.get("tool_choice"), body.get("thinking")
    return ChatRequest(
        messages=(*system, *messages),
        tools=_parse_tools(body.get("tools")),
        model=body["model"] if isinstance(body.get("model"), str) else "",
        server_note=note,
        has_forced_tool=isinstance(choice, dict) and choice.get("type") in ("tool", "any"),
        shows_reasoning=isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"),
        is_streamed=body.get("stream") is True,
        max_tokens=read_max_tokens(body.get("max_tokens"), "max_tokens"),
        stop=read_stop(body.get("stop_sequences"), "stop_sequences"),
        asked={name: body[name] for name in ASKED if body.get(name) is not None},
    )


def _parse_system(system: Any) -> tuple[list[Message], str]:
    """The system message, if there is any, and what of it is for the server only."""
    texts = _texts(system, "system")
    notes = [text for text in texts if text.lstrip().startswith(BILLING_LINE)]
    kept = [text for text in texts if text not in notes]
    return [Message(role="system", text="\n".join(kept))] if any(kept) else [], "\n".join(notes)


def _parse_message(item: Any, place: str) -> Iterator[Message]:
    if not isinstance(item, dict):
        raise bad_request(f"{place}: must be an object", param=place)
    role, content = item.get("role"), item.get("content")
    if role == "assistant":
        yield _parse_assistant(content, f"{place}.content")
    elif role == "system":
        yield Message(role="system", text="\n".join(_texts(content, f"{place}.content")))
    elif role == "user":
        yield from _parse_user(content, f"{place}.content")
    else:
        raise bad_request(f"{place}.role: must be user, assistant or system", param=f"{place}.role")


def _parse_user(content: Any, place: str) -> Iterator[Message]:
    texts: list[str] = []
    has_results = False
    for block, where in _blocks(content, place):
        if block.get("type") == "tool_result":
            has_results = True
            yield _parse_result(block, where)
        else:
            texts.append(_text(block, where))
    if texts or not has_results:
        yield Message(role="user", text="\n".join(texts), parts=tuple(texts) if len(texts) > 1 else ())


def _parse_result(block: Mapping[str, Any], place: str) -> Message:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise bad_request(f"{place}.tool_use_id: must be a string", param=f"{place}.tool_use_id")
    return Message(role="tool", text="\n".join(_texts(block.get("content"), f"{place}.content")), tool_call_id=call_id)


def _parse_assistant(content: Any, place: str) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for block, where in _blocks(content, place):
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_parse_call(block, where))
        elif kind == "thinking":
            thought = block.get("thinking")
            reasoning += [thought] if isinstance(thought, str) and thought else []
        elif not isinstance(kind, str) or not (kind in SILENT_BLOCKS or kind.endswith("_tool_result")):
            texts.append(_text(block, where))
    return Message(role="assistant", text="\n".join(texts), reasoning="\n".join(reasoning), tool_calls=tuple(calls))


def _parse_call(block: Mapping[str, Any], place: str) -> ToolCall:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise bad_request(f"{place}: a tool_use block has an id and a name", param=place)
    return ToolCall(id=call_id, name=name, arguments_json=to_json({} if given is None else given))


def _texts(content: Any, place: str) -> list[str]:
    return [_text(block, where) for block, where in _blocks(content, place)]


def _blocks(content: Any, place: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The blocks of a content with their places; a string is one text block, nothing is none."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, place
    elif isinstance(content, list):
        for index, block in enumerate(content):
            where = f"{place}.{index}"
            if isinstance(block, str):
                yield {"type": "text", "text": block}, where
            elif isinstance(block, dict):
                yield block, where
            else:
                raise bad_request(f"{where}: a content block is an object", param=where)
    elif content is not None:
        raise bad_request(f"{place}: must be a string or a list of content blocks", param=place)


def _text(block: Mapping[str, Any], place: str) -> str:
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        kind = block.get("type") if isinstance(block.get("type"), str) else "this"
        raise bad_request(f"{place}: {kind} is not text; this model reads text only", param=place)
    return text


def _parse_tools(tools: Any) -> tuple[ToolSpec, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise bad_request("tools: must be a list", param="tools")
    parsed: list[ToolSpec] = []
    for index, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(tool, dict) and str(tool.get("type") or "").startswith(SERVER_TOOLS):
            continue
        if not isinstance(tool, dict) or not isinstance(name, str) or not name:
            raise bad_request(f"tools.{index}: a tool is an object with a name", param=f"tools.{index}")
        description, schema = tool.get("description"), tool.get("input_schema")
        parsed.append(
            ToolSpec(
                name=name,
                description=description if isinstance(description, str) else "",
                parameters_json=to_json(schema if isinstance(schema, dict) else {}),
            )
        )
    return tuple(parsed)


def render_response(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = answer.message
    content: list[dict[str, Any]] = []
    if message.reasoning and request.shows_reasoning:
        content.append({"type": "thinking", "thinking": message.reasoning, "signature": _signature(answer.answer_id)})
    if message.text.strip() or (message.text and not message.tool_calls):
        content.append({"type": "text", "text": message.text})
    content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c)} for c in message.tool_calls]
    return {
        **_head(answer.answer_id, request.model),
        "content": content or [{"type": "text", "text": ""}],
        **_stop(answer),
        "usage": _usage(answer),
    }


def render_error(error: WireError) -> dict[str, Any]:
    """The body of an error."""
    return {"type": "error", "error": {"type": ERROR_TYPES.get(error.status, "api_error"), "message": error.message}}


def render_models(names: Sequence[str]) -> dict[str, Any]:
    """The body of `/v1/models`."""
    listed = [{"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"} for name in names]
    return {"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def open_events(request: ChatRequest, *, answer_id: str, created_at_s: float, prompt_tokens: int) -> EventWriter:
    """A writer for one streamed answer."""
    return EventWriter(request, answer_id=answer_id, prompt_tokens=prompt_tokens)


class EventWriter:
    """The events of one streamed answer: one message start, then blocks one after another, each opened, filled and closed."""

    def __init__(self, request: ChatRequest, *, answer_id: str, prompt_tokens: int) -> None:
        self._request = request
        self._answer_id = answer_id
        self._prompt_tokens = prompt_tokens
        self._num_blocks = 0
        self._open: str | None = None

    def start(self) -> bytes:
        """The event that opens the answer."""
        usage = {**_no_usage(), "input_tokens": self._prompt_tokens, "output_tokens": 1}
        head = {**_head(self._answer_id, self._request.model), "content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", {"message": {**head, "usage": usage}})

    def text(self, text: str, *, is_reasoning: bool = False) -> bytes:
        """New text, in a block of its kind."""
        if is_reasoning:
            if not self._request.shows_reasoning:
                return b""
            return self._into("thinking", {"thinking": "", "signature": ""}) + self._delta("thinking_delta", "thinking", text)
        return self._into("text", {"text": ""}) + self._delta("text_delta", "text", text)

    def ping(self) -> bytes:
        """The wire's own sign of life."""
        return _event("ping", {})

    def finish(self, answer: Answer) -> bytes:
        """Whole tool calls, the reason to stop, usage and the end."""
        parts = [self._close()]
        for call in answer.message.tool_calls:
            parts.append(self._into("tool_use", {"id": call.id, "name": call.name, "input": {}}))
            parts.append(self._delta("input_json_delta", "partial_json", to_json(_input(call))))
            parts.append(self._close())
        if not self._num_blocks:  # clients take an answer without a block for a broken one
            parts += [self._into("text", {"text": ""}), self._close()]
        parts.append(_event("message_delta", {"delta": _stop(answer), "usage": _usage(answer)}))
        return b"".join([*parts, _event("message_stop", {})])

    def _into(self, kind: str, block: Mapping[str, Any]) -> bytes:
        """Open a block of a kind unless it is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        self._num_blocks += 1
        return closed + _event("content_block_start", {"index": self._num_blocks - 1, "content_block": {"type": kind, **block}})

    def _delta(self, kind: str, field: str, value: str) -> bytes:
        return _event("content_block_delta", {"index": self._num_blocks - 1, "delta": {"type": kind, field: value}})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signature = self._delta("signature_delta", "signature", _signature(self._answer_id)) if self._open == "thinking" else b""
        self._open = None
        return signature + _event("content_block_stop", {"index": self._num_blocks - 1})


def _event(kind: str, body: Mapping[str, Any]) -> bytes:
    data = json.dumps({"type": kind, **body}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _head(answer_id: str, model: str) -> dict[str, Any]:
    return {"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "model": model}


def _signature(answer_id: str) -> str:
    """Thinking is signed so that a client echoes it; nobody checks it here."""
    return f"gyre-{answer_id}"


def _input(call: ToolCall) -> dict[str, Any]:
    """Arguments as the object that the wire demands; what the model wrote wrongly stands under one name."""
    try:
        value = json.loads(call.arguments_json) if call.arguments_json.strip() else {}
    except (ValueError, RecursionError):
        value = call.arguments_json
    return value if isinstance(value, dict) else {"arguments": value}


def _stop(answer: Answer) -> dict[str, Any]:
    reason = "tool_use" if answer.message.tool_calls else "end_turn"
    if answer.finish_reason == "length":
        reason = "max_tokens"
    elif answer.stop_string is not None and not answer.message.tool_calls:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stop_string if reason == "stop_sequence" else None}


def _no_usage() -> dict[str, Any]:
    return {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        **_no_usage(),
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
    }


WIRE = Wire(
    name="anthropic",
    path="/v1/messages",
    base_path="",
    client_header="anthropic-version",
    transport_fields=frozenset({"stream"}),
    parse_request=parse_request,
    render_response=render_response,
    render_error=render_error,
    render_models=render_models,
    open_events=open_events,
    count=TokenCount("/v1/messages/count_tokens", lambda num_tokens: {"input_tokens": num_tokens}),
)
