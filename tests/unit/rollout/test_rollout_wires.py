"""One contract for all wires: the same conversation over any of them, streamed or not, is the same tree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from proxy_fakes import TOOL, FakeEngine, RecordedCalls, call_text, make_model_dir
from wire_clients import ANTHROPIC, CHAT, CLIENTS, RESPONSES, WireClient, sse

from gyre.rollout.answers import AnswerReader
from gyre.rollout.generation import SamplingRules
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer, StreamDecoder
from gyre.rollout.wires.registry import WIRES
from gyre.trajectory.messages import Message, ToolSpec
from gyre.trajectory.roles import RoleRules

END = 2
ID = "g000000-00"
TOOLS = (ToolSpec(name="write_file", description="Write.", parameters_json=json.dumps(TOOL["function"]["parameters"])),)
SYSTEM = Message(role="system", text="You edit.")
USER = Message(role="user", text="Fix it.")

EVERY_WIRE = pytest.mark.parametrize("wire", CLIENTS, ids=lambda client: client.name)
BOTH_WAYS = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def renderer(tmp_path_factory) -> Renderer:
    return Renderer(make_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def readers() -> dict[str, AnswerReader]:
    return {
        "plain": AnswerReader(tool_parser="qwen3_coder"),
        "thinking": AnswerReader(tool_parser="qwen3_coder", reasoning_parser="qwen3"),
    }


class Bench:
    """A proxy with one open execution and a client of one wire."""

    def __init__(self, proxy: Proxy, url: str, key: str, session: aiohttp.ClientSession, wire: WireClient) -> None:
        self.proxy, self.key, self.session, self.wire = proxy, key, session, wire
        self.url = f"{url}/x/{key}{wire.path}"
        self.calls = RecordedCalls()

    async def send(self, body: dict[str, Any], **fields: Any) -> tuple[int, dict[str, Any]]:
        headers = fields.pop("headers", {})
        async with self.session.post(self.url, json={**body, **fields}, headers=headers) as response:
            return response.status, await response.json()

    async def ask(self, *history: Message, tools: Sequence[ToolSpec] = TOOLS, is_streamed: bool = False, **fields: Any) -> Message:
        body = {**self.wire.body(history, tools), **fields}
        if not is_streamed:
            status, reply = await self.send(body)
            assert status == 200, reply
            return self.wire.read(reply)
        return self.wire.read_stream(await self.raw_stream(body))

    async def raw_stream(self, body: dict[str, Any]) -> str:
        async with self.session.post(self.url, json={**body, "stream": True}) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream"), await response.text()
            return await response.text()

    def tree(self) -> list[dict[str, Any]]:
        table = self.proxy.calls_table(ID, 1)
        assert table is not None
        return table.to_pylist()

    def parents(self) -> list[int | None]:
        return [node["parent_node_id"] for node in self.tree()]


@pytest.fixture
def open_bench(renderer, readers) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(engine: Any, wire: WireClient, *, reader: str = "plain", ping_s: float = 10.0, **options: Any) -> AsyncIterator[Bench]:
        calls = RecordedCalls()
        rules = SamplingRules(**{"max_new_tokens": 400, "context_limit": 4000, **options})
        proxy = Proxy(
            renderer=renderer, reader=readers[reader], engines=engine, sampling=rules, on_call=calls, engine_give_up_s=0.2, ping_s=ping_s
        )
        url = await proxy.start()
        key = proxy.open_execution(ID, attempt=1, role_rules=RoleRules())
        async with aiohttp.ClientSession() as session:
            bench = Bench(proxy, url, key, session, wire)
            bench.calls = calls
            yield bench
        await proxy.stop()

    return opened


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_every_registered_wire_has_a_client_here():
    assert {client.name: client.path for client in CLIENTS} == {name: wire.path for name, wire in WIRES.items()}


# ---------------------------------------------------------------- one conversation, one tree

ANSWERS = ("I write two." + call_text("a.py", "x = 1") + call_text("b.py", "é"), "Done.\n\nReally.", " \n", "Yes.", "")


async def converse(bench: Bench, *, is_streamed: bool) -> list[Message]:
    """Tools in parallel, results in completion order, a blank answer that the harness drops, another branch."""
    history = [SYSTEM, USER]
    answers = [await bench.ask(*history, is_streamed=is_streamed)]
    results = [Message(role="tool", text=f"ok {call.name}", tool_call_id=call.id) for call in answers[0].tool_calls]
    history += [answers[0], *reversed(results)]
    answers.append(await bench.ask(*history, is_streamed=is_streamed))
    history += [answers[1], Message(role="user", text="And now?")]
    answers.append(await bench.ask(*history, is_streamed=is_streamed))
    history += [Message(role="user", text="Say something.")]
    answers.append(await bench.ask(*history, is_streamed=is_streamed))
    answers.append(await bench.ask(SYSTEM, Message(role="user", text="Another task."), is_streamed=is_streamed))
    return answers


async def tree_over(open_bench: Any, renderer: Renderer, wire: WireClient, is_streamed: bool) -> tuple[list[Message], Any, Any]:
    engine = FakeEngine(*[[*renderer.encode(text), END] for text in ANSWERS])
    async with engine, open_bench(engine, wire) as bench:
        answers = await converse(bench, is_streamed=is_streamed)
        rows = [{name: value for name, value in row.items() if not name.endswith("_at_s")} for row in bench.tree()]
        stored = [{name: value for name, value in row.items() if not name.endswith("_at_s")} for row in bench.calls.rows]
    assert stored == rows
    return answers, rows, [body["input_ids"] for body in engine.bodies]


@EVERY_WIRE
@BOTH_WAYS
async def test_the_same_conversation_is_the_same_tree_over_every_wire(open_bench, renderer, wire, is_streamed):
    answers, rows, inputs = await tree_over(open_bench, renderer, wire, is_streamed)
    assert [row["parent_node_id"] for row in rows] == [None, 0, 1, 2, None]
    assert [len(answer.tool_calls) for answer in answers] == [2, 0, 0, 0, 0]
    assert json.loads(answers[0].tool_calls[1].arguments_json) == {"path": "b.py", "content": "é"}
    assert [answer.text.strip() for answer in answers] == ["I write two.", "Done.\n\nReally.", "", "Yes.", ""]
    # Contexts are exact: each continues the last, token for token.
    for node in (1, 2, 3):
        assert inputs[node] == inputs[node - 1] + rows[node - 1]["output_ids"] + rows[node]["input_ids"]
    reference = await tree_over(open_bench, renderer, CLIENTS[0], False)
    for row in (*rows, *reference[1]):
        del row["sampling"]  # each wire has its own fields to ask with
    assert (rows, inputs) == reference[1:]


@EVERY_WIRE
@BOTH_WAYS
async def test_thinking_goes_out_and_its_echo_in_any_form_is_the_same_lineage(open_bench, renderer, wire, is_streamed):
    texts = ["<think>\nhm, é\n</think>\n\nI look." + call_text("a", "b"), "<think>\nso\n</think>\n\nGood.", "Fine."]
    engine = FakeEngine(*[[*renderer.encode(text), END] for text in texts])
    async with engine, open_bench(engine, wire, reader="thinking") as bench:
        first = await bench.ask(USER, is_streamed=is_streamed)
        assert (first.reasoning, first.text.strip(), len(first.tool_calls)) == ("hm, é", "I look.", 1)
        history = [USER, first, Message(role="tool", text="ok", tool_call_id=first.tool_calls[0].id)]
        second = await bench.ask(*history, is_streamed=is_streamed)
        assert (second.reasoning, second.text.strip()) == ("so", "Good.")
        # Now thinking is dropped from the one and kept in the other.
        await bench.ask(USER, replace(first, reasoning=""), history[2], second, Message(role="user", text="go on"))
        assert bench.parents() == [None, 0, 1]
    assert engine.bodies[2]["input_ids"][: len(engine.bodies[1]["input_ids"])] == engine.bodies[1]["input_ids"]


# ---------------------------------------------------------------- streaming


@EVERY_WIRE
async def test_text_goes_out_while_the_engine_generates_and_pings_fill_the_silence(open_bench, renderer, wire):
    engine = FakeEngine([*renderer.encode("Hello there."), END])
    engine.gate, engine.hold_stream_at = asyncio.Event(), 6
    async with engine, open_bench(engine, wire, ping_s=0.03) as bench:
        body = {**wire.body([USER], ()), "stream": True}
        seen = ""
        async with bench.session.post(bench.url, json=body) as response:
            async for piece in response.content.iter_any():
                seen += piece.decode()
                if seen.count(wire.ping) >= 3 and not engine.gate.is_set():
                    assert wire.text_delta(seen)
                    assert bench.tree() == []
                    engine.gate.set()
        assert wire.read_stream(seen).text == "Hello there."


@EVERY_WIRE
async def test_a_stream_that_breaks_is_never_ended_cleanly(open_bench, renderer, wire):
    def broken(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        fake.steps = [lambda *_: web.Response(status=500, text="gone")] * 50
        return fake.reply(renderer.encode("hello"), None)  # a stream that ends without a finish reason

    async with FakeEngine(broken) as engine, open_bench(engine, wire) as bench:
        async with bench.session.post(bench.url, json={**wire.body([USER], ()), "stream": True}) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        assert bench.tree() == []


@EVERY_WIRE
async def test_a_long_streamed_answer_is_decoded_once(open_bench, renderer, wire, monkeypatch):
    decoded: list[int] = []
    for kind, name in ((StreamDecoder, "feed"), (Renderer, "decode")):

        def counting(self: Any, ids: Sequence[int], original: Any = getattr(kind, name)) -> str:
            decoded.append(len(ids))
            return original(self, ids)

        monkeypatch.setattr(kind, name, counting)
    engine = FakeEngine([*renderer.encode("word " * 60), END])
    async with engine, open_bench(engine, wire) as bench:
        assert (await bench.ask(USER, is_streamed=True)).text == "word " * 60
    # Once while it grows, once at its end.
    assert sum(decoded) <= 2 * 301
    assert len(decoded) > 10


# ---------------------------------------------------------------- errors


@EVERY_WIRE
@BOTH_WAYS
async def test_a_prompt_that_is_too_long_is_the_wires_own_400(open_bench, renderer, wire, is_streamed):
    async with FakeEngine() as engine, open_bench(engine, wire, context_limit=30) as bench:
        status, reply = await bench.send(wire.body([Message(role="user", text="x" * 100)], ()), stream=is_streamed)
        kind, words = wire.error(reply)
        assert (status, kind) == (400, "invalid_request_error")
        assert words.startswith("prompt is too long: ") and " tokens > 30 maximum" in words
        if wire is not ANTHROPIC:
            assert reply["error"]["code"] == "context_length_exceeded"
        assert (bench.tree(), engine.bodies) == ([], [])


@EVERY_WIRE
async def test_images_are_refused_in_the_wires_own_shape(open_bench, renderer, wire):
    async with FakeEngine() as engine, open_bench(engine, wire) as bench:
        status, reply = await bench.send(wire.image())
        assert (status, wire.error(reply)[0]) == (400, "invalid_request_error")
        assert "text only" in wire.error(reply)[1]


@EVERY_WIRE
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"{}", b'{"messages": 1, "input": 1}', b"[" * 100_000])
async def test_malformed_bodies_cost_nothing(open_bench, wire, raw):
    async with FakeEngine() as engine, open_bench(engine, wire) as bench, bench.session.post(bench.url, data=raw) as response:
        assert (response.status, wire.error(await response.json())[0]) == (400, "invalid_request_error")


@EVERY_WIRE
async def test_wrong_keys_see_nothing(open_bench, renderer, wire):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine, wire) as bench:
        url, body = bench.url.split("/x/")[0] + wire.path, wire.body([USER], ())
        for headers in ({}, {"Authorization": "Bearer gk-no"}, {"x-api-key": "no"}):
            async with bench.session.post(url, json=body, headers=headers) as response:
                assert (response.status, wire.error(await response.json())[0]) == (401, "authentication_error")
        for headers in ({"Authorization": f"Bearer {bench.key}"},):
            async with bench.session.post(url, json=body, headers=headers) as response:
                assert response.status == 200


@EVERY_WIRE
@BOTH_WAYS
async def test_an_engine_that_stays_away_is_the_wires_error_and_no_record(open_bench, wire, is_streamed):
    class Nowhere:
        async def route(self, execution_id: str) -> str:
            return "http://127.0.0.1:9"

    async with open_bench(Nowhere(), wire) as bench:
        status, reply = await bench.send(wire.body([USER], ()), stream=is_streamed)
        assert (status, bench.tree()) == (503, [])
        assert "cannot be reached" in wire.error(reply)[1]


@EVERY_WIRE
async def test_an_answer_of_the_most_tokens_says_so(open_bench, renderer, wire):
    async with FakeEngine([*renderer.encode("abcdef"), END]) as engine, open_bench(engine, wire, max_new_tokens=3) as bench:
        _, reply = await bench.send(wire.body([USER], ()))
        assert wire.length(reply)
        assert wire.read(reply).text == "abc"
        assert bench.tree()[0]["finish_reason"] == "length"


CACHED: dict[str, Callable[[dict[str, Any]], int]] = {
    "openai_chat": lambda usage: usage["prompt_tokens_details"]["cached_tokens"],
    "openai_responses": lambda usage: usage["input_tokens_details"]["cached_tokens"],
    "anthropic": lambda usage: usage["cache_read_input_tokens"],
}


@EVERY_WIRE
@BOTH_WAYS
async def test_usage_tells_the_whole_context_what_was_cached_and_what_was_sampled(open_bench, renderer, wire, is_streamed):
    def cached(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        reply = fake.reply([*renderer.encode("ab"), END], {"type": "stop", "matched": END})
        reply["meta_info"]["cached_tokens"] = 7
        return reply

    async with FakeEngine(cached) as engine, open_bench(engine, wire) as bench:
        body = {**wire.body([USER], ()), "stream_options": {"include_usage": True}}
        if is_streamed:
            events = sse(await bench.raw_stream(body))
            last = next(e for e in reversed(events) if "usage" in e or "usage" in e.get("response", {}))
            usage = last.get("response", last)["usage"]
        else:
            usage = (await bench.send(body))[1]["usage"]
        assert CACHED[wire.name](usage) == 7
        counted = usage.get("prompt_tokens", usage.get("input_tokens")) + (7 if wire is ANTHROPIC else 0)
        assert counted == len(engine.bodies[0]["input_ids"])
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 3


@pytest.mark.parametrize("wire", [CHAT, ANTHROPIC], ids=lambda client: client.name)
@pytest.mark.parametrize("mark", ["END", "here"])
async def test_a_stop_string_ends_a_streamed_answer_without_being_seen(open_bench, renderer, wire, mark):
    async with FakeEngine([*renderer.encode(f"Up to {mark}")]) as engine, open_bench(engine, wire) as bench:
        stops = {"stop": [mark, "never"], "stop_sequences": [mark, "never"]}
        raw = await bench.raw_stream({**wire.body([USER], ()), **stops})
        assert wire.read_stream(raw).text == "Up to "
        assert raw.count(mark) == (1 if wire is ANTHROPIC else 0)  # named as what stopped it
        assert renderer.decode(bench.tree()[0]["output_ids"]) == f"Up to {mark}"


# ---------------------------------------------------------------- retry or new sample


@EVERY_WIRE
@pytest.mark.parametrize("first_streamed", [False, True])
@pytest.mark.parametrize("then_streamed", [False, True])
async def test_a_client_that_went_away_gets_the_same_call_again(open_bench, renderer, wire, first_streamed, then_streamed):
    async with FakeEngine([*renderer.encode("ab"), END]) as engine, open_bench(engine, wire) as bench:
        engine.gate = asyncio.Event()
        first = asyncio.ensure_future(bench.send(wire.body([USER], ()), stream=first_streamed))
        await wait_for(lambda: len(engine.bodies) == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(bench.ask(USER, tools=(), is_streamed=then_streamed))
        await asyncio.sleep(0.02)
        engine.gate.set()
        assert (await second).text == "ab"
        assert (len(engine.bodies), len(bench.tree())) == (1, 1)


@EVERY_WIRE
@BOTH_WAYS
async def test_an_answer_that_was_not_delivered_whole_is_replayed(open_bench, renderer, wire, is_streamed):
    """The record is durable, the client died before the last event: the resend is the same call, whichever way it is sent."""
    async with FakeEngine([*renderer.encode("ab"), END]) as engine, open_bench(engine, wire) as bench:
        bench.calls.gate = asyncio.Event()
        first = asyncio.ensure_future(bench.send(wire.body([USER], ()), stream=True))
        await wait_for(lambda: len(bench.tree()) == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0.05)
        bench.calls.gate.set()
        await wait_for(lambda: len(bench.calls.rows) == 1)
        assert (await bench.ask(USER, tools=(), is_streamed=is_streamed)).text == "ab"
        assert (len(engine.bodies), len(bench.tree())) == (1, 1)


@EVERY_WIRE
async def test_two_open_connections_are_two_samples(open_bench, renderer, wire):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine, wire) as bench:
        engine.gate = asyncio.Event()
        both = [asyncio.ensure_future(bench.ask(USER)) for _ in range(2)]
        await wait_for(lambda: len(engine.bodies) == 2)
        engine.gate.set()
        assert sorted(answer.text for answer in await asyncio.gather(*both)) == ["a", "b"]
        assert bench.parents() == [None, None]


@EVERY_WIRE
@BOTH_WAYS
async def test_the_same_body_after_a_delivered_answer_is_a_new_sample(open_bench, renderer, wire, is_streamed):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine, wire) as bench:
        texts = [(await bench.ask(USER, is_streamed=is_streamed)).text for _ in range(2)]
        assert (texts, bench.parents()) == (["a", "b"], [None, None])


@EVERY_WIRE
async def test_an_error_that_was_sent_is_asked_again(open_bench, renderer, wire):
    class Wandering:
        url = "http://127.0.0.1:9"

        async def route(self, execution_id: str) -> str:
            return self.url

    routes = Wandering()
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(routes, wire) as bench:
        assert (await bench.send(wire.body([USER], ())))[0] == 503
        routes.url = engine.url
        assert (await bench.ask(USER, tools=())).text == "a"
        assert len(bench.tree()) == 1


@EVERY_WIRE
async def test_agents_with_equal_first_bodies_are_two_lineages(open_bench, renderer, wire):
    texts = ["same", "same", "one", "two"]
    async with FakeEngine(*[[*renderer.encode(text), END] for text in texts]) as engine, open_bench(engine, wire) as bench:
        agents = ({"x-claude-code-agent-id": "a", "thread-id": "a"}, {"x-claude-code-agent-id": "b", "thread-id": "b"})
        for headers in agents:
            await bench.send(wire.body([USER], ()), headers=headers)
        said = Message(role="assistant", text="same")
        for number, headers in enumerate(agents):
            await bench.send(wire.body([USER, said, Message(role="user", text=f"{number}")], ()), headers=headers)
        assert bench.parents() == [None, None, 0, 1]


# ---------------------------------------------------------------- counting, models


@pytest.mark.parametrize("wire", [ANTHROPIC, RESPONSES], ids=lambda client: client.name)
async def test_tokens_are_counted_without_a_record(open_bench, renderer, wire):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine, wire) as bench:
        count = WIRES[wire.name].count
        assert count is not None
        async with bench.session.post(bench.url.removesuffix(wire.path) + count.path, json=wire.body([SYSTEM, USER], TOOLS)) as response:
            num_tokens = (await response.json())["input_tokens"]
        assert bench.tree() == []
        await bench.ask(SYSTEM, USER)
        assert num_tokens == len(engine.bodies[0]["input_ids"])
        async with bench.session.post(bench.url.removesuffix(wire.path) + count.path, json=wire.image()) as response:
            assert response.status == 400


async def test_models_are_listed_in_the_clients_own_shape(open_bench):
    async with FakeEngine() as engine, open_bench(engine, ANTHROPIC) as bench:
        base = bench.url.removesuffix(ANTHROPIC.path)
        async with bench.session.get(f"{base}/v1/models") as response:
            assert (await response.json())["object"] == "list"
        async with bench.session.get(f"{base}/v1/models", headers={"anthropic-version": "2023-06-01"}) as response:
            assert (await response.json())["data"][0]["type"] == "model"
        async with bench.session.get(f"{base}/v1/models/claude-haiku-4-5") as response:
            assert (await response.json())["id"] == "claude-haiku-4-5"
        async with bench.session.get(f"{base.split('/x/')[0]}/v1/models/m") as response:
            assert response.status == 401
