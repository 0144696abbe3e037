"""What a wire is: one public API, as data and pure functions.

A wire translates bodies to `ChatRequest`s, `Answer`s to bodies and events, and `WireError`s to its own error bodies. It knows no
tokens, trees, engines or sockets. A new wire is one module that ends with its `Wire`, and one line in `registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError


class EventWriter(Protocol):
    """Writes the events of one streamed answer, in order: `start`, any number of `text` and `ping`, `finish`."""

    def start(self) -> bytes:
        """What opens the answer."""
        ...

    def text(self, text: str, *, is_reasoning: bool = False) -> bytes:
        """New text."""
        ...

    def ping(self) -> bytes:
        """A sign of life that changes nothing."""
        ...

    def finish(self, answer: Answer) -> bytes:
        """Whatever is left: tool calls, the reason to stop, usage, the end. All text has been written before."""
        ...


class OpenEvents(Protocol):
    """Makes the writer for one streamed answer."""

    def __call__(self, request: ChatRequest, *, answer_id: str, created_at_s: float, prompt_tokens: int) -> EventWriter:
        """Make it; `prompt_tokens` is what is known of the context's length when the stream opens, 0 if nothing."""
        ...


class TokenCount(NamedTuple):
    """How a wire is asked for the tokens of a request that is not to be answered."""

    path: str
    """Path of such requests."""
    render: Callable[[int], dict[str, Any]]
    """The answer's body, from the number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One public API."""

    name: str
    """Name in a harness profile."""
    path: str
    """Path of its requests."""
    base_path: str
    """What its clients expect in their base URL behind the host."""
    client_header: str | None = None
    """Header by which its clients are known where the path does not tell (`/v1/models`)."""
    transport_fields: frozenset[str]
    """Body fields that do not change what is asked for: a resend with others is the same call."""
    parse_request: Callable[[Any], ChatRequest]
    """Reads a parsed JSON body; raises `WireError`."""
    render_response: Callable[[Answer, ChatRequest], dict[str, Any]]
    """The body of an answer that is not streamed."""
    render_error: Callable[[WireError], dict[str, Any]]
    """The body of an error."""
    render_models: Callable[[Sequence[str]], dict[str, Any]]
    """The body of `/v1/models`, the models under `data`."""
    open_events: OpenEvents
    """A writer for one streamed answer."""
    count: TokenCount | None = None
    """How it is asked for a count of tokens; None: it cannot be."""
