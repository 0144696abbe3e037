"""The Anthropic Messages wire: bodies to neutral requests, answers to bodies and events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gyre.rollout.wires.anthropic import EventWriter, parse_request, render_error, render_response
from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, not_authorized, prompt_too_long
from gyre.trajectory.messages import Message, ToolCall

THINKING = ChatRequest(messages=(), model="claude-x", shows_reasoning=True)
CALL = ToolCall(id="call_1", name="run", arguments_json='{"a": 1}')


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 100, "messages": list(messages), **fields}


def text(value: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **marks}


def answer(**changes: Any) -> Answer:
    fields = {
        "answer_id": "1",
        "message": Message(role="assistant", text="hi"),
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cached_tokens": 3,
        "created_at_s": 7.9,
    }
    return Answer(**{**fields, **changes})


def events(*pieces: str, reasoning: str = "", final: Answer, request: ChatRequest = THINKING) -> list[dict[str, Any]]:
    writer = EventWriter(request, answer_id="1", prompt_tokens=5)
    raw = writer.start() + (writer.text(reasoning, is_reasoning=True) if reasoning else b"")
    raw += b"".join(writer.text(piece) for piece in pieces) + writer.finish(final)
    found = []
    for block in raw.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def test_reads_a_whole_history():
    request = parse_request(
        body(
            {"role": "user", "content": [text("a"), text("b", cache_control={"type": "ephemeral"})]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    text("I run."),
                    {"type": "tool_use", "id": "c1", "name": "run", "input": {"a": "é"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    text("a reminder"),
                    {"type": "tool_result", "tool_use_id": "c1", "content": [text("one"), text("two")], "is_error": False},
                ],
            },
            {"role": "system", "content": "be brief"},
            system=[text("x-anthropic-billing-header: cc=1; cc_is_subagent=true;"), text("You edit."), text("Always.")],
            tools=[
                {"name": "run", "description": "Run.", "input_schema": {"type": "object"}},
                {"type": "web_search_20250305", "name": "web"},
            ],
            tool_choice={"type": "tool", "name": "run"},
            thinking={"type": "enabled", "budget_tokens": 31999},
            stop_sequences=["END"],
            stream=True,
            temperature=0.2,
        )
    )
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "You edit.\nAlways."),
        ("user", "a\nb"),
        ("assistant", "I run."),
        ("tool", "one\ntwo"),
        ("user", "a reminder"),
        ("system", "be brief"),
    ]
    assert request.messages[1].parts == ("a", "b")
    assert request.messages[2].tool_calls == (ToolCall(id="c1", name="run", arguments_json='{"a": "é"}'),)
    assert (request.messages[2].reasoning, request.messages[3].tool_call_id) == ("hm", "c1")
    assert "cc_is_subagent=true" in request.server_note
    assert [(tool.name, tool.parameters_json) for tool in request.tools] == [("run", '{"type": "object"}')]
    assert (request.is_streamed, request.max_tokens, request.stop) == (True, 100, ("END",))
    assert (request.has_forced_tool, request.shows_reasoning) == (True, True)
    assert request.asked["temperature"] == 0.2


@pytest.mark.parametrize("content", ["hi", [text("hi")], [text("hi", cache_control={"type": "ephemeral"})]])
def test_one_text_is_one_text_however_it_is_written(content: Any):
    found = parse_request(body({"role": "user", "content": content}, system=content)).messages
    assert found == (Message(role="system", text="hi"), Message(role="user", text="hi"))


@pytest.mark.parametrize("kind", ["image", "document", "audio"])
def test_what_is_not_text_is_refused_in_the_wires_own_shape(kind: str):
    block = {"type": kind, "source": {"type": "base64", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    for content in ([text("look"), block], [result]):
        with pytest.raises(WireError, match="reads text only") as raised:
            parse_request(body({"role": "user", "content": content}))
        error = render_error(raised.value)
        assert (raised.value.status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
        assert kind in error["error"]["message"]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {"messages": []},
        {"messages": [1]},
        body({"role": "robot", "content": "a"}),
        body({"role": "user", "content": 1}),
        body({"role": "user", "content": [1]}),
        body({"role": "user", "content": [{"type": "text"}]}),
        body({"role": "user", "content": [{"type": "tool_result"}]}),
        body({"role": "assistant", "content": [{"type": "tool_use", "name": "a"}]}),
        body({"role": "user", "content": "a"}, tools={}),
        body({"role": "user", "content": "a"}, tools=[{}]),
        body({"role": "user", "content": "a"}, max_tokens=0),
        body({"role": "user", "content": "a"}, stop_sequences="a"),
        body({"role": "user", "content": "a"}, system=[{"type": "image"}]),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(bad: Any):
    with pytest.raises(WireError) as raised:
        parse_request(bad)
    assert raised.value.status == 400


def test_a_body_holds_blocks_the_reason_and_the_usage():
    message = Message(role="assistant", text="I run.", reasoning="hm", tool_calls=(CALL,))
    reply = render_response(answer(message=message), THINKING)
    assert [block["type"] for block in reply["content"]] == ["thinking", "text", "tool_use"]
    assert reply["content"][2]["input"] == {"a": 1}
    assert (reply["stop_reason"], reply["stop_sequence"], reply["model"]) == ("tool_use", None, "claude-x")
    assert reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"] == 5
    hidden = render_response(answer(message=message), ChatRequest(messages=(), shows_reasoning=False))
    assert [block["type"] for block in hidden["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    ("changes", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"stop_string": "END"}, "stop_sequence", "END"),
        ({"message": Message(role="assistant", tool_calls=(CALL,))}, "tool_use", None),
    ],
)
def test_stop_reasons(changes: dict[str, Any], reason: str, sequence: str | None):
    reply = render_response(answer(**changes), THINKING)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)
    assert events(final=answer(**changes))[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_errors_have_the_wires_shape():
    assert render_error(not_authorized())["error"]["type"] == "authentication_error"
    assert render_error(prompt_too_long(11, 10))["error"]["message"].startswith("prompt is too long: 11 tokens > 10 maximum")
    assert render_error(WireError(503, "server_error", "x"))["error"]["type"] == "overloaded_error"
    assert render_error(WireError(500, "server_error", "x"))["error"]["type"] == "api_error"


def assert_case_15(found: list[dict[str, Any]]) -> None:
    """One start; a delta is of its block's kind; indices rise; every block is opened once and closed; one end."""
    kinds = {"text": ("text_delta",), "thinking": ("thinking_delta", "signature_delta"), "tool_use": ("input_json_delta",)}
    assert [event["type"] for event in found].count("message_start") == 1
    assert (found[0]["type"], found[-2]["type"], found[-1]["type"]) == ("message_start", "message_delta", "message_stop")
    current, kind = -1, None
    for event in found[1:-2]:
        if event["type"] == "content_block_start":
            assert kind is None and event["index"] == current + 1
            current, kind = event["index"], event["content_block"]["type"]
        elif event["type"] == "content_block_delta":
            assert kind is not None and event["index"] == current and event["delta"]["type"] in kinds[kind]
        elif event["type"] == "content_block_stop":
            assert kind is not None and event["index"] == current
            kind = None
        else:
            assert event["type"] == "ping"
    assert kind is None and current >= 0


@pytest.mark.parametrize("reasoning", ["", "hm"])
@pytest.mark.parametrize("pieces", [(), ("I ", "run.")])
@pytest.mark.parametrize("calls", [(), (CALL,), (CALL, CALL)])
@pytest.mark.parametrize("shows", [True, False])
def test_case_15_block_types_match_deltas_and_there_is_one_start(reasoning: str, pieces: tuple[str, ...], calls: Any, shows: bool):
    request = ChatRequest(messages=(), shows_reasoning=shows)
    final = answer(message=Message(role="assistant", text="".join(pieces), reasoning=reasoning, tool_calls=calls))
    found = events(*pieces, reasoning=reasoning, final=final, request=request)
    assert_case_15(found)
    # What the events say together is what the body says.
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"])
            if name is not None:
                blocks[-1][name] += delta[name]
            else:
                blocks[-1]["input"] = json.loads(delta["partial_json"])
    assert blocks == render_response(final, request)["content"]
