"""Proxy: what a model call costs beside its generation, over real HTTP, with the store's log behind it.

A session grows to 200k tokens of context against an engine that answers at once; then 64 executions talk at the same time. Harness,
proxy and engine share one process and one core. Figures:

- `encoded_over_new`: tokens that the tokenizer made over new input tokens of all calls;
- `speedup_over_rerender`: processor time of rendering and tokenizing whole histories over that of the same calls through the proxy,
  transport, record and harness included, at points spread evenly over the growing session; `speedup_at_end`: at its last call;
- `p50_ms`, `p99_ms`: of the growing session's calls, as the harness sees them; `p50_ms_concurrent`, `p99_ms_concurrent`: of the many;
- `calls_per_s`: of the many together; `calls_per_s_alone`: of the growing session;
- `durable_ms`, `durable_p99_ms`: until a call's row is durable, median and p99;
- `calls`, `context_tokens`: of the growing session, its calls and its last context.

Settings: `context_tokens` (200000), `turn_tokens` (1000) that a turn adds, `executions` (64), `turns` (12) of each of them,
`points` (10) at which a history is rendered anew.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gyre.bench._measuring import Limit, outcome, percentile, read_options, shipped_model_dir
from gyre.errors import RunError
from gyre.rollout.answers import AnswerReader
from gyre.rollout.generation import SamplingRules
from gyre.rollout.proxy import Proxy
from gyre.rollout.renderer import Renderer
from gyre.rollout.wires import openai_chat
from gyre.store.run_store import RunStore
from gyre.trajectory.messages import ToolSpec
from gyre.trajectory.roles import RoleRules

LIMITS: Mapping[str, Limit] = {
    "encoded_over_new": Limit(at_most=1.01),
    "speedup_over_rerender": Limit(at_least=10.0),
    "p50_ms": Limit(at_most=50.0),
    "p99_ms": Limit(at_most=200.0),
    "calls_per_s": Limit(at_least=100.0),
    "durable_ms": Limit(at_most=2.0),
}

TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    },
}
ANSWER = """I change the parser so that empty cells stay empty.
<tool_call>
<function=write_file>
<parameter=path>
src/parser.py
</parameter>
<parameter=content>
def parse_row(line):
    return [cell or None for cell in line.split(',')]
</parameter>
</function>
</tool_call>"""
RESULT_LINE = "tests/test_parser.py::test_empty_cells[{number}] FAILED: assert ['a', '', 'c'] == ['a', None, 'c'] in 0.{number}1 s\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    context_tokens: int = 200_000
    """To which one session grows."""
    turn_tokens: int = 1000
    """That each of its turns adds, about."""
    executions: int = 64
    """That talk at the same time, afterwards."""
    turns: int = 12
    """Of each of those."""
    points: int = 10
    """At which a whole history is rendered and tokenized, to compare."""


class CountingRenderer(Renderer):
    """Counts the tokens that it makes."""

    num_encoded = 0

    def encode(self, text: str) -> list[int]:
        """Encode and count."""
        ids = super().encode(text)
        self.num_encoded += len(ids)
        return ids


class InstantEngine:
    """The engine's contract, answered with one prepared body."""

    def __init__(self, answer_ids: Sequence[int]) -> None:
        meta = {
            "finish_reason": {"type": "stop", "matched": answer_ids[-1]},
            "prompt_tokens": 0,
            "completion_tokens": len(answer_ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[-0.5, token, None] for token in answer_ids],
            "weight_versions": [{"version": "0", "start": 0, "end": len(answer_ids)}],
        }
        self._reply = json.dumps({"output_ids": list(answer_ids), "meta_info": meta}).encode()
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def start(self) -> None:
        """Open a port."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self._generate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close it."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def route(self, execution_id: str) -> str:
        """`Routes`: everybody comes here."""
        return self._url

    async def _generate(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=self._reply, content_type="application/json")


class Client:
    """One harness: its growing history, kept as bytes so that building a body costs no more than copying it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, *, turn_lines: int) -> None:
        self._http = http
        self._url = url
        self._turn_lines = turn_lines
        self.messages: list[dict[str, Any]] = []
        self._parts: list[bytes] = []
        self._head = b'{"model":"m","max_tokens":4096,"tools":' + json.dumps([TOOL]).encode() + b',"messages":['
        self.times_ms: list[float] = []
        self.cpu_ms: list[float] = []
        """Processor time of the whole process while the call was on its way."""
        self.num_prompt_tokens = 0
        self._extend({"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": self._result()})

    async def turn(self) -> None:
        """Send the history, take the answer, append it with the tool's result."""
        body = self._head + b",".join(self._parts) + b"]}"
        begun, begun_cpu = time.perf_counter(), time.process_time()
        async with self._http.post(self._url, data=body, headers={"Content-Type": "application/json"}) as response:
            raw = await response.read()
        self.times_ms.append(1000 * (time.perf_counter() - begun))
        self.cpu_ms.append(1000 * (time.process_time() - begun_cpu))
        reply = json.loads(raw)
        if response.status != 200:
            raise RunError(f"the proxy answered {response.status}: {reply}")
        self.num_prompt_tokens = reply["usage"]["prompt_tokens"]
        message = reply["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        self._extend(message, {"role": "tool", "tool_call_id": call_id, "content": self._result()})

    def _result(self) -> str:
        return "".join(RESULT_LINE.format(number=len(self.messages) + line) for line in range(self._turn_lines))

    def _extend(self, *messages: dict[str, Any]) -> None:
        self.messages += messages
        self._parts += [json.dumps(message).encode() for message in messages]


@dataclass(kw_only=True)
class Measured:
    """What the run of the benchmark leaves behind."""

    alone: Client
    many: list[Client] = field(default_factory=list)
    many_s: float = 0.0
    durable_ms: list[float] = field(default_factory=list)
    rerender_cpu_ms: dict[int, float] = field(default_factory=dict)
    """Processor time of rendering the history of a call, by the call's number."""
    num_new_tokens: int = 0


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Serve the sessions and compare."""
    options = read_options(Options, settings, name="proxy")
    renderer = CountingRenderer(shipped_model_dir())
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(_measure(options, renderer, Path(folder)))
    alone, points = measured.alone, measured.rerender_cpu_ms
    concurrent_ms = [t for client in measured.many for t in client.times_ms]
    last = max(points)
    figures = {
        "encoded_over_new": renderer.num_encoded / measured.num_new_tokens,
        "speedup_over_rerender": sum(points.values()) / sum(alone.cpu_ms[number] for number in points),
        "p50_ms": percentile(alone.times_ms, 0.5),
        "p99_ms": percentile(alone.times_ms, 0.99),
        "calls_per_s": len(concurrent_ms) / measured.many_s,
        "durable_ms": statistics.median(measured.durable_ms),
        "durable_p99_ms": percentile(measured.durable_ms, 0.99),
        "speedup_at_end": points[last] / alone.cpu_ms[last],
        "p50_ms_concurrent": percentile(concurrent_ms, 0.5),
        "p99_ms_concurrent": percentile(concurrent_ms, 0.99),
        "calls_per_s_alone": 1000 * len(alone.times_ms) / sum(alone.times_ms),
        "calls": len(alone.times_ms),
        "context_tokens": alone.num_prompt_tokens,
    }
    return outcome("proxy", figures, LIMITS)


async def _measure(options: Options, renderer: CountingRenderer, folder: Path) -> Measured:
    store = RunStore(folder, writer="bench")
    durable_ms: list[float] = []

    async def on_call(row: Mapping[str, Any]) -> None:
        begun = time.perf_counter()
        store.append("calls", [row])
        durable_ms.append(1000 * (time.perf_counter() - begun))

    plain = Renderer(shipped_model_dir())
    engine = InstantEngine([*plain.encode(ANSWER), plain.turn_end_id])
    await engine.start()
    proxy = Proxy(
        renderer=renderer,
        reader=AnswerReader(tool_parser="qwen3_coder"),
        engines=engine,
        sampling=SamplingRules(context_limit=options.context_tokens + 1_000_000),
        on_call=on_call,
    )
    url = await proxy.start()
    lines = max(1, round(options.turn_tokens / len(plain.encode(RESULT_LINE.format(number=100)))))
    renderer.num_encoded = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        def open_client(number: int) -> Client:
            key = proxy.open_execution(f"g{number:06d}-00", attempt=1, role_rules=RoleRules.from_profile({}))
            return Client(http, f"{url}/x/{key}/v1/chat/completions", turn_lines=lines)

        measured = Measured(alone=open_client(0), durable_ms=durable_ms)
        await _grow(measured, options, plain)
        measured.many = [open_client(1 + number) for number in range(options.executions)]
        begun = time.perf_counter()
        await asyncio.gather(*(_talk(client, options.turns) for client in measured.many))
        measured.many_s = time.perf_counter() - begun
    measured.num_new_tokens = _num_new_tokens(proxy, 1 + options.executions)
    await proxy.stop()
    await engine.stop()
    store.close()
    return measured


async def _grow(measured: Measured, options: Options, plain: Renderer) -> None:
    """Let one session grow, and render its history anew at some points."""
    client = measured.alone
    next_point = options.context_tokens / max(1, options.points)
    while client.num_prompt_tokens < options.context_tokens:
        history = list(client.messages)
        await client.turn()
        if client.num_prompt_tokens >= next_point:
            next_point += options.context_tokens / max(1, options.points)
            measured.rerender_cpu_ms[len(client.times_ms) - 1] = _rerender_cpu_ms(plain, history)


def _rerender_cpu_ms(renderer: Renderer, history: Sequence[Mapping[str, Any]]) -> float:
    parsed = openai_chat.parse_request({"messages": list(history)})
    tools = [ToolSpec(name="write_file", parameters_json=json.dumps(TOOL["function"]))]
    begun = time.process_time()
    renderer.render_prefix(parsed.messages, tools)
    return 1000 * (time.process_time() - begun)


async def _talk(client: Client, turns: int) -> None:
    for _ in range(turns):
        await client.turn()


def _num_new_tokens(proxy: Proxy, num_executions: int) -> int:
    tables = [proxy.calls_table(f"g{number:06d}-00", 1) for number in range(num_executions)]
    return sum(len(ids) for table in tables if table is not None for ids in table.column("input_ids"))
