"""One client for each wire, as small as it can be: writes a neutral history in the wire's form, reads answers and streams back.

A client is strict about what real ones are strict about: named events, blocks that are opened, filled and closed, one end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gyre.trajectory.messages import Message, ToolCall, ToolSpec


@dataclass(frozen=True)
class WireClient:
    name: str
    path: str
    body: Callable[[Sequence[Message], Sequence[ToolSpec]], dict[str, Any]]
    read: Callable[[dict[str, Any]], Message]
    read_stream: Callable[[str], Message]
    ping: str
    """Begins what a sign of life looks like in a stream."""
    text_delta: Callable[[str], bool]
    """Whether a piece of a stream holds new text."""
    image: Callable[[], dict[str, Any]]
    """A body that shows an image."""
    error: Callable[[dict[str, Any]], tuple[str, str]]
    """Type and message of an error body."""
    length: Callable[[dict[str, Any]], bool]
    """Whether an answer says that its length ended it."""


def sse(raw: str) -> list[dict[str, Any]]:
    """The JSON events of a stream; each names its own type where the wire names events."""
    events: list[dict[str, Any]] = []
    assert raw.endswith("\n\n")
    for block in raw.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        if data and data[0] != "[DONE]":
            event = json.loads(data[0])
            assert not names or names == [event["type"]]
            events.append(event)
    return events


# ---------------------------------------------------------------- chat completions


def _chat_body(history: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for m in history:
        item: dict[str, Any] = {"role": m.role, "content": m.text}
        if m.reasoning:
            item["reasoning_content"] = m.reasoning
        if m.tool_calls:
            item["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json}} for c in m.tool_calls
            ]
        if m.role == "tool":
            item["tool_call_id"] = m.tool_call_id
        messages.append(item)
    offered = [{"type": "function", "function": _function(tool)} for tool in tools]
    return {"model": "m", "messages": messages, **({"tools": offered} if offered else {})}


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters_json)}


def _chat_calls(calls: list[dict[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=c["id"], name=c["function"]["name"], arguments_json=c["function"]["arguments"]) for c in calls)


def _chat_read(reply: dict[str, Any]) -> Message:
    m = reply["choices"][0]["message"]
    calls = _chat_calls(m.get("tool_calls", []))
    assert reply["choices"][0]["finish_reason"] in ("length", "tool_calls" if calls else "stop")
    return Message(role="assistant", text=m["content"] or "", reasoning=m.get("reasoning_content", ""), tool_calls=calls)


def _chat_read_stream(raw: str) -> Message:
    assert raw.endswith("data: [DONE]\n\n")
    text, reasoning, calls, finish = "", "", list[dict[str, Any]](), None
    for event in sse(raw):
        for choice in event["choices"]:
            assert finish is None
            text += choice["delta"].get("content") or ""
            reasoning += choice["delta"].get("reasoning_content") or ""
            calls += choice["delta"].get("tool_calls", [])
            finish = choice["finish_reason"]
    assert finish is not None and [call["index"] for call in calls] == list(range(len(calls)))
    return Message(role="assistant", text=text, reasoning=reasoning, tool_calls=_chat_calls(calls))


CHAT = WireClient(
    name="openai_chat",
    path="/v1/chat/completions",
    body=_chat_body,
    read=_chat_read,
    read_stream=_chat_read_stream,
    ping=": ping",
    text_delta=lambda piece: '"delta":{"content":' in piece,
    image=lambda: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    error=lambda reply: (reply["error"]["type"], reply["error"]["message"]),
    length=lambda reply: reply["choices"][0]["finish_reason"] == "length",
)


# ---------------------------------------------------------------- messages


def _anthropic_body(history: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    messages: list[dict[str, Any]] = []
    for position, m in enumerate(history):
        if m.role == "system" and position == 0:
            body["system"] = [{"type": "text", "text": m.text}]
            continue
        if m.role == "assistant":
            content = [{"type": "thinking", "thinking": m.reasoning, "signature": "s"}] if m.reasoning else []
            content += [{"type": "text", "text": m.text}] if m.text else []
            content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments_json)} for c in m.tool_calls]
        elif m.role == "tool":
            content = [{"type": "tool_result", "tool_use_id": m.tool_call_id, "content": m.text}]
        else:
            content = [{"type": "text", "text": m.text}]
        role = "user" if m.role == "tool" else m.role
        if messages and messages[-1]["role"] == role == "user" and history[position - 1].role == "tool":
            messages[-1]["content"] += content
        else:
            messages.append({"role": role, "content": content})
    offered = [{"name": t.name, "description": t.description, "input_schema": json.loads(t.parameters_json)} for t in tools]
    return {**body, "messages": messages, **({"tools": offered} if offered else {})}


def _blocks_to_message(blocks: list[dict[str, Any]]) -> Message:
    return Message(
        role="assistant",
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tool_calls=tuple(
            ToolCall(id=block["id"], name=block["name"], arguments_json=json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ),
    )


def _anthropic_read(reply: dict[str, Any]) -> Message:
    message = _blocks_to_message(reply["content"])
    assert reply["content"] and reply["stop_reason"] in (
        "max_tokens",
        *(("tool_use",) if message.tool_calls else ("end_turn", "stop_sequence")),
    )
    return message


def _anthropic_read_stream(raw: str) -> Message:
    events = [event for event in sse(raw) if event["type"] != "ping"]
    assert (events[0]["type"], events[-2]["type"], events[-1]["type"]) == ("message_start", "message_delta", "message_stop")
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            blocks.append({**event["content_block"], "partial_json": ""})
            is_open = True
        elif event["type"] == "content_block_delta":
            kind, delta = blocks[-1]["type"], event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"], "partial_json")
            assert is_open and event["index"] == len(blocks) - 1
            assert kind == {"text": "text", "partial_json": "tool_use"}.get(field, "thinking")
            blocks[-1][field] += delta[field]
        else:
            assert event["type"] == "content_block_stop" and is_open
            is_open = False
    assert not is_open and blocks
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["partial_json"])
    return _blocks_to_message(blocks)


ANTHROPIC = WireClient(
    name="anthropic",
    path="/v1/messages",
    body=_anthropic_body,
    read=_anthropic_read,
    read_stream=_anthropic_read_stream,
    ping="event: ping",
    text_delta=lambda piece: '"text_delta"' in piece,
    image=lambda: {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
    error=lambda reply: (reply["error"]["type"] if reply["type"] == "error" else "", reply["error"]["message"]),
    length=lambda reply: reply["stop_reason"] == "max_tokens",
)


# ---------------------------------------------------------------- responses


def _responses_body(history: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for m in history:
        if m.role == "tool":
            items.append({"type": "function_call_output", "call_id": m.tool_call_id, "output": m.text})
            continue
        if m.reasoning:
            summary = [{"type": "summary_text", "text": m.reasoning}]
            items.append({"type": "reasoning", "id": "rs_x", "summary": summary, "content": None, "encrypted_content": None})
        kind = "output_text" if m.role == "assistant" else "input_text"
        if m.text or m.role != "assistant":
            items.append({"type": "message", "role": m.role, "content": [{"type": kind, "text": m.text}]})
        for c in m.tool_calls:
            items.append({"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments_json})
    offered = [{"type": "function", **_function(tool), "strict": False} for tool in tools]
    return {"model": "m", "input": items, "store": False, **({"tools": offered} if offered else {})}


def _items_to_message(items: list[dict[str, Any]]) -> Message:
    return Message(
        role="assistant",
        text="".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        reasoning="".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]),
        tool_calls=tuple(
            ToolCall(id=item["call_id"], name=item["name"], arguments_json=item["arguments"])
            for item in items
            if item["type"] == "function_call"
        ),
    )


def _responses_read(reply: dict[str, Any]) -> Message:
    assert reply["object"] == "response" and reply["status"] in ("completed", "incomplete")
    assert len({item["id"] for item in reply["output"]}) == len(reply["output"])
    return _items_to_message(reply["output"])


def _responses_read_stream(raw: str) -> Message:
    events = sse(raw)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] in ("response.completed", "response.incomplete")
    done: list[dict[str, Any]] = []
    grown = ""
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(done)
        elif event["type"].endswith(("_text.delta", "arguments.delta")):
            assert event["output_index"] == len(done)
            grown += event["delta"]
        elif event["type"] == "response.output_item.done":
            assert event["output_index"] == len(done)
            done.append(event["item"])
    assert done == events[-1]["response"]["output"]
    message = _items_to_message(done)
    assert grown == message.reasoning + message.text + "".join(call.arguments_json for call in message.tool_calls)
    return message


RESPONSES = WireClient(
    name="openai_responses",
    path="/v1/responses",
    body=_responses_body,
    read=_responses_read,
    read_stream=_responses_read_stream,
    ping="event: response.in_progress",
    text_delta=lambda piece: "output_text.delta" in piece,
    image=lambda: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
    error=lambda reply: (reply["error"]["type"], reply["error"]["message"]),
    length=lambda reply: reply["status"] == "incomplete" and reply["incomplete_details"]["reason"] == "max_output_tokens",
)

CLIENTS = (CHAT, ANTHROPIC, RESPONSES)
