"""What real clients do to a history between two calls, wire by wire: no echo loses a match, no real change is taken for an echo."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from proxy_fakes import TOOL, FakeEngine, RecordedCalls, call_text, make_model_dir

from gyre.rollout.answers import AnswerReader
from gyre.rollout.generation import SamplingRules
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer
from gyre.rollout.wires.openai_responses import parse_request
from gyre.trajectory.roles import RoleRules

END = 2
ID = "g000000-00"
RULES = RoleRules.from_profile({"role_rules": [{"role": "sub-agent", "system_contains": "cc_is_subagent=true"}]})
SCHEMA = TOOL["function"]["parameters"]


class Client:
    """Posts to one execution of a proxy whose engine says the given texts in turn."""

    def __init__(self, proxy: Proxy, base: str, session: aiohttp.ClientSession, engine: FakeEngine) -> None:
        self.proxy, self.base, self.session, self.engine = proxy, base, session, engine

    async def messages(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        tools = [{"name": "write_file", "description": "Write.", "input_schema": SCHEMA}]
        return await self.post("/v1/messages?beta=true", {"model": "claude-x", "messages": messages, "tools": tools, **fields})

    async def responses(self, items: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        tools = [{"type": "function", "name": "write_file", "parameters": SCHEMA}]
        return await self.post("/v1/responses", {"model": "gpt-x", "input": items, "tools": tools, **fields})

    async def chat(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return (await self.post("/v1/chat/completions", {"messages": messages, "tools": [TOOL], **fields}))["choices"][0]["message"]

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.session.post(self.base + path, json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    def column(self, name: str = "parent_node_id") -> list[Any]:
        table = self.proxy.calls_table(ID, 1)
        assert table is not None
        # No token is ever made again: each call's context begins with its parent's, sampled tokens included.
        rows = table.to_pylist()
        for row, body in zip(rows, self.engine.bodies, strict=True):
            parent = row["parent_node_id"]
            past = [] if parent is None else self.engine.bodies[parent]["input_ids"] + rows[parent]["output_ids"]
            assert body["input_ids"] == past + row["input_ids"]
        return [row[name] for row in rows]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory) -> Renderer:
    return Renderer(make_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def reader() -> AnswerReader:
    return AnswerReader(tool_parser="qwen3_coder", reasoning_parser="qwen3")


@pytest.fixture
async def connect(renderer, reader):
    opened: list[Any] = []

    async def connected(*texts: str) -> Client:
        engine = await FakeEngine(*[[*renderer.encode(text), END] for text in texts]).__aenter__()
        rules = SamplingRules(max_new_tokens=400, context_limit=4000)
        proxy = Proxy(renderer=renderer, reader=reader, engines=engine, sampling=rules, on_call=RecordedCalls())
        url = await proxy.start()
        key = proxy.open_execution(ID, attempt=1, role_rules=RULES)
        session = aiohttp.ClientSession()
        opened.append((engine, proxy, session))
        return Client(proxy, f"{url}/x/{key}", session, engine)

    yield connected
    for engine, proxy, session in opened:
        await session.close()
        await proxy.stop()
        await engine.__aexit__()


def text(value: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **marks}


def result(call_id: str, content: Any = "ok", **fields: Any) -> dict[str, Any]:
    return {"tool_use_id": call_id, "type": "tool_result", "content": content, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


MARK = {"cache_control": {"type": "ephemeral"}}

# ---------------------------------------------------------------- Claude Code


async def test_cache_marks_strings_and_the_billing_line_are_no_changes(connect):
    client = await connect("One.", "Two.", "Three.")
    rules, billing = text("You edit.", **MARK), "x-anthropic-billing-header: cc_version=1.{}; cc_entrypoint=cli;"
    await client.messages([user(text("go", **MARK))], system=[text(billing.format("a")), rules])
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [text("One.")]}]
    await client.messages([*history, user(text("on", **MARK))], system=[text(billing.format("b")), rules])
    history += [user(text("on")), {"role": "assistant", "content": "Two."}]
    await client.messages([*history, user(text("and", **MARK))], system="You edit.", model="claude-haiku-x")
    assert client.column() == [None, 0, 1]
    assert "billing" not in client.proxy._services.renderer.decode(client.engine.bodies[0]["input_ids"])


async def test_the_note_to_the_server_is_seen_by_role_rules(connect):
    client = await connect("One.", "Two.")
    for note in ("cc_entrypoint=cli;", "cc_entrypoint=cli; cc_is_subagent=true;"):
        await client.messages([user(text("go"))], system=[text(f"x-anthropic-billing-header: {note}"), text("You edit.")])
    assert client.column("role") == ["main", "sub-agent"]


async def test_inputs_written_anew_and_results_in_completion_order_with_a_reminder_are_one_lineage(connect):
    client = await connect("I write." + call_text("a.py", "5000.0") + call_text("b.py", "é"), "Next." + call_text("c", "d"), "Done.")
    reply = await client.messages([user(text("go"))])
    first, second = (block for block in reply["content"] if block["type"] == "tool_use")
    echo = {
        "role": "assistant",
        "content": [
            text("I write."),
            {"type": "tool_use", "id": first["id"], "name": "write_file", "input": {"content": 5000, "path": "a.py", "all": False}},
            {"type": "tool_use", "id": second["id"], "name": "write_file", "input": {"__unparsed": {"raw": "{", "len": 1}}, **MARK},
        ],
    }
    late = result(first["id"], "a\n\n<note>remember</note>", is_error=False, **MARK)
    history = [user(text("go")), echo, user(result(second["id"], [text("b")]), late)]
    reply = await client.messages(history)
    # The reminder stays where it was glued; the marks move on; the next results come in their calls' order.
    history[2] = user(result(first["id"], [text("a\n\n<note>remember</note>")]), result(second["id"], "b", is_error=False))
    call = next(block for block in reply["content"] if block["type"] == "tool_use")
    await client.messages([*history, {"role": "assistant", "content": reply["content"]}, user(result(call["id"], "", is_error=True))])
    assert client.column() == [None, 0, 1]


@pytest.mark.parametrize("blank", ["", "  \n", "<think>\nhm\n</think>\n\n"])
async def test_a_dropped_answer_and_the_sentence_added_for_it(connect, blank):
    client = await connect(blank, call_text("a", "b"), blank, blank, "Done.")
    added = text("[No visible output. Please continue.]", **MARK)
    await client.messages([user(text("go"))])
    first = user(text("go"), added)
    reply = await client.messages([first])
    call = next(block for block in reply["content"] if block["type"] == "tool_use")
    history = [first, {"role": "assistant", "content": [call]}]
    await client.messages([*history, user(result(call["id"]))])
    await client.messages([*history, user(result(call["id"]), added)])
    await client.messages([*history, user(result(call["id"]), added, added)])
    assert client.column() == [None, 0, 1, 2, 3]


async def test_blocks_that_were_always_several_stay_one_message(connect):
    client = await connect("One.", "Two.")
    first = user(text("note"), text("go"))
    await client.messages([first])
    await client.messages([first, {"role": "assistant", "content": [text("One.")]}, user(text("on"))])
    assert client.column() == [None, 0]
    assert client.column("messages") == [2, 2]


async def test_system_entries_between_turns_flip_their_form(connect):
    client = await connect("One.", "Two.", "Three.")
    history = [user(text("go")), {"role": "system", "content": [text("be brief", **MARK)]}]
    await client.messages(history)
    history[1] = {"role": "system", "content": "be brief"}
    history += [{"role": "assistant", "content": [text("One.")]}, user(text("on")), {"role": "system", "content": [text("now")]}]
    await client.messages(history)
    history[-1] = {"role": "system", "content": "now"}
    await client.messages([*history, {"role": "assistant", "content": [text("Two.")]}, user(text("end"))])
    assert client.column() == [None, 0, 1]


async def test_thinking_with_its_signature_or_without_is_the_same_answer(connect):
    client = await connect("<think>\nhm\n</think>\n\nI write." + call_text("a", "b"), "Done.", "Else.")
    reply = await client.messages([user(text("go"))], thinking={"type": "enabled", "budget_tokens": 1024})
    thought, said, call = reply["content"]
    assert (thought["type"], thought["thinking"], bool(thought["signature"])) == ("thinking", "hm", True)
    for content in ([thought, said, call], [{"type": "redacted_thinking", "data": "x"}, said, {**thought, "thinking": ""}, call]):
        await client.messages([user(text("go")), {"role": "assistant", "content": content}, user(result(call["id"]))])
    assert client.column() == [None, 0, 0]


async def test_a_summary_without_the_newest_turn_attaches_below_the_last_turn_it_holds(connect):
    client = await connect("One.", "Two.", "All so far.")
    history = [user(text("go")), {"role": "assistant", "content": [text("One.")]}]
    await client.messages(history[:1])
    await client.messages([*history, user(text("on"))])
    await client.messages([*history, user(text("Summarize."))])
    assert client.column() == [None, 0, 0]


async def test_an_edited_turn_is_a_branch_where_it_begins(connect):
    client = await connect("One.", "Two.", "Three.")
    history = [user(text("go")), {"role": "assistant", "content": [text("One.")]}]
    await client.messages(history[:1])
    await client.messages([*history, user(text("on"))])
    edited = [*history, user(text("on")), {"role": "assistant", "content": [text("Too.")]}, user(text("end"))]
    await client.messages(edited)
    assert client.column() == [None, 0, 0]
    assert client.column("messages") == [2, 2, 4]


# ---------------------------------------------------------------- Codex


def said(value: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": value}], **fields}


def output(call: dict[str, Any], value: Any = "ok") -> dict[str, Any]:
    return {"type": f"{call['type']}_output", "id": "fco_x", "call_id": call["call_id"], "output": value}


async def test_items_echoed_with_ids_and_reasoning_without_content_are_one_lineage(connect):
    client = await connect("<think>\nhm\n</think>\n\nI write." + call_text("a", "b") + call_text("c", "d"), "Done.", "Bye.")
    begin = [said("be brief", "developer", id="msg_a"), said("You may.", "developer"), said("go", id="msg_b")]
    reply = await client.responses(begin, client_metadata={"b": "1", "a": "2"})
    reasoning, words, one, two = reply["output"]
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call", "function_call"]
    echo = [{**reasoning, "content": None}, {**words, "phase": "commentary"}, one, two]
    # Outputs come in completion order, and some versions put them right behind their calls.
    orders = ([*echo, output(two), output(one)], [*echo[:3], output(one), two, output(two)])
    for order in orders:
        await client.responses([*begin, *order], client_metadata={"a": "3"})
    assert client.column() == [None, 0, 0]
    assert client.engine.bodies[1]["input_ids"] == client.engine.bodies[2]["input_ids"]


async def test_items_without_ids_are_put_together_by_their_order(connect):
    client = await connect("I write." + call_text("a", "b"), "Again." + call_text("c", "d"), "Done.")
    history = [said("go")]
    for _ in range(2):
        reply = await client.responses(history)
        words, call = ({k: v for k, v in item.items() if k != "id"} for item in reply["output"])
        history = [*history, words, call, output(call, [{"type": "input_text", "text": "ok"}])]
    await client.responses(history)
    assert client.column() == [None, 0, 1]


def test_answers_in_a_row_are_told_apart_by_id_or_by_what_begins_one():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    ours = [said("One.", "assistant", id="msg_gyre-a-0"), said("Two.", "assistant", id="msg_gyre-b-0")]
    assert [m.text for m in parse_request({"input": ours}).messages] == ["One.", "Two."]
    foreign = [said("One.", "assistant"), call, said("Two.", "assistant"), call, call]
    assert [(m.text, len(m.tool_calls)) for m in parse_request({"input": foreign}).messages] == [("One.", 1), ("Two.", 2)]


async def test_tools_in_a_namespace_and_custom_tools_go_out_and_come_back(connect):
    spawn = "<tool_call>\n<function=spawn>\n<parameter=task>\nx\n</parameter>\n</function>\n</tool_call>"
    patch = "<tool_call>\n<function=patch>\n<parameter=input>\n*** Begin\n</parameter>\n</function>\n</tool_call>"
    client = await connect(spawn + patch, "Done.")
    inner = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {"task": {"type": "string"}}}}
    tools = [
        {"type": "namespace", "name": "agents", "tools": [inner]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar"}},
        {"type": "web_search"},
    ]
    first, second = (await client.responses([said("go")], tools=tools))["output"]
    assert (first["type"], first["name"], first["namespace"]) == ("function_call", "spawn", "agents")
    assert (second["type"], second["name"], second["input"]) == ("custom_tool_call", "patch", "*** Begin")
    await client.responses([said("go"), first, second, output(first), output(second)], tools=tools)
    assert client.column() == [None, 0]


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background"])
async def test_state_that_nobody_keeps_is_refused(connect, field):
    client = await connect()
    async with client.session.post(f"{client.base}/v1/responses", json={"input": "go", field: True}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, field)


# ---------------------------------------------------------------- Qwen Code, opencode, mini-swe-agent


def compact(call: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    return {**call, "function": {**call["function"], "arguments": arguments}}


ECHOES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "qwen-code": lambda m: {**m, "tool_calls": [compact(c) for c in m["tool_calls"]]},
    "opencode": lambda m: {**m, "content": m["content"] or "", "tool_calls": [compact(c) for c in m["tool_calls"]]},
    "mini": lambda m: {k: v for k, v in m.items() if v is not None and k != "reasoning_content"},
}


@pytest.mark.parametrize("harness", list(ECHOES))
async def test_chat_clients_echo_an_answer_in_their_own_ways(connect, harness):
    client = await connect("<think>\nhm\n</think>\n\n" + call_text("a", "b") + call_text("c", "d"), "Done.", "Bye.")
    history = [{"role": "system", "content": "You edit."}, {"role": "user", "content": [text("go")]}]
    message = await client.chat(history)
    assert message["reasoning_content"] == "hm"
    history += [ECHOES[harness](message)]
    history += [{"role": "tool", "tool_call_id": call["id"], "content": [text("ok")]} for call in message["tool_calls"]]
    message = await client.chat(history)
    await client.chat([*history, message, {"role": "user", "content": "more"}])
    assert client.column() == [None, 0, 1]
