from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_toys import ToyProxy

from gyre.trajectory.messages import Message, ToolCall, ToolSpec
from gyre.trajectory.restore import (
    ToolCallCache,
    answer_digests,
    canonical_json,
    history_digests,
    is_blank,
    message_digest,
    restore_history,
)

SYSTEM = Message(role="system", text="You edit files.")
USER = Message(role="user", text="Fix it.")


def call(call_id: str, arguments_json: str, name: str = "edit") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments_json=arguments_json)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"n": 5000.0}', '{"n": 5000}'),
        ('{"n": 1e3, "m": [1.0, -0.0]}', '{"n": 1000, "m": [1, 0]}'),
        ('{"s": "\\u00e9\\/"}', '{"s": "é/"}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("  ", "{}"),
        ("{}", "{ }"),
        ("not json ", " not json"),
    ],
)
def test_equal_arguments_have_one_spelling(one: str, other: str) -> None:
    assert canonical_json(one) == canonical_json(other)


@pytest.mark.parametrize(
    ("one", "other"), [('{"a": 1}', '{"a": "1"}'), ('{"a": null}', "{}"), ('{"a": true}', '{"a": 1}'), ("[1, 2]", "[2, 1]")]
)
def test_different_arguments_stay_different(one: str, other: str) -> None:
    assert canonical_json(one) != canonical_json(other)


def test_hopeless_json_is_only_text() -> None:
    deep = "[" * 100_000
    assert canonical_json(deep) == deep
    assert canonical_json('{"n": NaN}') == canonical_json('{ "n":NaN }')


REWRITES = {
    "key order, spaces and number formats": '{"n":5000,"path":"a.py"}',
    "added defaults": '{"path": "a.py", "n": 5000.0, "replace_all": false}',
    "wrapped as a string": json.dumps({"raw": '{ "path": "a.py"'}),
    "emptied": "",
}


@pytest.mark.parametrize("rewritten", REWRITES.values(), ids=REWRITES.keys())
def test_a_call_with_an_id_of_ours_is_known_whatever_became_of_its_arguments(rewritten: str) -> None:
    proxy = ToyProxy()
    original = '{ "path": "a.py", "n": 5000.0 }'
    first = proxy.call([SYSTEM, USER], Message(role="assistant", tool_calls=(call("c1", original),)))
    echo = Message(role="assistant", tool_calls=(call("c1", rewritten),))
    history = [SYSTEM, USER, echo, Message(role="tool", text="done", tool_call_id="c1")]
    assert proxy.call(history, Message(role="assistant", text="ok")) == 1
    assert proxy.tree.nodes[1].parent_node_id == first
    assert restore_history(history, proxy.cache)[2].tool_calls[0].arguments_json == original


def test_a_harness_that_gives_calls_its_own_ids_is_followed_by_name_and_arguments() -> None:
    proxy = ToyProxy()
    first = proxy.call([SYSTEM, USER], Message(role="assistant", tool_calls=(call("c1", '{"a": 1}'),)))
    echo = Message(role="assistant", tool_calls=(call("toolu-9", '{"a":1.0}'),))
    second = proxy.call([SYSTEM, USER, echo, Message(role="tool", text="done", tool_call_id="toolu-9")], Message(role="assistant"))
    assert proxy.tree.nodes[second].parent_node_id == first


def test_parallel_results_in_any_order_are_one_history() -> None:
    cache = ToolCallCache()
    answer = Message(role="assistant", tool_calls=(call("c1", "{}"), call("c2", "{}")))
    cache.remember(answer.tool_calls)
    results = [Message(role="tool", text="two", tool_call_id="c2"), Message(role="tool", text="one", tool_call_id="c1")]
    restored = restore_history([USER, answer, *results], cache)
    assert [message.tool_call_id for message in restored] == ["", "", "c1", "c2"]
    assert restored == restore_history([USER, answer, *results[::-1]], cache)


def test_results_of_unknown_calls_keep_their_order_behind_the_others() -> None:
    results = [Message(role="tool", text=text, tool_call_id=text) for text in ("x", "y", "c1")]
    answer = Message(role="assistant", tool_calls=(call("c1", "{}"),))
    restored = restore_history([answer, *results, USER, *results[:2]], ToolCallCache())
    assert [message.text for message in restored] == ["", "c1", "x", "y", "Fix it.", "x", "y"]


def test_the_first_payload_of_an_id_stays() -> None:
    cache = ToolCallCache()
    cache.remember([call("c1", '{"a": 1}')])
    cache.remember([call("c1", '{"a": 2}'), call("", "{}")])
    assert cache.restore(Message(role="assistant", tool_calls=(call("c1", "?"),))).tool_calls[0].arguments_json == '{"a": 1}'
    assert "" not in cache


def test_other_tools_share_no_prefix_and_their_order_does_not_matter() -> None:
    cache = ToolCallCache()
    edit, run = ToolSpec(name="edit", parameters_json='{"a": 1}'), ToolSpec(name="run")
    both = history_digests([SYSTEM, USER], cache, tools=[edit, run])
    assert both == history_digests([SYSTEM, USER], cache, tools=[run, replace(edit, parameters_json='{"a":1}')])
    assert both[0] != history_digests([SYSTEM, USER], cache, tools=[edit])[0]
    assert both[1] == history_digests([SYSTEM, USER], cache)[1]
    assert history_digests([], cache, tools=[edit]) == []


def test_what_the_harness_really_changed_is_new() -> None:
    cache = ToolCallCache()
    answer = Message(role="assistant", text="I edit a.py.")
    changed = [
        replace(answer, text="I edit b.py."),
        replace(answer, role="user"),
        replace(answer, tool_calls=(call("", "{}"),)),
        Message(role="tool", text="I edit a.py."),
    ]
    digests = {message_digest(message, cache) for message in [answer, *changed]}
    assert len(digests) == 5
    assert message_digest(USER, cache) != message_digest(replace(USER, text="Fix  it."), cache)


def test_a_blank_answer_shows_nothing() -> None:
    assert is_blank(Message(role="assistant", text=" \n", reasoning="hm"))
    assert not is_blank(Message(role="assistant", tool_calls=(call("c", "{}"),)))


# What harnesses do to a message that came from the model, by kind (harness.md); none may look like a change.
def _echo(answer: Message, kinds: set[str]) -> Message:
    if "drop thinking" in kinds:
        answer = replace(answer, reasoning="")
    if "trim text" in kinds:
        answer = replace(answer, text=answer.text.strip())
    if "move text" in kinds:
        answer = replace(answer, text=answer.text.replace("\n", ""))
    if "own ids" in kinds:
        answer = replace(answer, tool_calls=tuple(replace(c, id=f"own-{i}") for i, c in enumerate(answer.tool_calls)))
    elif "rewrite arguments" in kinds:
        answer = replace(answer, tool_calls=tuple(replace(c, arguments_json='{"all": false}') for c in answer.tool_calls))
    return answer


KINDS = ["drop thinking", "trim text", "move text", "own ids", "rewrite arguments", "reorder results", "line ends"]
ANSWERS = st.builds(
    Message,
    role=st.just("assistant"),
    text=st.sampled_from(["", " done ", "first\nthen", "ünïcode"]),
    reasoning=st.sampled_from(["", "hm"]),
    tool_calls=st.lists(st.sampled_from(['{"a": 1.0}', "{broken", '{"b":[]}']), max_size=3).map(
        lambda found: tuple(call(f"?{i}", text) for i, text in enumerate(found))
    ),
)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_reformatting_loses_a_token_or_splits_a_lineage(data: st.DataObject) -> None:
    proxy = ToyProxy()
    history = [SYSTEM, USER]
    for turn in range(data.draw(st.integers(1, 8))):
        answer = data.draw(ANSWERS)
        answer = replace(answer, tool_calls=tuple(replace(c, id=f"call-{turn}-{i}") for i, c in enumerate(answer.tool_calls)))
        node = proxy.call(history, answer)
        assert node == turn
        assert proxy.tree.nodes[node].parent_node_id == (turn - 1 if turn else None)
        kinds = data.draw(st.sets(st.sampled_from(KINDS)))
        echo = _echo(answer, kinds)
        results = [Message(role="tool", text=f"result {i} ", tool_call_id=c.id) for i, c in enumerate(echo.tool_calls)]
        if "reorder results" in kinds:
            results.reverse()
        if "line ends" in kinds:
            results = [replace(result, text=result.text.strip() + "\r\n") for result in results]
        history = [*history, echo, *(results or [Message(role="user", text=f"go on {turn}")])]
    assert len(proxy.tree.leaves()) == 1
    assert [len(context) for context in proxy.engine_inputs] == sorted(len(context) for context in proxy.engine_inputs)


def test_answer_digests_remember_the_calls() -> None:
    cache = ToolCallCache()
    known, loose = answer_digests(Message(role="assistant", tool_calls=(call("c1", "{}"),)), cache)
    assert "c1" in cache
    assert known != loose
    assert len(answer_digests(Message(role="assistant", text="hi"), cache)) == 1


def in_blocks(*parts: str) -> Message:
    return Message(role="user", text="\n".join(parts), parts=parts if len(parts) > 1 else ())


def test_what_was_added_behind_a_dropped_answer_is_a_message_of_its_own() -> None:
    cache = ToolCallCache()
    cache.remember_unanswered(in_blocks("note", "go"))
    cache.remember_unanswered(in_blocks("say something"))
    restored = restore_history([SYSTEM, in_blocks("note", "go", "say something", "please")], cache)
    assert [message.text for message in restored] == ["You edit files.", "note\ngo", "say something", "please"]
    assert restored[1].parts == ("note", "go")


@pytest.mark.parametrize("message", [in_blocks("go", "on"), in_blocks("go on", "x"), in_blocks("go"), Message(role="tool", text="go")])
def test_blocks_that_no_dropped_answer_parted_stay_together(message: Message) -> None:
    cache = ToolCallCache()
    cache.remember_unanswered(in_blocks("on"))
    cache.remember_unanswered(Message(role="tool", text="go"))
    assert restore_history([message], cache) == [message]
