"""The neutral conversation: what every wire is translated into and what the tree is matched on.

A wire (`rollout/wires/`) reads a client's body into `Message`s and `ToolSpec`s; the renderer turns them into tokens, `restore`
into digests. Text is kept exactly as it came: normalisation is the business of `restore`, which looks, but never rewrites what
is rendered. A tool call's arguments stay JSON *text*, so that the bytes the model produced survive.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool by the assistant."""

    id: str
    """Id given by us when the answer was made, echoed verbatim by the harness; empty where the wire has none."""
    name: str
    """Name of the tool."""
    arguments_json: str
    """Arguments as JSON text; not always valid JSON, since the model writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, whatever wire it came over."""

    role: str
    """'system', 'user', 'assistant' or 'tool' (one tool result)."""
    text: str = ""
    """Visible text; several text blocks are joined by the wire."""
    reasoning: str = ""
    """Thinking of the assistant; empty where it has none or the harness dropped it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant message, in its order."""
    tool_call_id: str = ""
    """Of a tool result: the id of the call that it answers."""
    parts: tuple[str, ...] = ()
    """The blocks of `text` where a wire had several; empty: one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool that a request offers to the model."""

    name: str
    """Name of the tool."""
    description: str = ""
    """What it does, for the model."""
    parameters_json: str = "{}"
    """JSON schema of its arguments, as JSON text."""
