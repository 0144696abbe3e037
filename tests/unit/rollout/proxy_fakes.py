"""A byte-level tokenizer with a ChatML template, and an engine that answers from a list, for tests of the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {%- for tool in tools %}{{- tool.function.name + ': ' + (tool.function.parameters | tojson) + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- '<parameter=' + name + '>\\n' + (value | string) + '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'user' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<eot>")

TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    },
}


def make_model_dir(folder: Path, template: str = CHATML, *, eos: str = "<|im_end|>", specials: tuple[str, ...] = SPECIALS) -> Path:
    """A folder with tokenizer.json and a chat template; every byte is a token, the special ones come first."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": {"content": eos}, "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def call_text(path: str, content: str) -> str:
    """A tool call as the model writes it."""
    return (
        f"<tool_call>\n<function=write_file>\n<parameter=path>\n{path}\n</parameter>\n"
        f"<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>"
    )


Behaviour = Callable[["FakeEngine", dict[str, Any]], Any]


class FakeEngine:
    """Answers `/generate` from a list of steps; each is a list of ids, or a function of (engine, body) that gives the reply."""

    def __init__(self, *steps: list[int] | Behaviour, version: int = 0) -> None:
        self.steps = list(steps)
        self.version = version
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.gate: asyncio.Event | None = None
        self.chunk_tokens = 1
        """New tokens in a chunk of a stream."""
        self.hold_stream_at: int | None = None
        """Wait for the gate inside a stream, behind so many chunks, instead of before the answer."""
        self.breaks_at_end = False
        """Cut the connection behind the last chunk of a stream, before its end mark."""
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> FakeEngine:
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.gate is not None:
            self.gate.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def route(self, execution_id: str) -> str:
        """The proxy's route: always here."""
        return self.url

    def reply(self, ids: list[int], finish: dict[str, Any] | None) -> dict[str, Any]:
        """A body of SGLang's contract."""
        return {
            "output_ids": ids,
            "meta_info": {
                "finish_reason": finish,
                "prompt_tokens": 0,
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "output_token_logprobs": [[-0.5 - 0.25 * (i % 2), token, None] for i, token in enumerate(ids)],
                "weight_versions": [{"version": str(self.version), "start": 0, "end": len(ids)}] if ids else [],
            },
        }

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        step = self.steps.pop(0)
        if callable(step):
            reply = step(self, body)
        else:
            if self.gate is not None and self.hold_stream_at is None:
                await self.gate.wait()
            is_short = len(step) <= body["sampling_params"]["max_new_tokens"]
            ids = step[: body["sampling_params"]["max_new_tokens"]]
            finish = {"type": "stop", "matched": step[-1]} if is_short else {"type": "length", "length": len(ids)}
            reply = self.reply(ids, finish)
        if isinstance(reply, web.Response):
            return reply
        if not body["stream"]:
            return web.json_response(reply)
        return await self._stream(request, reply)

    async def _stream(self, request: web.Request, reply: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        ids = reply["output_ids"]
        for end in range(1, len(ids), self.chunk_tokens):
            if end == self.hold_stream_at and self.gate is not None:
                await self.gate.wait()
            part = self.reply(ids[:end], None)
            await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        await response.write(b"data: " + json.dumps(reply).encode() + b"\n\n")
        if self.breaks_at_end and request.transport is not None:
            await asyncio.sleep(0.02)  # the chunk has to get out first
            request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


class RecordedCalls:
    """Keeps what `on_call` got, and can hold it back."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, row: Any) -> None:
        """Take one row."""
        if self.gate is not None:
            await self.gate.wait()
        self.rows.append(dict(row))
