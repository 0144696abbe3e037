"""The OpenAI chat completions wire: bodies of `/v1/chat/completions` to neutral requests, neutral answers to bodies and events.

Pure translation. Text parts of one message are joined by a newline; null, missing and empty content are the same. What is not
served (images, audio, several choices) is refused in the wire's own error shape. Sampling parameters are kept as asked, to be
recorded: the run decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gyre.rollout.wires.fields import read_max_tokens, read_stop, to_json
from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, bad_request
from gyre.rollout.wires.wire import Wire
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
ASKED = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "response_format", "tool_choice", "logit_bias", "logprobs", "reasoning_effort", "max_tokens", "max_completion_tokens",
    "stop",
)  # fmt: skip
"""Body fields that are recorded with the call."""

ERROR_TYPES: Mapping[str, str] = {"invalid_api_key": "authentication_error", "server_error": "server_error"}
"""Kinds of `WireError` whose `type` is not `invalid_request_error`."""


def parse_request(body: Any) -> ChatRequest:
    """Read a parsed JSON body.

    Raises:
        WireError: what is wrong with it.
    """
    if not isinstance(body, Mapping):
        raise bad_request("the body must be a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a list with at least one message", param="messages")
    if body.get("n") not in (None, 1):
        raise bad_request("one choice is served per request; leave n out", param="n")
    stream_options, stop = body.get("stream_options"), body.get("stop")
    most = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return ChatRequest(
        messages=tuple(_parse_message(item, f"messages[{i}]") for i, item in enumerate(messages)),
        tools=_parse_tools(body.get("tools")),
        model=body["model"] if isinstance(body.get("model"), str) else "",
        has_forced_tool=body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), Mapping),
        is_streamed=body.get("stream") is True,
        wants_usage=isinstance(stream_options, Mapping) and stream_options.get("include_usage") is True,
        max_tokens=read_max_tokens(body.get(most), most),
        stop=read_stop([stop] if isinstance(stop, str) else stop, "stop"),
        asked={name: body[name] for name in ASKED if body.get(name) is not None},
    )


def _parse_message(item: Any, place: str) -> Message:
    # Parsed JSON has dicts and no other mapping; asking for `Mapping` would be a third of what reading a long history costs.
    if not isinstance(item, dict):
        raise bad_request(f"{place} must be an object", param=place)
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"{place}.role must be one of {', '.join(ROLES)}", param=f"{place}.role")
    call_id = item.get("tool_call_id")
    texts = _parse_content(item.get("content"), f"{place}.content")
    return Message(
        role=ROLES[role],
        text="\n".join(texts),
        reasoning=_first_text(item, ("reasoning_content", "reasoning")) if role == "assistant" else "",
        tool_calls=_parse_tool_calls(item.get("tool_calls"), f"{place}.tool_calls") if role == "assistant" else (),
        tool_call_id=call_id if isinstance(call_id, str) and ROLES[role] == "tool" else "",
        parts=tuple(texts) if len(texts) > 1 and role == "user" else (),
    )


def _first_text(item: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((item[name] for name in names if isinstance(item.get(name), str)), "")


def _parse_content(content: Any, place: str) -> list[str]:
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
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if kind not in ("text", "refusal", "input_text", "output_text") or not isinstance(text, str):
            raise bad_request(f"{place}[{index}] is not text; this model reads text only", param=f"{place}[{index}]")
        texts.append(text)
    return texts


def _parse_tool_calls(calls: Any, place: str) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise bad_request(f"{place} must be a list", param=place)
    parsed: list[ToolCall] = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(name, str):
            raise bad_request(f"{place}[{index}] must be a function call with a name", param=f"{place}[{index}]")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else to_json({} if arguments is None else arguments)
        call_id = call.get("id")
        parsed.append(ToolCall(id=call_id if isinstance(call_id, str) else "", name=name, arguments_json=text))
    return tuple(parsed)


def _parse_tools(tools: Any) -> tuple[ToolSpec, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", param="tools")
    parsed: list[ToolSpec] = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise bad_request(f"tools[{index}] must be a function with a name", param=f"tools[{index}]")
        description, parameters = function.get("description"), function.get("parameters")
        parsed.append(
            ToolSpec(
                name=name,
                description=description if isinstance(description, str) else "",
                parameters_json=to_json(parameters if isinstance(parameters, Mapping) else {}),
            )
        )
    return tuple(parsed)


def render_response(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = answer.message
    body: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.tool_calls else "")}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [_render_call(call) for call in message.tool_calls]
    return {
        "id": f"chatcmpl-{answer.answer_id}",
        "object": "chat.completion",
        "created": int(answer.created_at_s),
        "model": request.model,
        "choices": [{"index": 0, "message": body, "logprobs": None, "finish_reason": _finish(answer)}],
        "usage": _usage(answer),
    }


def render_error(error: WireError) -> dict[str, Any]:
    """The body of an error."""
    kind = ERROR_TYPES.get(error.kind, "invalid_request_error")
    code = None if error.kind == "invalid_request" else error.kind
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def render_models(names: Sequence[str]) -> dict[str, Any]:
    """The body of `/v1/models`."""
    return {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "gyre"} for n in names]}


def open_events(request: ChatRequest, *, answer_id: str, created_at_s: float, prompt_tokens: int) -> EventWriter:
    """A writer for one streamed answer."""
    return EventWriter(answer_id=answer_id, model=request.model, created_at_s=created_at_s, wants_usage=request.wants_usage)


class EventWriter:
    """The events of one streamed answer, in the least sequence that clients accept: role, text deltas, calls, finish, usage."""

    def __init__(self, *, answer_id: str, model: str, created_at_s: float, wants_usage: bool) -> None:
        self._head = {
            "id": f"chatcmpl-{answer_id}",
            "object": "chat.completion.chunk",
            "created": int(created_at_s),
            "model": model,
        }
        self._wants_usage = wants_usage

    def start(self) -> bytes:
        """The event that opens the answer."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str, *, is_reasoning: bool = False) -> bytes:
        """New text."""
        return self._chunk({"reasoning_content" if is_reasoning else "content": text})

    def ping(self) -> bytes:
        """A comment: clients skip it, connections stay open."""
        return b": ping\n\n"

    def finish(self, answer: Answer) -> bytes:
        """Everything that comes last: whole tool calls, finish reason, usage and the end mark."""
        calls = [{"index": i, **_render_call(call)} for i, call in enumerate(answer.message.tool_calls)]
        parts = [self._chunk({"tool_calls": [call]}) for call in calls]
        parts.append(self._chunk({}, finish_reason=_finish(answer)))
        if self._wants_usage:
            parts.append(_event({**self._head, "choices": [], "usage": _usage(answer)}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice]})


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _render_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def _finish(answer: Answer) -> str:
    if answer.finish_reason == "length":
        return "length"
    return "tool_calls" if answer.message.tool_calls else "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


WIRE = Wire(
    name="openai_chat",
    path="/v1/chat/completions",
    base_path="/v1",
    transport_fields=frozenset({"stream", "stream_options"}),
    parse_request=parse_request,
    render_response=render_response,
    render_error=render_error,
    render_models=render_models,
    open_events=open_events,
)
