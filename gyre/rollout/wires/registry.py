"""The wires there are. The proxy serves every one of them; a harness profile names its own."""

from __future__ import annotations

from collections.abc import Mapping

from gyre.rollout.wires import anthropic, openai_chat, openai_responses
from gyre.rollout.wires.wire import Wire

WIRES: Mapping[str, Wire] = {wire.name: wire for wire in (openai_chat.WIRE, openai_responses.WIRE, anthropic.WIRE)}
"""By name; the first is spoken where nothing tells which."""


def find_wire(headers: Mapping[str, str]) -> Wire:
    """The wire of a client that is known by its headers only."""
    known = (wire for wire in WIRES.values() if wire.client_header is not None and wire.client_header in headers)
    return next(known, next(iter(WIRES.values())))
