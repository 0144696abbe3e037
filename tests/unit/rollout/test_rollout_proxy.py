"""The proxy against a fake engine: records, identity, retries, cuts, closure."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from proxy_fakes import TOOL, FakeEngine, RecordedCalls, call_text, make_model_dir

from gyre.rollout.answers import AnswerReader
from gyre.rollout.call import Call
from gyre.rollout.generation import SamplingRules
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer
from gyre.rollout.wires.neutral import ChatRequest
from gyre.trajectory.messages import Message
from gyre.trajectory.roles import RoleRules

END = 2
RULES = RoleRules.from_profile({"role_rules": [{"role": "main-summary", "last_user_startswith": "Summarize"}]})
ID = "g000000-00"


@pytest.fixture(scope="module")
def renderer(tmp_path_factory) -> Renderer:
    return Renderer(make_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def reader() -> AnswerReader:
    return AnswerReader(tool_parser="qwen3_coder")


class Bench:
    """A proxy with one open execution and a client."""

    def __init__(self, proxy: Proxy, url: str, key: str, session: aiohttp.ClientSession, calls: RecordedCalls) -> None:
        self.proxy, self.url, self.key, self.session, self.calls = proxy, url, key, session, calls

    async def post(self, *messages: dict[str, Any], **fields: Any) -> tuple[int, dict[str, Any]]:
        headers = fields.pop("headers", {"Authorization": f"Bearer {self.key}"})
        body = {"model": "m", "messages": list(messages), **fields}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def stream(self, *messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        body = {"model": "m", "messages": list(messages), "stream": True, **fields}
        async with self.session.post(f"{self.url}/x/{self.key}/v1/chat/completions", json=body) as response:
            assert response.content_type == "text/event-stream"
            raw = await response.text()
        lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def tree(self) -> list[dict[str, Any]]:
        table = self.proxy.calls_table(ID, 1)
        assert table is not None
        return table.to_pylist()


@pytest.fixture
def open_bench(renderer, reader) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(engine: Any, **options: Any) -> AsyncIterator[Bench]:
        calls = RecordedCalls()
        rules = SamplingRules(**{"max_new_tokens": 400, "context_limit": 1500, "seed": 1, **options})
        proxy = Proxy(renderer=renderer, reader=reader, engines=engine, sampling=rules, on_call=calls, engine_give_up_s=0.2)
        url = await proxy.start()
        key = proxy.open_execution(ID, attempt=1, role_rules=RULES)
        async with aiohttp.ClientSession() as session:
            yield Bench(proxy, url, key, session, calls)
        await proxy.stop()

    return opened


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_a_conversation_grows_by_increments_and_its_tokens_are_never_made_again(open_bench, renderer):
    first = [*renderer.encode("I write." + call_text("a.py", "x")), END]
    second = [*renderer.encode("Done."), END]
    async with FakeEngine(first, second) as engine, open_bench(engine) as bench:
        status, reply = await bench.post(user("go"), tools=[TOOL])
        message = reply["choices"][0]["message"]
        assert (status, reply["choices"][0]["finish_reason"], message["content"]) == (200, "tool_calls", "I write.")
        arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
        assert arguments == {"path": "a.py", "content": "x"}
        # The harness echoes the call with other spelling and drops the null content.
        message["tool_calls"][0]["function"]["arguments"] = '{"content":"x",  "path":"a.py", "mode": 1.0}'
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
        _, reply = await bench.post(user("go"), message, result, tools=[TOOL])
        assert reply["choices"][0]["message"]["content"] == "Done."
    nodes = bench.tree()
    assert [(n["node_id"], n["parent_node_id"], n["messages"]) for n in nodes] == [(0, None, 2), (1, 0, 2)]
    assert nodes[0]["output_ids"] == first
    assert nodes[0]["output_logprobs"][:2] == [-0.5, -0.75]
    assert nodes[0]["weight_versions"] == [{"version": 0, "start": 0, "end": len(first)}]
    increment = "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert renderer.decode(nodes[1]["input_ids"]) == increment
    assert engine.bodies[1]["input_ids"] == nodes[0]["input_ids"] + first + nodes[1]["input_ids"]
    assert [row["node_id"] for row in bench.calls.rows] == [0, 1]
    assert bench.calls.rows == nodes


async def test_sampling_belongs_to_the_run(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine) as bench:
        await bench.post(user("go"), temperature=0.1, top_p=0.5, max_tokens=7, stop=["END"])
        await bench.post(user("other"), max_tokens=10_000)
    first, second = (body["sampling_params"] for body in engine.bodies)
    assert (first["temperature"], first["max_new_tokens"], first["stop"], first["stop_token_ids"]) == (1.0, 7, ["END"], [2])
    assert "top_p" not in first
    assert second["max_new_tokens"] == 400
    assert first["sampling_seed"] != second["sampling_seed"]
    record = json.loads(bench.tree()[0]["sampling"])
    assert record["asked"] == {"temperature": 0.1, "top_p": 0.5, "max_tokens": 7, "stop": ["END"]}
    assert record["used"]["max_new_tokens"] == 7


async def test_a_cut_answer_is_length_and_its_end_is_supplied_later(open_bench, renderer):
    async with FakeEngine([*renderer.encode("abcdef"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine) as bench:
        _, reply = await bench.post(user("go"), max_tokens=3)
        assert reply["choices"][0]["finish_reason"] == "length"
        await bench.post(user("go"), reply["choices"][0]["message"], user("more"))
    nodes = bench.tree()
    assert (nodes[0]["finish_reason"], nodes[0]["output_ids"], nodes[1]["parent_node_id"]) == ("length", renderer.encode("abc"), 0)
    assert renderer.decode(nodes[1]["input_ids"]).startswith("<|im_end|>\n<|im_start|>user\nmore")


async def test_a_context_over_the_limit_is_the_wires_own_error_and_no_record(open_bench, renderer):
    async with FakeEngine() as engine, open_bench(engine, context_limit=40) as bench:
        status, reply = await bench.post(user("x" * 100))
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert "prompt is too long" in reply["error"]["message"]
    assert bench.tree() == []


async def test_roles_come_from_the_profiles_rules(open_bench, renderer):
    answer = [*renderer.encode("a"), END]
    async with FakeEngine(answer, answer) as engine, open_bench(engine) as bench:
        await bench.post(user("go"))
        await bench.post(user("Summarize the work so far."))
    assert [node["role"] for node in bench.tree()] == ["main", "main-summary"]


async def test_wrong_foreign_and_expired_keys_get_401(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        for headers in ({}, {"Authorization": "Bearer gk-no"}, {"x-api-key": "no"}):
            status, reply = await bench.post(user("go"), headers=headers)
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
        assert (await bench.post(user("go"), headers={"x-api-key": bench.key}))[0] == 200
        async with bench.session.get(f"{bench.url}/x/{bench.key}/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "policy"
        assert await bench.proxy.close_execution(ID) == 1
        assert (await bench.post(user("go")))[0] == 401
        async with bench.session.get(f"{bench.url}/v1/models") as response:
            assert response.status == 401
    assert len(bench.tree()) == 1
    bench.proxy.drop_tree(ID)
    assert bench.proxy.calls_table(ID, 1) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'{"messages": 1}', b"[" * 100_000])
async def test_malformed_bodies_cost_nothing(open_bench, raw):
    async with FakeEngine() as engine, open_bench(engine) as bench:
        url = f"{bench.url}/x/{bench.key}/v1/chat/completions"
        async with bench.session.post(url, data=raw) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"


class TwoEngines:
    """Routes the first request to one engine, the others to another."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)

    async def route(self, execution_id: str) -> str:
        return self.urls.pop(0) if len(self.urls) > 1 else self.urls[0]


async def test_a_cut_at_one_engine_goes_on_at_another_and_is_one_answer(open_bench, renderer):
    ids = [*renderer.encode("hello"), END]

    def abort(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        return fake.reply(ids[:3], {"type": "abort", "message": "Aborted"})

    async with (
        FakeEngine(abort, version=4) as one,
        FakeEngine(ids[3:], version=5) as two,
        open_bench(TwoEngines(one.url, two.url)) as bench,
    ):
        _, reply = await bench.post(user("go"))
    assert reply["choices"][0]["message"]["content"] == "hello"
    node = bench.tree()[0]
    assert (node["output_ids"], node["finish_reason"]) == (ids, "stop")
    assert node["weight_versions"] == [{"version": 4, "start": 0, "end": 3}, {"version": 5, "start": 3, "end": 6}]
    assert two.bodies[0]["input_ids"] == one.bodies[0]["input_ids"] + ids[:3]
    assert two.bodies[0]["sampling_params"]["max_new_tokens"] == 397
    assert two.bodies[0]["sampling_params"]["sampling_seed"] != one.bodies[0]["sampling_params"]["sampling_seed"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_string_that_a_cut_divides_ends_the_answer(open_bench, renderer, is_streamed):
    ids = [*renderer.encode("hello STOP and more"), END]
    end = len(renderer.encode("hello STOP"))

    def abort(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        return fake.reply(ids[: end - 2], {"type": "abort", "message": "Aborted"})

    async with (
        FakeEngine(abort, version=4) as one,
        FakeEngine(ids[end - 2 :], version=5) as two,
        open_bench(TwoEngines(one.url, two.url)) as bench,
    ):
        if is_streamed:
            chunks = await bench.stream(user("go"), stop=["STOP"])
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        else:
            _, reply = await bench.post(user("go"), stop=["STOP"])
            text = reply["choices"][0]["message"]["content"]
    assert text == "hello "
    node = bench.tree()[0]
    # Nobody acted on what was sampled behind it, so it is no target.
    assert (node["output_ids"], node["finish_reason"]) == (ids[:end], "stop")
    assert len(node["output_logprobs"]) == end
    assert node["weight_versions"] == [{"version": 4, "start": 0, "end": end - 2}, {"version": 5, "start": end - 2, "end": end}]


async def test_a_call_that_a_stop_string_cuts_is_no_call(open_bench, renderer):
    half = call_text("a.py", "rm everything STOP").partition("STOP")[0] + "STOP"
    async with FakeEngine(renderer.encode("I write." + half)) as engine, open_bench(engine) as bench:
        _, reply = await bench.post(user("go"), tools=[TOOL], stop=["STOP"])
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in reply["choices"][0]["message"]


async def test_an_answer_that_came_whole_is_not_continued_when_the_connection_then_breaks(open_bench, renderer):
    ids = [*renderer.encode("hello"), END]
    async with FakeEngine(ids, [*renderer.encode(" and more"), END]) as engine, open_bench(engine) as bench:
        engine.breaks_at_end = True
        chunks = await bench.stream(user("go"))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hello"
    assert (len(engine.bodies), bench.tree()[0]["output_ids"]) == (1, ids)


async def test_a_failing_engine_is_asked_again(open_bench, renderer):
    def fail(fake: FakeEngine, body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": "out of memory"}, status=500)

    async with FakeEngine(fail, fail, [*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        status, _ = await bench.post(user("go"))
    assert (status, len(bench.tree()), len(engine.bodies)) == (200, 1, 3)


async def test_an_engine_that_stays_away_is_an_error_in_the_end(open_bench):
    class Nowhere:
        async def route(self, execution_id: str) -> str:
            return "http://127.0.0.1:9"

    async with open_bench(Nowhere()) as bench:
        status, reply = await bench.post(user("go"))
        assert (status, reply["error"]["type"]) == (503, "server_error")
        assert "cannot be reached" in reply["error"]["message"]
    assert bench.tree() == []


async def test_an_answer_streams_and_equals_the_one_that_does_not(open_bench, renderer):
    ids = [*renderer.encode("Grüße 🚀 then " + call_text("a", "é")), END]
    async with FakeEngine(ids) as engine, open_bench(engine) as bench:
        chunks = await bench.stream(user("go"), tools=[TOOL], stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    texts = [delta["content"] for delta in deltas if "content" in delta]
    assert "".join(texts) == "Grüße 🚀 then "
    assert len(texts) > 3
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert json.loads(calls[0]["function"]["arguments"]) == {"path": "a", "content": "é"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == len(ids)
    assert bench.tree()[0]["output_ids"] == ids


async def test_the_last_event_waits_for_the_record(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        bench.calls.gate = asyncio.Event()
        task = asyncio.ensure_future(bench.post(user("go")))
        while not bench.tree():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        assert not task.done()
        bench.calls.gate.set()
        assert (await task)[0] == 200


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_client_that_went_away_gets_the_same_call_again(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        engine.gate = asyncio.Event()
        first = asyncio.ensure_future(bench.post(user("go"), stream=True))
        await wait_for(lambda: len(engine.bodies) == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(bench.post(user("go")))  # the non-stream resend is the same call
        await asyncio.sleep(0.02)
        engine.gate.set()
        status, reply = await second
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "a")
    assert (len(engine.bodies), len(bench.tree())) == (1, 1)


async def test_two_equal_calls_whose_clients_went_away_are_both_got_again(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine) as bench:
        engine.gate = asyncio.Event()
        gone = [asyncio.ensure_future(bench.post(user("go"))) for _ in range(2)]
        await wait_for(lambda: len(engine.bodies) == 2)
        for client in gone:
            client.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await asyncio.sleep(0.05)
        again = [asyncio.ensure_future(bench.post(user("go"))) for _ in range(2)]
        await asyncio.sleep(0.05)
        engine.gate.set()
        replies = await asyncio.gather(*again)
    assert sorted(r["choices"][0]["message"]["content"] for _, r in replies) == ["a", "b"]
    assert (len(engine.bodies), len(bench.tree())) == (2, 2)


async def test_calls_that_nobody_can_join_are_not_held(open_bench, renderer):
    def held() -> int:
        gc.collect()
        return sum(type(item) is Call for item in gc.get_objects())

    before = held()
    async with FakeEngine(*[[*renderer.encode("a"), END]] * 8) as engine, open_bench(engine) as bench:
        for number in range(8):
            await bench.post(user(f"go {number}"))
            await bench.post(user("x" * 2000))  # over the limit
        assert held() - before <= 1


async def test_two_open_connections_are_two_samples(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine) as bench:
        engine.gate = asyncio.Event()
        both = [asyncio.ensure_future(bench.post(user("go"))) for _ in range(2)]
        await wait_for(lambda: len(engine.bodies) == 2)
        engine.gate.set()
        replies = await asyncio.gather(*both)
    assert sorted(r["choices"][0]["message"]["content"] for _, r in replies) == ["a", "b"]
    assert [node["parent_node_id"] for node in bench.tree()] == [None, None]


async def test_the_same_body_after_a_delivered_answer_is_a_new_sample(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END], [*renderer.encode("b"), END]) as engine, open_bench(engine) as bench:
        await bench.post(user("go"))
        await bench.post(user("go"))
    assert len(bench.tree()) == 2


async def test_closing_aborts_a_call_in_flight_and_leaves_no_record(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        engine.gate = asyncio.Event()
        running = asyncio.ensure_future(bench.post(user("go")))
        await wait_for(lambda: len(engine.bodies) == 1)
        await bench.proxy.close_execution(ID)
        status, _ = await running
        assert status == 401
        await wait_for(lambda: bool(engine.aborted))
        assert engine.aborted == [engine.bodies[0]["rid"]]
    assert (bench.tree(), bench.calls.rows) == ([], [])


async def test_a_call_that_closure_meets_before_its_first_step_ends(renderer, reader):
    async def on_call(row: Any) -> None:
        raise AssertionError("nothing was sampled")

    async with FakeEngine() as engine:
        proxy = Proxy(renderer=renderer, reader=reader, engines=engine, sampling=SamplingRules(), on_call=on_call)
        key = proxy.open_execution(ID, attempt=1, role_rules=RULES)
        request = ChatRequest(messages=(Message(role="user", text="go"),))
        call = proxy._by_key[key].submit(request, headers={}, body={}, transport_fields=frozenset())
        await proxy.close_execution(ID)
        async with asyncio.timeout(5):
            await call.wait_done()
        assert call.error is not None
        assert call.error.status == 401


async def test_a_record_under_way_is_finished_at_closure(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        bench.calls.gate = asyncio.Event()
        running = asyncio.ensure_future(bench.post(user("go")))
        await wait_for(lambda: len(bench.tree()) == 1)
        closing = asyncio.ensure_future(bench.proxy.close_execution(ID))
        await asyncio.sleep(0.01)
        bench.calls.gate.set()
        assert await closing == 1
        await running
    assert len(bench.calls.rows) == 1


async def test_a_stream_that_breaks_is_never_ended_cleanly(open_bench, renderer):
    def broken(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        fake.steps = [lambda *_: web.Response(status=500, text="gone")] * 50
        return fake.reply(renderer.encode("hello"), None)  # a stream that ends without a finish reason

    async with FakeEngine(broken) as engine, open_bench(engine) as bench:
        body = {"messages": [user("go")], "stream": True}
        async with bench.session.post(f"{bench.url}/x/{bench.key}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await response.read()
    assert bench.tree() == []


async def test_a_new_attempt_ends_the_key_of_the_last(open_bench, renderer):
    async with FakeEngine([*renderer.encode("a"), END]) as engine, open_bench(engine) as bench:
        key = bench.proxy.open_execution(ID, attempt=2, role_rules=RULES)
        assert (await bench.post(user("go")))[0] == 401
        assert (await bench.post(user("go"), headers={"x-api-key": key}))[0] == 200
        assert bench.proxy.calls_table(ID, 1) is None
        table = bench.proxy.calls_table(ID, 2)
        assert table is not None
        assert table["attempt"].to_pylist() == [2]


async def test_a_record_that_cannot_be_written_fails_the_call_and_is_told(renderer, reader):
    async def on_call(row: Any) -> None:
        raise OSError("no space left on device")

    async with FakeEngine([*renderer.encode("a"), END]) as engine, aiohttp.ClientSession() as session:
        proxy = Proxy(renderer=renderer, reader=reader, engines=engine, sampling=SamplingRules(), on_call=on_call)
        key = proxy.open_execution(ID, attempt=1, role_rules=RULES)
        url = f"{await proxy.start()}/x/{key}/v1/chat/completions"
        async with session.post(url, json={"messages": [user("go")]}) as response:
            assert response.status == 500
        assert "no space left" in str(await proxy.wait_failure())
        await proxy.stop()
