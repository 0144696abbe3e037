"""The OpenAI chat wire: bodies to neutral requests, answers to bodies and events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_fakes import TOOL

from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError, not_authorized, prompt_too_long
from gyre.rollout.wires.openai_chat import EventWriter, parse_request, render_error, render_models, render_response
from gyre.trajectory.messages import Message, ToolCall

REQUEST = ChatRequest(messages=(), model="m")


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


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


def test_reads_a_whole_history():
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{ "a":1}'}}
    request = parse_request(
        body(
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            tools=[TOOL],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=9,
            stop="END",
            temperature=0.2,
        )
    )
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[1].text == "a\nb"
    assert request.messages[2].tool_calls == (ToolCall(id="c1", name="run", arguments_json='{ "a":1}'),)
    assert request.messages[2].reasoning == "hm"
    assert request.messages[3].tool_call_id == "c1"
    assert (request.is_streamed, request.wants_usage, request.max_tokens, request.stop) == (True, True, 9, ("END",))
    assert request.asked == {"temperature": 0.2, "max_tokens": 9, "stop": "END"}
    assert json.loads(request.tools[0].parameters_json) == TOOL["function"]["parameters"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([], "must be a JSON object"),
        ({"messages": []}, "at least one message"),
        (body({"role": "wizard"}), "messages\\[0\\].role must be one of"),
        (body({"role": "user", "content": 3}), "must be a string, a list of parts or null"),
        (body({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}), "is not text"),
        (body({"role": "user"}, n=2), "one choice"),
        (body({"role": "user"}, max_tokens=0), "at least 1"),
        (body({"role": "user"}, stop=[1]), "stop must be"),
        (body({"role": "user"}, tools=[{"type": "function"}]), "tools\\[0\\] must be"),
        (body({"role": "assistant", "tool_calls": [{"id": "x"}]}), "must be a function call"),
        (body("hello"), "must be an object"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(bad, words):
    with pytest.raises(WireError, match=words) as raised:
        parse_request(bad)
    assert raised.value.status == 400
    assert render_error(raised.value)["error"]["type"] == "invalid_request_error"


def test_renders_text_calls_and_length():
    call = ToolCall(id="c", name="run", arguments_json="{}")
    plain = render_response(answer(), REQUEST)
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert plain["usage"]["total_tokens"] == 7
    called = render_response(answer(message=Message(role="assistant", tool_calls=(call,))), REQUEST)["choices"][0]
    assert called["message"]["content"] is None
    assert called["message"]["tool_calls"][0]["function"] == {"name": "run", "arguments": "{}"}
    assert called["finish_reason"] == "tool_calls"
    assert render_response(answer(finish_reason="length"), REQUEST)["choices"][0]["finish_reason"] == "length"


def test_errors_have_the_words_that_clients_look_for():
    too_long = render_error(prompt_too_long(9, 8))["error"]
    assert too_long["code"] == "context_length_exceeded"
    assert too_long["message"].startswith("prompt is too long: 9 tokens > 8 maximum")
    assert render_error(not_authorized())["error"]["code"] == "invalid_api_key"
    assert render_models(["policy"])["data"][0]["id"] == "policy"


def test_the_least_sequence_of_events():
    call = ToolCall(id="c", name="run", arguments_json="{}")
    events = EventWriter(answer_id="1", model="m", created_at_s=1.0, wants_usage=True)
    raw = events.start() + events.text("hi") + events.finish(answer(message=Message(role="assistant", text="hi", tool_calls=(call,))))
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert [list(c["choices"][0]["delta"]) for c in chunks[:-1]] == [["role", "content"], ["content"], ["tool_calls"], []]
    assert chunks[3]["choices"][0]["finish_reason"] == "tool_calls"
    assert (chunks[4]["choices"], chunks[4]["usage"]["prompt_tokens"]) == ([], 5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "type", "function"]), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(["messages", "tools", "stop", "max_tokens", "stream", "stream_options", "n", "model", "tool_choice"])


@settings(max_examples=50, deadline=None)
@given(fields=st.dictionaries(FIELDS, JSON), messages=st.lists(JSON, min_size=1, max_size=3))
def test_any_json_is_read_or_refused(fields, messages):
    for found in (fields, {**fields, "messages": messages}):
        try:
            parse_request(found)
        except WireError as error:
            assert error.status == 400  # noqa: PT017  # either outcome is fine, nothing else is
