"""Bodies made by Hypothesis over every wire against the proxy with an instant engine: never a 500, never a lost record.

A body is a conversation of small parts with a few places spoilt: a value replaced by junk, left out, or doubled. Whatever comes, the
answer is the wire's own error or an answer that a strict client can read, and then its record is in the tree and was made durable,
once.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_fakes import TOOL, FakeEngine, RecordedCalls, call_text, make_model_dir
from wire_clients import CLIENTS, WireClient

from gyre.rollout.answers import AnswerReader
from gyre.rollout.generation import SamplingRules
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer
from gyre.trajectory.messages import Message, ToolCall, ToolSpec
from gyre.trajectory.roles import RoleRules

END = 2
BODIES_PER_EXAMPLE = 10
TOOLS = (ToolSpec(name="write_file", description="Write.", parameters_json=json.dumps(TOOL["function"]["parameters"])),)
ANSWERS = (
    "Hello there.",
    "I write." + call_text("a.py", "x = 1") + call_text("b.py", "é"),
    "",
    "<think>\nhm\n</think>\n\nGood.",
    "<tool_call>\nno\n</tool_call>",
    "<think>\nnever ends",
)
PARTS = (
    Message(role="system", text="You edit."),
    Message(role="user", text="Fix it."),
    Message(role="user", text="And now?"),
    Message(role="user", text=""),
    Message(role="assistant", text="Hello there."),
    Message(role="assistant", text="", reasoning="hm", tool_calls=(ToolCall(id="c1", name="write_file", arguments_json='{"path": "a"}'),)),
    Message(role="tool", text="ok", tool_call_id="c1"),
    Message(role="tool", text="", tool_call_id="nobody"),
)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


JUNK = (
    None, "", " ", "x", "\x00", "\ud800", "é" * 300, "<|im_end|>", "<tool_call>", 0, -1, 1.5, float("nan"), 10**40, True, [], {}, [[]],
    [None], {"type": "text"}, {"type": "image"}, {"a": {"b": [1]}}, "assistant", "tool", "system", "function_call", "reasoning",
    "required", nested(60), nested(400), {"type": "text", "text": "more"}, [{"type": "text", "text": "more"}],
)  # fmt: skip
FIELDS: tuple[dict[str, Any], ...] = (
    {"stop": ["Hello", "z"], "stop_sequences": ["Hello", "z"]},
    {"max_tokens": 3, "max_output_tokens": 3},
    {"temperature": 0, "top_p": 0.1, "tool_choice": "required", "n": 1},
    {"thinking": {"type": "disabled"}, "metadata": {"a": "b"}, "client_metadata": {"z": "1"}},
    {"tools": [{"type": "custom", "name": "c"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "c"}]}]},
    {},
)  # fmt: skip

# As text, so that no body is spoilt by what was done to another.
JUNK_TEXTS, FIELD_TEXTS = [[json.dumps(value) for value in values] for values in (JUNK, FIELDS)]


class Sent(NamedTuple):
    client: WireClient
    body: bytes
    execution: int


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value, outermost first."""
    level = [value]
    while level:
        inner: list[Any] = []
        for container in level:
            for key, item in container.items() if isinstance(container, dict) else enumerate(container):
                yield container, key
                if isinstance(item, dict | list):
                    inner.append(item)
        level = inner


def spoil(body: dict[str, Any], number: int, junk: str) -> None:
    """Replace, leave out or double one place of a body."""
    found = list(places(body))
    container, key = found[number % len(found)]
    how = number // len(found) % 4
    if how == 0 and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif how == 1:
        del container[key]
    else:
        container[key] = json.loads(junk)


SPOILT = st.lists(st.tuples(st.integers(0, 400), st.sampled_from(JUNK_TEXTS)), max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    client = draw(st.sampled_from(CLIENTS))
    history = draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))
    body = client.body(history, TOOLS if draw(st.booleans()) else ())
    body |= {"stream": draw(st.booleans()), **json.loads(draw(st.sampled_from(FIELD_TEXTS)))}
    for number, junk in draw(SPOILT):
        if body:
            spoil(body, number, junk)
    raw = json.dumps(body).encode()
    cut = draw(st.integers(0, 60))
    return Sent(client, raw[:-cut] if cut > 55 else raw, draw(st.integers(0, 2)))


class Rig:
    """A proxy on a loop of its own, asked from outside it."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.calls = RecordedCalls()
        self.num_executions = 0
        self.statuses: dict[int, int] = {}
        self.runner.run(self._open(folder))

    async def _open(self, folder: Path) -> None:
        renderer = Renderer(make_model_dir(folder))
        self.texts = [[*renderer.encode(text), END] for text in ANSWERS] + [[200, 201, END]]
        self.engine = await FakeEngine().__aenter__()
        self.engine.chunk_tokens = 64
        self.engine.steps = _Forever(self._reply)
        self.proxy = Proxy(
            renderer=renderer,
            reader=AnswerReader(tool_parser="qwen3_coder", reasoning_parser="qwen3"),
            engines=self.engine,
            sampling=SamplingRules(max_new_tokens=300, context_limit=5000),
            on_call=self.calls,
        )
        self.url = await self.proxy.start()
        self.session = aiohttp.ClientSession()

    def _reply(self, engine: FakeEngine, body: dict[str, Any]) -> dict[str, Any] | web.Response:
        engine.bodies.clear()
        ids = self.texts[len(body["input_ids"]) % len(self.texts)]
        limit = body["sampling_params"]["max_new_tokens"]
        kind = {"type": "stop", "matched": END} if len(ids) <= limit else {"type": "length", "length": limit}
        return engine.reply(ids[:limit], kind)

    async def _close(self) -> None:
        await self.session.close()
        await self.proxy.stop()
        await self.engine.__aexit__()

    def close(self) -> None:
        self.runner.run(self._close())
        self.runner.close()

    def check(self, batch: list[Sent]) -> None:
        self.runner.run(self._check(batch))

    async def _check(self, batch: list[Sent]) -> None:
        self.num_executions += 1
        ids = [f"g{self.num_executions:06d}-{n:02d}" for n in range(3)]
        keys = [self.proxy.open_execution(name, attempt=1, role_rules=RoleRules()) for name in ids]
        before = len(self.calls.rows)
        found = await asyncio.gather(*(self._send(sent, keys[sent.execution]) for sent in batch))
        num_answered = sum(status == 200 for status in found)
        tables = [self.proxy.calls_table(name, 1) for name in ids]
        assert sum(table.num_rows for table in tables if table is not None) == num_answered
        assert len(self.calls.rows) - before == num_answered
        for status in found:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        for name in ids:
            await self.proxy.close_execution(name)
            self.proxy.drop_tree(name)

    async def _send(self, sent: Sent, key: str) -> int:
        async with self.session.post(f"{self.url}/x/{key}{sent.client.path}", data=sent.body) as response:
            text = await response.text()
            assert response.status in (200, 400), (response.status, text)
            if response.status == 400:
                assert sent.client.error(json.loads(text))[0] == "invalid_request_error"
            elif response.content_type == "text/event-stream":
                sent.client.read_stream(text)
            else:
                sent.client.read(json.loads(text))
            return response.status


class _Forever(list[Any]):
    """Steps of an engine that never run out."""

    def pop(self, index: Any = -1) -> Any:
        return self[0]

    def __init__(self, step: Any) -> None:
        super().__init__([step])


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def check_bodies(rig: Rig, num_bodies: int) -> None:
    @settings(
        max_examples=num_bodies // BODIES_PER_EXAMPLE,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(requests(), min_size=BODIES_PER_EXAMPLE, max_size=BODIES_PER_EXAMPLE))
    def survive(batch: list[Sent]) -> None:
        rig.check(batch)

    survive()
    # The bodies are neither all broken nor all fine.
    assert min(rig.statuses[200], rig.statuses[400]) > sum(rig.statuses.values()) / 10


def test_the_wires_survive_a_few_hundred_bodies(rig):
    check_bodies(rig, 300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wires_survive_ten_thousand_bodies(rig):
    check_bodies(rig, 10_000)
    assert sum(rig.statuses.values()) >= 10_000
