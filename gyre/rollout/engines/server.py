"""Serves an engine of this process over SGLang's native HTTP contract, so that whoever asks needs to know one protocol.

`serve_engine` runs an aiohttp application in a thread with its own event loop. Handlers never block that loop: generation comes back
through callbacks of the engine's thread, control calls run in worker threads. A client that goes away aborts its request.
Where our engines differ from SGLang they are stricter or quicker, never looser: an abort ends exactly the id it names (SGLang
matches prefixes), `/health` does not generate, one list of ids per request.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from aiohttp import web

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import Engine, EngineRefusedError, GenerateRequest, Generation
from gyre.rollout.engines.wire import parse_request, render_reply

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A million token ids as JSON, with room."""
START_TIMEOUT_S = 30.0
"""Binding a loopback port takes milliseconds; this only keeps a broken start from hanging."""


class Gate:
    """Whether new requests to generate are accepted; a cell on its way out of rollout closes it."""

    def __init__(self) -> None:
        self.is_open = True


_ENGINE = web.AppKey("engine", Engine)
_GATE = web.AppKey("gate", Gate)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RunningServer:
    """A server that runs; `url` is where, `stop` ends it (the engine goes on)."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, thread: threading.Thread, gate: Gate) -> None:
        self.url = url
        self._gate = gate
        self._loop = loop
        self._stopping = stopping
        self._thread = thread

    def set_accepting(self, is_open: bool) -> None:
        """Open or close the gate: behind a closed one requests to generate are refused at once (503), to be sent elsewhere."""
        self._gate.is_open = is_open

    def stop(self) -> None:
        """Stop accepting, cut what is open, and join the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()


def serve_engine(engine: Engine, host: str = "127.0.0.1", port: int = 0) -> RunningServer:
    """Serve `engine` on `host`, on a free port by default.

    Raises:
        EngineError: the address cannot be bound.
    """
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    gate = Gate()

    async def main() -> None:
        stopping = asyncio.Event()
        runner = web.AppRunner(build_app(engine, gate), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            started.set_result((runner.addresses[0][1], asyncio.get_running_loop(), stopping))
            await stopping.wait()
        except OSError as error:
            started.set_exception(EngineError(f"cannot serve an engine on {host}:{port}: {error}"))
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="engine-server", daemon=True)
    thread.start()
    bound_port, loop, stopping = started.result(timeout=START_TIMEOUT_S)
    return RunningServer(f"http://{host}:{bound_port}", loop, stopping, thread, gate)


def build_app(engine: Engine, gate: Gate | None = None) -> web.Application:
    """The application, for a server of one's own."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_answer_errors])
    app[_ENGINE] = engine
    app[_GATE] = gate or Gate()
    app.router.add_post("/generate", _generate)
    for path, handler in {
        "/abort_request": _abort,
        "/pause_generation": _pause,
        "/continue_generation": _continue,
        "/flush_cache": _flush_cache,
        "/release_memory_occupation": _release_memory,
        "/resume_memory_occupation": _resume_memory,
        "/update_weight_version": _update_version,
        "/update_weights_from_disk": _update_from_disk,
        "/weights_checker": _weights_checker,
    }.items():
        app.router.add_post(path, handler)
    for path, handler in {
        "/flush_cache": _flush_cache,
        "/health": _health,
        "/health_generate": _health,
        "/ready": _health,
        "/model_info": _model_info,
        "/get_model_info": _model_info,
        "/server_info": _server_info,
        "/get_server_info": _server_info,
        "/v1/loads": _loads,
    }.items():
        app.router.add_get(path, handler)
    return app


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the contract's shape: 400 for a refused request, 500 for an engine that failed."""
    try:
        return await handler(request)
    except EngineRefusedError as error:
        return web.json_response({"error": {"message": str(error)}}, status=400)
    except EngineError as error:
        return web.json_response({"object": "error", "message": str(error), "code": 500}, status=500)


async def _read_object(request: web.Request) -> dict[str, Any]:
    raw = await request.read()
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise EngineRefusedError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise EngineRefusedError("the body must be a JSON object")
    return body


# Generation


async def _generate(request: web.Request) -> web.StreamResponse:
    engine, begun_s = request.app[_ENGINE], time.monotonic()
    body = await _read_object(request)
    # Asked once the body is here: a long context arrives while the gate closes, and would wait in the engine for the whole burst.
    if not request.app[_GATE].is_open:
        return web.json_response({"error": {"message": "this engine is leaving rollout; ask for a new route"}}, status=503)
    asked = parse_request(body, new_rid=lambda: uuid4().hex)
    updates = _submit(engine, asked)

    def render(generation: Generation, num_sent: int = 0) -> dict[str, Any]:
        return render_reply(
            asked.rid,
            generation,
            engine.info().version,
            return_logprob=bool(body.get("return_logprob")),
            decode=engine.decode,
            latency_s=None if generation.finish_reason is None else time.monotonic() - begun_s,
            num_sent=num_sent,
        )

    try:
        if asked.is_streamed:
            return await _stream(request, updates, render)
        return web.json_response(render(await _next_update(updates)))
    except BaseException:
        # The client has gone, or the answer could not be written: nobody waits for the rest.
        engine.abort(asked.rid)
        raise


def _submit(engine: Engine, asked: GenerateRequest) -> asyncio.Queue[Generation | EngineError]:
    """Give a request to the engine; its updates come through the queue."""
    loop = asyncio.get_running_loop()
    updates: asyncio.Queue[Generation | EngineError] = asyncio.Queue()

    def on_update(update: Generation | EngineError) -> None:
        try:
            loop.call_soon_threadsafe(updates.put_nowait, update)
        except RuntimeError:
            # The server was stopped while the engine goes on; nobody listens any more.
            return

    engine.submit(asked, on_update)
    return updates


async def _next_update(updates: asyncio.Queue[Generation | EngineError]) -> Generation:
    """The newest update there is, waiting for one if need be: older ones are contained in it."""
    update = await updates.get()
    while not updates.empty():
        update = updates.get_nowait()
    if isinstance(update, EngineError):
        raise update
    return update


async def _stream(
    request: web.Request,
    updates: asyncio.Queue[Generation | EngineError],
    render: Callable[[Generation, int], Mapping[str, Any]],
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    num_sent, is_finished = 0, False
    while not is_finished:
        try:
            generation = await _next_update(updates)
            chunk, is_finished = render(generation, num_sent), generation.finish_reason is not None
            num_sent = len(generation.output_ids)
        except EngineError as error:
            code = 400 if isinstance(error, EngineRefusedError) else 500
            chunk, is_finished = {"error": {"message": str(error), "type": "EngineError", "code": code}}, True
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


# Control


async def _abort(request: web.Request) -> web.Response:
    body = await _read_object(request)
    rid = body.get("rid") or ""
    if rid or body.get("abort_all"):
        request.app[_ENGINE].abort(None if body.get("abort_all") else rid)
    return web.Response()


async def _pause(request: web.Request) -> web.Response:
    mode = (await _read_object(request)).get("mode", "abort")
    if mode not in ("abort", "retract", "in_place"):
        raise EngineRefusedError(f"mode is {mode!r}; there are abort, retract and in_place")
    await asyncio.to_thread(request.app[_ENGINE].pause, mode)
    return web.json_response({"message": f"Generation paused successfully in {mode} mode.", "status": "ok"})


async def _continue(request: web.Request) -> web.Response:
    await asyncio.to_thread(request.app[_ENGINE].resume)
    return web.json_response({"message": "Generation continued successfully.", "status": "ok"})


async def _flush_cache(request: web.Request) -> web.Response:
    if await asyncio.to_thread(request.app[_ENGINE].flush_cache):
        return web.Response(text="Cache flushed.")
    return web.Response(text="Flush cache failed.", status=400)


async def _release_memory(request: web.Request) -> web.Response:
    tags = (await _read_object(request)).get("tags") or ()
    await asyncio.to_thread(request.app[_ENGINE].release_memory, tags)
    return web.json_response(None)


async def _resume_memory(request: web.Request) -> web.Response:
    tags = (await _read_object(request)).get("tags") or ()
    await asyncio.to_thread(request.app[_ENGINE].resume_memory, tags)
    return web.json_response(None)


async def _update_version(request: web.Request) -> web.Response:
    engine, body = request.app[_ENGINE], await _read_object(request)
    version = _read_version(body, "new_version")
    if body.get("abort_all_requests", True):
        engine.abort(None)
    await asyncio.to_thread(engine.set_version, version)
    message = f"Weight version updated to {version}"
    return web.json_response({"success": True, "message": message, "new_version": str(version)})


async def _update_from_disk(request: web.Request) -> web.Response:
    engine, body = request.app[_ENGINE], await _read_object(request)
    version = _read_version(body, "weight_version") if body.get("weight_version") else engine.info().version
    if body.get("abort_all_requests"):
        engine.abort(None)
    try:
        await asyncio.to_thread(engine.load_weights_from_disk, str(body.get("model_path", "")), version)
    except EngineError as error:
        return web.json_response({"success": False, "message": str(error)}, status=400)
    message = f"Succeeded to update model weights. Weight version updated to {version}."
    return web.json_response({"success": True, "message": message, "num_paused_requests": 0})


def _read_version(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    if not str(value).isdecimal():
        raise EngineRefusedError(f"{key} is {value!r}; versions of this engine are numbers, e.g. '12'")
    return int(str(value))


async def _weights_checker(request: web.Request) -> web.Response:
    action = (await _read_object(request)).get("action")
    if action != "checksum":
        raise EngineRefusedError(f"action is {action!r}; this engine knows 'checksum'")
    checksums = await asyncio.to_thread(request.app[_ENGINE].checksums)
    return web.json_response({"success": True, "message": "", "ranks": [{"checksums": checksums}]})


# Questions


async def _health(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.app[_ENGINE].is_ready() else 503)


async def _model_info(request: web.Request) -> web.Response:
    info = request.app[_ENGINE].info()
    return web.json_response(
        {
            "model_path": info.model_path,
            "tokenizer_path": info.model_path,
            "is_generation": True,
            "weight_version": str(info.version),
            "vocab_size": info.vocab_size,
            "context_length": info.context_length,
        }
    )


async def _server_info(request: web.Request) -> web.Response:
    engine = request.app[_ENGINE]
    info = engine.info()
    return web.json_response(
        {
            "version": f"gyre-{info.kind}",
            "status": "ready" if engine.is_ready() else "starting",
            "model_path": info.model_path,
            "max_total_num_tokens": info.concurrency * info.context_length,
            "max_req_input_len": info.context_length,
            "max_running_requests": info.concurrency,
            "internal_states": [],
        }
    )


async def _loads(request: web.Request) -> web.Response:
    engine = request.app[_ENGINE]
    load, info = engine.load(), engine.info()
    rank = {
        "dp_rank": 0,
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_used_tokens": load.num_used_tokens,
        "max_total_num_tokens": info.concurrency * info.context_length,
        "max_running_requests": load.capacity,
    }
    return web.json_response({"version": f"gyre-{info.kind}", "loads": [rank]})
