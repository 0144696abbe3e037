"""Answers on the OpenAI Responses wire: neutral answers to response objects and to events.

An answer is a list of items: reasoning as a summary (the part that clients show and echo), text, calls. Item ids carry the id of their
answer, so that `openai_responses` can put an echoed answer together again.
"""

from __future__ import annotations

import json
from typing import Any

from gyre.rollout.wires.neutral import Answer, ChatRequest
from gyre.trajectory.messages import ToolCall

CUSTOM = "custom tool"
"""Stands where a namespace would: no client can name one so."""


def find_answer_id(item_id: Any) -> str:
    """The answer in an item id of ours, e.g. `fc_gyre-…-0`; empty for any other."""
    if not isinstance(item_id, str):
        return ""
    _, _, rest = item_id.partition("_gyre-")
    return rest.rpartition("-")[0]


def _item_id(prefix: str, answer_id: str, number: int) -> str:
    return f"{prefix}_gyre-{answer_id}-{number}"


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
