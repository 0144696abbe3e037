"""Cases from public bug reports of peers, as far as they concern the proxy, the renderer and the verifier; numbers are the list's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from proxy_fakes import FakeEngine, RecordedCalls, call_text, make_model_dir

from gyre.bench._measuring import shipped_model_dir
from gyre.rollout.answers import AnswerReader
from gyre.rollout.engines.scripted import ScriptedEngine
from gyre.rollout.engines.server import serve_engine
from gyre.rollout.generation import SamplingRules
from gyre.rollout.harness import artifact_version
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer
from gyre.rollout.sandbox import ProcessSandbox
from gyre.rollout.verifier import Verdict, verify_workspace
from gyre.runtime.doors import EngineRoutes
from gyre.trajectory.messages import Message, ToolCall, ToolSpec
from gyre.trajectory.roles import RoleRules

END = 2
ID = "g000000-00"
RULES = RoleRules.from_profile({})
SPEC = ToolSpec(name="write_file", parameters_json='{"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}')


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def toy_renderer(model_dir: Path) -> Renderer:
    return Renderer(model_dir)


@pytest.fixture(scope="module")
def thinker() -> AnswerReader:
    return AnswerReader(tool_parser="qwen3_coder", reasoning_parser="qwen3")


class Served:
    """A proxy with one open execution, a client, and what became durable."""

    def __init__(self, proxy: Proxy, url: str, key: str, http: aiohttp.ClientSession, calls: RecordedCalls) -> None:
        self.proxy, self.url, self.key, self.http, self.calls = proxy, url, key, http, calls

    async def post(self, *messages: dict[str, Any], **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": "m", "messages": list(messages), **fields}
        async with self.http.post(f"{self.url}/x/{self.key}/v1/chat/completions", json=body) as response:
            return response.status, await response.json()

    def tree(self) -> list[dict[str, Any]]:
        table = self.proxy.calls_table(ID, 1)
        assert table is not None
        return table.to_pylist()


@pytest.fixture
def serve(toy_renderer: Renderer, thinker: AnswerReader) -> Callable[..., Any]:
    @asynccontextmanager
    async def served(engines: Any, **rules: Any) -> AsyncIterator[Served]:
        calls = RecordedCalls()
        sampling = SamplingRules(**{"max_new_tokens": 400, "context_limit": 3000, **rules})
        proxy = Proxy(renderer=toy_renderer, reader=thinker, engines=engines, sampling=sampling, on_call=calls, engine_give_up_s=5.0)
        url = await proxy.start()
        key = proxy.open_execution(ID, attempt=1, role_rules=RULES)
        async with aiohttp.ClientSession() as http:
            yield Served(proxy, url, key, http, calls)
        await proxy.stop()

    return served


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_shipped", [False, True])
def test_case_04_the_newline_behind_a_stop_token_is_kept_at_every_boundary(toy_renderer: Renderer, is_shipped: bool) -> None:
    renderer = Renderer(shipped_model_dir()) if is_shipped else toy_renderer
    history = [Message(role="system", text="You code."), Message(role="user", text="go")]
    tokens = renderer.render_prefix(history, [SPEC])
    for number in range(3):
        call = ToolCall(id=f"c{number}", name="write_file", arguments_json=f'{{"path": "a{number}.py", "content": "x"}}')
        answer = Message(role="assistant", tool_calls=(call,))
        result = Message(role="tool", text=f"done {number}", tool_call_id=call.id)
        sampled = [*renderer.encode(call_text(f"a{number}.py", "x")), renderer.turn_end_id]
        increment = renderer.render_delta([result], [SPEC], is_turn_closed=True)
        assert renderer.decode(increment).startswith("\n")
        tokens += sampled + increment
        history += [answer, result]
        # Joined turns are the template's own rendering of the whole conversation, tools included.
        assert tokens == renderer.render_prefix(history, [SPEC])


def test_case_08_text_in_thinking_that_looks_like_a_call_is_no_call(thinker: AnswerReader) -> None:
    thought = "I could do this:\n" + call_text("a.py", "rm -rf")
    only_thought = thinker.read(f"<think>\n{thought}\n</think>\n\nNothing to do.", (SPEC,), is_cut=False)
    assert (only_thought.calls, only_thought.text.strip()) == ((), "Nothing to do.")
    assert "rm -rf" in only_thought.reasoning
    both = thinker.read(f"<think>\n{thought}\n</think>\n\n{call_text('b.py', 'x')}", (SPEC,), is_cut=False)
    assert [arguments for _, arguments in both.calls] == ['{"path": "b.py", "content": "x"}']


async def test_case_08_no_end_token_in_text_and_no_total_over_the_limit(serve: Callable[..., Any], toy_renderer: Renderer) -> None:
    long = [*toy_renderer.encode("x" * 90), END]
    async with FakeEngine(long, long, long) as engine, serve(engine, max_new_tokens=100, context_limit=300) as served:
        messages = [user("go")]
        for _ in range(4):
            status, reply = await served.post(*messages)
            if status != 200:
                break
            message = reply["choices"][0]["message"]
            assert "<|im_end|>" not in message["content"]
            messages += [message, user("more")]
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    nodes = served.tree()
    assert len(nodes) > 1
    assert sum(len(node["input_ids"]) + len(node["output_ids"]) for node in nodes) <= 300


@pytest.mark.parametrize("stream", [False, True])
async def test_case_10_an_answer_to_other_tokens_than_were_sent_is_no_record(serve, toy_renderer, stream: bool) -> None:
    def reencoded(fake: FakeEngine, body: dict[str, Any]) -> dict[str, Any]:
        reply = fake.reply([*toy_renderer.encode("a"), END], {"type": "stop", "matched": END})
        reply["meta_info"]["prompt_tokens"] = len(body["input_ids"]) - 1
        return reply

    async with FakeEngine(reencoded) as engine, serve(engine) as served:
        status, reply = await served.post(user("go"), stream=stream)
    assert (status, served.tree(), served.calls.rows) == (503, [], [])
    assert "another context" in reply["error"]["message"]


async def test_case_13_a_resend_joins_the_call_and_a_repetition_samples_again(serve, toy_renderer) -> None:
    first, second = ([*toy_renderer.encode(text), END] for text in ("one", "two"))
    async with FakeEngine(first, second) as engine, serve(engine) as served:
        engine.gate = asyncio.Event()
        gone = asyncio.ensure_future(served.post(user("go")))
        await until(lambda: len(engine.bodies) == 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await asyncio.sleep(0.05)
        resent = asyncio.ensure_future(served.post(user("go")))
        await asyncio.sleep(0.05)
        assert len(engine.bodies) == 1
        engine.gate.set()
        _, joined = await resent
        _, repeated = await served.post(user("go"))
    assert [reply["choices"][0]["message"]["content"] for reply in (joined, repeated)] == ["one", "two"]
    assert [node["parent_node_id"] for node in served.tree()] == [None, None]


async def test_case_17_a_client_that_died_leaves_neither_key_nor_tree(serve, toy_renderer) -> None:
    async with FakeEngine([*toy_renderer.encode("a"), END], [*toy_renderer.encode("b"), END]) as engine, serve(engine) as served:
        await served.post(user("go"))
        engine.gate = asyncio.Event()
        dying = asyncio.ensure_future(served.post(user("other")))
        await until(lambda: len(engine.bodies) == 2)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        # Nobody will ever ask for anything again; what is left goes when the execution closes and its group is selected.
        assert await served.proxy.close_execution(ID) == 1
        await until(lambda: len(engine.aborted) == 1)
        assert (await served.post(user("go")))[0] == 401
        served.proxy.drop_tree(ID)
        assert served.proxy.num_trees == 0
        served.proxy.drop_tree(ID)
        assert await served.proxy.close_execution(ID) == 0


async def test_case_17_an_attempt_that_was_never_exported_goes_with_the_next(serve, toy_renderer) -> None:
    async with FakeEngine([*toy_renderer.encode("a"), END]) as engine, serve(engine) as served:
        await served.post(user("go"))
        for attempt in (2, 3):
            served.key = served.proxy.open_execution(ID, attempt=attempt, role_rules=RULES)
        assert served.proxy.num_trees == 1
        assert served.proxy.calls_table(ID, 1) is None


async def test_case_19_a_refused_call_does_not_kill_the_session_and_is_served_from_the_stored_tokens(serve, toy_renderer) -> None:
    first, second = ([*toy_renderer.encode(text), END] for text in ("one", "two"))

    def fail(fake: FakeEngine, body: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "rollback failed"}}, status=400)

    async with FakeEngine(first, fail, second) as engine, serve(engine) as served:
        _, reply = await served.post(user("go"))
        more = [user("go"), reply["choices"][0]["message"], user("more")]
        status, refused = await served.post(*more)
        # A server's error, which every client repeats; a 400 would end the harness.
        assert (status, "rollback failed" in refused["error"]["message"]) == (503, True)
        status, reply = await served.post(*more)
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "two")
    nodes = served.tree()
    assert [node["parent_node_id"] for node in nodes] == [None, 0]
    stored = nodes[0]["input_ids"] + nodes[0]["output_ids"] + nodes[1]["input_ids"]
    assert engine.bodies[1]["input_ids"] == engine.bodies[2]["input_ids"] == stored


async def test_case_27_a_score_that_was_written_before_the_channel_broke_counts(tmp_path: Path) -> None:
    tests, workspace = tmp_path / "task/tests", tmp_path / "workspace"
    tests.mkdir(parents=True)
    workspace.mkdir()
    (workspace / "answer").write_text("42\n")
    # The score is in the file; what the tests would still have said is cut off by the deadline.
    (tests / "test.sh").write_text("echo 1.0 > /logs/verifier/reward.txt; sleep 60; echo done")
    sandbox = ProcessSandbox()
    verdict = await verify_workspace(tmp_path / "task", workspace, deadline_s=1.5, sandbox=sandbox, logs_dir=tmp_path / "logs")
    assert verdict == Verdict(True, 1.0, "reward.txt says 1")


def test_case_27_an_overwritten_artifact_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("42\n")
    passing = artifact_version(tmp_path)
    (tmp_path / "answer").write_text("41\n")
    assert artifact_version(tmp_path) != passing
    (tmp_path / "answer").write_text("42\n")
    assert artifact_version(tmp_path) == passing


async def test_case_35_a_request_whose_body_arrives_while_the_gate_closes_is_refused(model_dir: Path) -> None:
    engine = ScriptedEngine(lambda prompt: "too late", model_dir=model_dir)
    server = serve_engine(engine)
    try:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"input_ids": [5], "sampling_params": {"max_new_tokens": 4}}).encode()
        writer.write(f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        await writer.drain()
        await asyncio.sleep(0.2)  # until the handler waits for the rest
        server.set_accepting(False)
        writer.write(body[10:])
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        assert engine.load().num_waiting == engine.load().num_running == 0
    finally:
        server.stop()
        engine.close()


async def test_case_35_a_request_behind_a_closed_gate_is_refused_and_rerouted_at_once(serve, model_dir: Path) -> None:
    engines = [ScriptedEngine(lambda prompt, name=name: f"from {name}", model_dir=model_dir) for name in ("cell0", "cell1")]
    servers = [serve_engine(engine) for engine in engines]
    try:
        routes = EngineRoutes(model_dir=model_dir, urls={f"cell{i}": server.url for i, server in enumerate(servers)})
        routes.assign(ID, "cell0")
        servers[0].set_accepting(False)
        async with serve(routes) as served:
            waiting = asyncio.ensure_future(served.post(user("go")))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            routes.reroute({ID: "cell1"})
            status, reply = await asyncio.wait_for(waiting, 10)
            assert (status, reply["choices"][0]["message"]["content"]) == (200, "from cell1")
            # The cell that left serves again only when its gate is opened.
            routes.reroute({ID: "cell0"})
            servers[0].set_accepting(True)
            _, reply = await served.post(user("again"))
            assert reply["choices"][0]["message"]["content"] == "from cell0"
    finally:
        for server, engine in zip(servers, engines, strict=True):
            server.stop()
            engine.close()
