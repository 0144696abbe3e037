"""The proxy: harnesses talk to it as to a model's public API; every call is recorded and attached to its execution's tree.

An execution is known by an unguessable key, given as API key or as path prefix (`/x/KEY/v1/…`); a wrong, foreign or expired one
gets 401 and sees nothing. Which paths there are is said by the registered wires; each request is translated by its own.

Fed by the harnesses (HTTP) and by `harness_proxy`, which opens and closes executions; eaten by the store (`on_call`) and by
`tree_select`, which reads the frozen trees and drops them. Knows HTTP only: what a call is is in `session`, how its answer reaches
a client in `delivery`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiohttp import web

from gyre.rollout.answers import AnswerReader
from gyre.rollout.delivery import PING_S, deliver, error_response, json_response
from gyre.rollout.generation import EngineCaller, Routes, SamplingRules
from gyre.rollout.renderer import Renderer
from gyre.rollout.session import CallServices, OnCall, Session
from gyre.rollout.wires.neutral import ChatRequest, WireError, bad_request, not_authorized
from gyre.rollout.wires.registry import WIRES, find_wire
from gyre.rollout.wires.wire import TokenCount, Wire
from gyre.trajectory.roles import RoleRules

MAX_BODY_BYTES = 256 << 20
"""A history of a million tokens is a few megabytes; anything beyond this is a mistake."""


class Proxy:
    """Serves the executions of one process.

    `url = await proxy.start()`, `key = proxy.open_execution('g000012-03', attempt=1, role_rules=rules)`; the harness posts to
    `{url}/x/{key}/v1/chat/completions`; `await proxy.close_execution('g000012-03')` freezes its records and ends the key;
    `proxy.calls_table('g000012-03', 1)` is the tree; `proxy.drop_tree('g000012-03')` forgets it.
    """

    def __init__(
        self,
        *,
        renderer: Renderer,
        reader: AnswerReader,
        engines: Routes,
        sampling: SamplingRules,
        on_call: OnCall,
        model_names: tuple[str, ...] = ("policy",),
        clock: Callable[[], float] = time.time,
        engine_give_up_s: float = 600.0,
        ping_s: float = PING_S,
    ) -> None:
        """Prepare; `start` opens the port.

        Args:
            renderer: of the policy's model folder.
            reader: takes sampled text apart.
            engines: where calls go.
            sampling: how the run samples.
            on_call: makes one row of `calls` durable; awaited before an answer ends.
            model_names: what `/v1/models` lists; every name a client sends means the policy.
            clock: seconds since the epoch.
            engine_give_up_s: how long failing engines are asked again before the harness gets an error.
            ping_s: silence after which a streamed answer shows that it is alive.
        """
        self._ping_s = ping_s
        self._on_call = on_call
        self._failure: Exception | None = None
        self._has_failed = asyncio.Event()
        self._caller = EngineCaller(engines, vocab_size=renderer.vocab_size, give_up_s=engine_give_up_s)
        self._services = CallServices(
            renderer=renderer, reader=reader, caller=self._caller, sampling=sampling, on_call=self._record, clock=clock
        )
        self._model_names = list(model_names)
        self._sessions: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None

    @classmethod
    def for_model(cls, model_dir: Path, *, tool_parser: str | None, reasoning_parser: str | None = None, **options: Any) -> Proxy:
        """A proxy for a model folder; `options` are those of the constructor."""
        reader = AnswerReader(tool_parser=tool_parser, reasoning_parser=reasoning_parser)
        return cls(renderer=Renderer(model_dir), reader=reader, **options)

    # ------------------------------------------------------------ life

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Open the port and return the address, `http://host:port`."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for prefix in ("", "/x/{key}"):
            app.router.add_routes(self._routes(prefix))
        # A client that goes away cancels its handler at once, so that a retry is told from a second sample.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return f"http://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close every execution, the port and the connections to the engines."""
        for execution_id in [s.tree.execution_id for s in self._by_key.values()]:
            await self.close_execution(execution_id)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self._caller.close()

    async def wait_failure(self) -> Exception:
        """Wait until a record could not be made durable; the error, with which the run must end."""
        await self._has_failed.wait()
        assert self._failure is not None
        return self._failure

    async def _record(self, row: Mapping[str, Any]) -> None:
        try:
            await self._on_call(row)
        except Exception as error:
            self._failure = self._failure or error
            self._has_failed.set()
            raise

    # ------------------------------------------------------------ executions

    def open_execution(self, execution_id: str, *, attempt: int, role_rules: RoleRules) -> str:
        """Begin an attempt of an execution with an empty tree; its key. An earlier attempt's key and tree are gone."""
        self._by_key = {key: s for key, s in self._by_key.items() if s.tree.execution_id != execution_id}
        session = Session(execution_id, attempt, roles=role_rules, services=self._services)
        key = f"gk-{secrets.token_urlsafe(24)}"
        self._sessions[execution_id] = session
        self._by_key[key] = session
        return key

    async def close_execution(self, execution_id: str) -> int:
        """End an execution's key and freeze its records; how many calls it has.

        A call in flight is aborted and leaves no record. Closing one that is closed or unknown changes nothing.
        """
        self._by_key = {key: s for key, s in self._by_key.items() if s.tree.execution_id != execution_id}
        session = self._sessions.get(execution_id)
        if session is None:
            return 0
        await session.close()
        return len(session.tree)

    def calls_table(self, execution_id: str, attempt: int) -> pa.Table | None:
        """The nodes of an execution's tree as `calls.v1`; None where this proxy does not hold that attempt."""
        session = self._sessions.get(execution_id)
        if session is None or session.tree.attempt != attempt:
            return None
        return session.tree.to_table()

    def drop_tree(self, execution_id: str) -> None:
        """Forget a closed execution's tree; one that is gone already is fine."""
        session = self._sessions.get(execution_id)
        if session is not None and session.is_closed:
            del self._sessions[execution_id]

    @property
    def num_trees(self) -> int:
        """Trees held in memory."""
        return len(self._sessions)

    # ------------------------------------------------------------ HTTP

    def _routes(self, prefix: str) -> Iterator[web.RouteDef]:
        for wire in WIRES.values():
            yield web.post(prefix + wire.path, partial(self._answer, wire))
            if wire.count is not None:
                yield web.post(prefix + wire.count.path, partial(self._count, wire, wire.count))
        yield web.get(f"{prefix}/v1/models", self._models)
        yield web.get(f"{prefix}/v1/models/{{model}}", self._model)

    async def _answer(self, wire: Wire, http: web.Request) -> web.StreamResponse:
        try:
            session, body, request = await self._read(wire, http)
            call = session.submit(request, headers=http.headers, body=body, transport_fields=wire.transport_fields)
        except WireError as error:
            return error_response(error, wire)
        except RecursionError:
            return error_response(bad_request("the body is nested too deeply"), wire)
        return await deliver(http, call, request, wire, ping_s=self._ping_s)

    async def _count(self, wire: Wire, count: TokenCount, http: web.Request) -> web.StreamResponse:
        try:
            session, _, request = await self._read(wire, http)
            return json_response(200, count.render(session.count_tokens(request)))
        except WireError as error:
            return error_response(error, wire)

    async def _models(self, http: web.Request) -> web.StreamResponse:
        wire = find_wire(http.headers)
        try:
            self._session_of(http)
        except WireError as error:
            return error_response(error, wire)
        return json_response(200, wire.render_models(self._model_names))

    async def _model(self, http: web.Request) -> web.StreamResponse:
        """One model: whatever its name, it is the policy."""
        wire = find_wire(http.headers)
        try:
            self._session_of(http)
        except WireError as error:
            return error_response(error, wire)
        return json_response(200, wire.render_models([http.match_info["model"]])["data"][0])

    async def _read(self, wire: Wire, http: web.Request) -> tuple[Session, Mapping[str, Any], ChatRequest]:
        """Who asks, the body, and what it means."""
        session = self._session_of(http)
        body = await _read_body(http)
        return session, body, wire.parse_request(body)

    def _session_of(self, http: web.Request) -> Session:
        session = self._by_key.get(_key_of(http))
        if session is None:
            raise not_authorized()
        return session


def _key_of(http: web.Request) -> str:
    """The execution's key: the path prefix, else the API key in one of the places where clients put it."""
    if "key" in http.match_info:
        return http.match_info["key"]
    scheme, _, token = http.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else http.headers.get("x-api-key", "")


async def _read_body(http: web.Request) -> Any:
    try:
        raw = await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise WireError(413, "invalid_request", "the body is larger than the proxy reads") from error
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error
