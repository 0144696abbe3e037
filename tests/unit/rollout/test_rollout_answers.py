"""Taking sampled text apart."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_fakes import call_text

from gyre.errors import UserError
from gyre.rollout import growing
from gyre.rollout.answers import AnswerReader, CallIds
from gyre.rollout.growing import rest_of
from gyre.trajectory.messages import ToolSpec

TOOLS = (ToolSpec(name="write_file", parameters_json='{"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}'),)


@pytest.fixture(scope="module")
def reader() -> AnswerReader:
    return AnswerReader(tool_parser="qwen3_coder")


def test_text_before_a_call_is_text(reader):
    answer = reader.read("Look:" + call_text("a.py", "x = 1\n"), TOOLS, is_cut=False)
    assert answer.text == "Look:"
    assert answer.calls == (("write_file", '{"path": "a.py", "content": "x = 1\\n"}'),)


def test_parallel_calls_get_their_own_ids(reader):
    message = reader.read(call_text("a", "1") + "\n" + call_text("b", "2"), TOOLS, is_cut=False).to_message(CallIds("e", 1))
    assert len({call.id for call in message.tool_calls}) == 2
    assert [c.id for c in message.tool_calls] == [CallIds("e", 1).next(), message.tool_calls[1].id]


def test_half_a_call_is_none_but_what_was_closed_before_it_is(reader):
    text = call_text("a", "1") + "\n" + call_text("b", "2")[:-8]
    assert reader.read(text, TOOLS, is_cut=True).calls == (("write_file", '{"path": "a", "content": "1"}'),)
    only = reader.read(call_text("b", "2")[:-8], TOOLS, is_cut=True)
    assert (only.calls, only.text) == ((), call_text("b", "2")[:-8])


def test_garbage_in_call_marks_is_given_as_text(reader):
    answer = reader.read("<tool_call>\nno\n</tool_call>", TOOLS, is_cut=False)
    assert (answer.text, answer.calls) == ("<tool_call>\nno\n</tool_call>", ())


def test_without_tools_nothing_is_a_call(reader):
    assert reader.read(call_text("a", "1"), (), is_cut=False).calls == ()


def test_json_calls_and_thinking_by_name():
    reader = AnswerReader(tool_parser="qwen25", reasoning_parser="qwen3")
    answer = reader.read(
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "write_file", "arguments": {"path": "a"}}\n</tool_call>', TOOLS, is_cut=False
    )
    assert (answer.reasoning, answer.text.strip(), [name for name, _ in answer.calls]) == ("hm", "", ["write_file"])


def test_an_unknown_parser_is_a_sentence():
    with pytest.raises(UserError, match="no tool-call parser 'qwen9'"):
        AnswerReader(tool_parser="qwen9")


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="ab<tool_call>\n", max_size=60))
def test_no_text_makes_the_reader_fail_or_lose_everything(reader, text):
    for is_cut in (True, False):
        answer = reader.read(text, TOOLS, is_cut=is_cut)
        assert answer.calls or answer.text == text


@pytest.fixture(scope="module")
def thinker() -> AnswerReader:
    return AnswerReader(tool_parser="qwen3_coder", reasoning_parser="qwen3")


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["", *(f"<think>{thought}</think>" for thought in ("Hm, <b> so.", "", " x "))]),
    st.text(alphabet="a <tol_c", max_size=20),
    st.sampled_from(["", call_text("a", "1"), "<tool_call>x"]),
    st.sampled_from([(), ("END",), ("aa",)]),
    st.lists(st.integers(1, 5), max_size=60),
)
def test_what_is_sent_early_is_the_beginning_of_what_is_read_at_the_end(thinker, thinking, head, tail, stops, cuts):
    whole = thinking + head + tail
    growing, end, pieces = thinker.open(has_tools=True, stops=stops), 0, []
    for step in [*cuts, len(whole)]:
        pieces += growing.feed(whole[end : end + step])
        end = min(len(whole), end + step)
    for stop in stops:
        whole = whole.split(stop, 1)[0]
    answer = thinker.read(whole, TOOLS, is_cut=False)
    sent = {kind: "".join(text for text, is_reasoning in pieces if is_reasoning is kind) for kind in (True, False)}
    assert answer.reasoning.startswith(sent[True])
    assert rest_of(answer.text, sent[False]) is not None
    assert not (sent[False].isspace())


def test_without_marks_of_its_own_nothing_is_sent_early():
    assert AnswerReader(tool_parser="pythonic").open(has_tools=True) is None
    assert AnswerReader(tool_parser="pythonic").open(has_tools=False) is not None
    assert AnswerReader(tool_parser=None, reasoning_parser="gpt-oss").open(has_tools=False) is None


@pytest.mark.parametrize(
    ("whole", "sent", "rest"), [("", "", ""), ("a b", "a", " b"), ("a b", "a  b ", ""), ("ab", "b", None), ("a", "ab", None)]
)
def test_the_rest_of_a_text(whole, sent, rest):
    assert rest_of(whole, sent) == rest


def test_doctests_of_growing_answers():
    assert doctest.testmod(growing).failed == 0
