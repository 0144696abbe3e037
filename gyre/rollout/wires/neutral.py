"""What all wires have in common: a request and an answer without any wire's shape, and the errors a client may be told.

A wire translates its bodies to a `ChatRequest` and an `Answer` back to its own shape; it knows no tokens, trees or engines. A
`WireError` becomes the wire's own error body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre.trajectory.messages import Message, ToolSpec


class WireError(Exception):
    """A request that is answered with an error. `kind` names it; each wire has its own word and status for it."""

    def __init__(self, status: int, kind: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


def bad_request(message: str, *, param: str | None = None) -> WireError:
    """A request that cannot be understood or that asks for what is not served."""
    return WireError(400, "invalid_request", message, param=param)


def prompt_too_long(num_tokens: int, limit_tokens: int) -> WireError:
    """A context over the run's limit; harnesses know the words and compact their history."""
    return WireError(
        400,
        "context_length_exceeded",
        f"prompt is too long: {num_tokens} tokens > {limit_tokens} maximum (this model's maximum context length)",
        param="messages",
    )


def not_authorized() -> WireError:
    """A wrong, foreign or expired key."""
    return WireError(401, "invalid_api_key", "this API key is unknown or has expired")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request of a harness, whatever wire it came over."""

    messages: tuple[Message, ...]
    """The whole history."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call."""
    wire_names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Tools that the client knows by another name than the model: (namespace, name) by the model's name."""
    model: str = ""
    """Name the client gave; every name means the run's policy."""
    server_note: str = ""
    """What the client's system field says to the server and not to the model; seen by role rules."""
    shows_reasoning: bool = True
    """Whether the client reads thinking."""
    has_forced_tool: bool = False
    """Whether the client insists on a tool call; recorded and seen by role rules, never enforced on the sampling."""
    is_streamed: bool = False
    """Whether the answer is a stream of events."""
    wants_usage: bool = True
    """Whether a stream ends with a usage event."""
    max_tokens: int | None = None
    """Most output tokens; None: the run's maximum."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer and are not part of it."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters as the client asked for them, to be recorded; the run decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The model's answer to one request."""

    answer_id: str
    """Unique; without a wire's prefix."""
    message: Message
    """The assistant's message, calls with their ids."""
    finish_reason: str
    """stop, length or abort."""
    prompt_tokens: int
    """Tokens of the whole context."""
    completion_tokens: int
    """Sampled tokens."""
    cached_tokens: int
    """Tokens of the context that the engine had."""
    created_at_s: float
    """Seconds since the epoch."""
    stop_string: str | None = None
    """The client's stop string that ended the answer, if one did."""
