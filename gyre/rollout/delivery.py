"""Gives a call's answer to one HTTP client, whole or as a stream of events, in the shape of the client's wire.

Answers stream while they are generated; the last event waits until the record is durable. A failure before the first byte is the
wire's own error body; after it the connection is cut, so that no client takes half an answer for a whole one. A call counts as
delivered once all of it went to a client that was still there.

Fed by the proxy (a call, its request), eaten by the harness.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from gyre.rollout.call import Call
from gyre.rollout.growing import Piece
from gyre.rollout.wires.neutral import ChatRequest, WireError
from gyre.rollout.wires.wire import EventWriter, Wire

PING_S = 10.0
"""Silence after which a stream gets a sign of life; clients give up after minutes, some balancers after 30 s."""


async def deliver(http: web.Request, call: Call, request: ChatRequest, wire: Wire, *, ping_s: float = PING_S) -> web.StreamResponse:
    """Answer one client; the call stays joinable while it is not delivered and no client waits."""
    with call.connected():
        if request.is_streamed:
            return await _send_events(http, call, request, wire, ping_s)
        return await _send_body(http, call, request, wire)


def json_response(status: int, body: Mapping[str, Any]) -> web.Response:
    """A JSON answer."""
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json")


def error_response(error: WireError, wire: Wire) -> web.Response:
    """An error in the wire's own shape."""
    return json_response(error.status, wire.render_error(error))


async def _send_body(http: web.Request, call: Call, request: ChatRequest, wire: Wire) -> web.StreamResponse:
    await call.wait_done()
    if call.answer is None:
        assert call.error is not None
        return error_response(call.error, wire)
    response = json_response(200, wire.render_response(call.answer, request))
    await response.prepare(http)
    await response.write_eof()
    call.is_delivered |= _is_connected(http)
    return response


async def _send_events(http: web.Request, call: Call, request: ChatRequest, wire: Wire, ping_s: float) -> web.StreamResponse:
    num_sent = 0
    # A failure before the first byte can still be the wire's own error body.
    await call.wait_news(num_sent, ping_s)
    if call.error is not None:
        return error_response(call.error, wire)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(http)
    events = wire.open_events(
        request, answer_id=secrets.token_hex(12), created_at_s=call.started_at_s, prompt_tokens=call.num_prompt_tokens
    )
    await response.write(events.start())
    while True:
        pieces, answer, error = call.pieces[num_sent:], call.answer, call.error
        num_sent += len(pieces)
        if error is not None:
            _cut(http)
            return response
        if answer is not None:
            await response.write(_write(events, pieces) + events.finish(answer))
            await response.write_eof()
            call.is_delivered |= _is_connected(http)
            return response
        if pieces:
            await response.write(_write(events, pieces))
        if not await call.wait_news(num_sent, ping_s):
            await response.write(events.ping())


def _write(events: EventWriter, pieces: Sequence[Piece]) -> bytes:
    return b"".join(events.text(piece.text, is_reasoning=piece.is_reasoning) for piece in pieces)


def _is_connected(http: web.Request) -> bool:
    return http.transport is not None and not http.transport.is_closing()


def _cut(http: web.Request) -> None:
    """Break the connection."""
    if http.transport is not None:
        http.transport.abort()
