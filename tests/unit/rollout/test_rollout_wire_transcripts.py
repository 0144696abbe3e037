"""What each wire writes, byte for byte: whole answers, streams, errors and model lists, as golden files."""

from __future__ import annotations

import json

import pytest

from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, bad_request, not_authorized, prompt_too_long
from gyre.rollout.wires.registry import WIRES
from gyre.trajectory.messages import Message, ToolCall

CALLS = (
    ToolCall(id="call_1", name="write_file", arguments_json='{"path": "a.py", "content": "é"}'),
    ToolCall(id="call_2", name="spawn", arguments_json='{"task": 1}'),
)
REQUEST = ChatRequest(messages=(Message(role="user", text="go"),), model="some-model", wire_names={"spawn": ("agents", "spawn")})
ERRORS = (
    bad_request("messages must be a list", param="messages"),
    not_authorized(),
    prompt_too_long(41, 40),
    WireError(413, "invalid_request", "the body is larger than the proxy reads"),
    WireError(500, "server_error", "a record could not be written"),
    WireError(503, "server_error", "no engine"),
)


def answer(message: Message, **changes: object) -> Answer:
    fields = {
        "answer_id": "7",
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "completion_tokens": 5,
        "cached_tokens": 4,
        "created_at_s": 3.5,
    }
    return Answer(message=message, **{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(WIRES))
def test_transcripts(golden, name):
    wire = WIRES[name]
    final = answer(Message(role="assistant", text="I write.", reasoning="hm", tool_calls=CALLS))
    events = wire.open_events(REQUEST, answer_id="7", created_at_s=3.5, prompt_tokens=12)
    stream = [events.start(), events.text("h", is_reasoning=True), events.text("m", is_reasoning=True), events.ping()]
    stream += [events.text("I "), events.text("write."), events.finish(final)]
    bodies = {
        "answer": wire.render_response(final, REQUEST),
        "cut answer": wire.render_response(answer(Message(role="assistant", text="I wr"), finish_reason="length"), REQUEST),
        "empty answer": wire.render_response(answer(Message(role="assistant")), REQUEST),
        **{f"error {error.status}: {error.message[:20]}": wire.render_error(error) for error in ERRORS},
        "models": wire.render_models(["policy"]),
    }
    parts = [f"# {title}\n{json.dumps(body, indent=1, ensure_ascii=False)}\n" for title, body in bodies.items()]
    golden(f"wires/{name}.txt", "\n".join([*parts, "# stream\n" + b"".join(stream).decode()]))
