"""Sampled text to an assistant's message: tool calls and reasoning by llm-router-utils' parsers, the same that SGLang has.

Only what the model finished is a call: of an answer that was cut by its length the part behind the last closed call stays text, so
that no harness acts on half a command. Where a parser finds no call in marked text the whole text is given to the harness: what
the model produced is what is seen, matched and trained. Loading the parsers costs about a second of processor time, once, at construction.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gyre.errors import UserError
from gyre.trajectory.messages import Message, ToolCall, ToolSpec

TOOL_SETS_KEPT = 256
"""Tool lists whose parser objects are kept; a harness offers a handful."""


class CallIds:
    """Ids of tool calls, unique in a run and the same when a run is repeated.

    >>> ids = CallIds("g000012-03", 1)
    >>> ids.next() != ids.next(), len(ids.next())
    (True, 29)
    """

    def __init__(self, execution_id: str, attempt: int) -> None:
        self._stem = f"{execution_id}/{attempt}"
        self._count = 0

    def next(self) -> str:
        """One more id."""
        self._count += 1
        return "call_" + hashlib.blake2b(f"{self._stem}/{self._count}".encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """An answer's text taken apart."""

    text: str
    """Visible text."""
    reasoning: str
    """Thinking; empty without a reasoning parser."""
    calls: tuple[tuple[str, str], ...]
    """(name, arguments as JSON text) of each tool call."""

    def to_message(self, ids: CallIds) -> Message:
        """The assistant's message, its calls with new ids."""
        calls = tuple(ToolCall(id=ids.next(), name=name, arguments_json=arguments) for name, arguments in self.calls)
        return Message(role="assistant", text=self.text, reasoning=self.reasoning, tool_calls=calls)


class AnswerReader:
    """Takes answers apart with one pair of parsers.

    Args:
        tool_parser: a name of llm-router-utils, e.g. 'qwen3_coder'; None: tool calls stay text.
        reasoning_parser: a name of llm-router-utils, e.g. 'qwen3'; None: thinking stays text.

    Raises:
        UserError: there is no such parser.
    """

    def __init__(self, *, tool_parser: str | None, reasoning_parser: str | None = None) -> None:
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._parser_for = lru_cache(maxsize=TOOL_SETS_KEPT)(self._make_parser)
        self.call_marker = ""
        """Text that opens a tool call; empty where the format has none of its own."""
        self._call_end = ""
        if tool_parser is not None:
            detector = _make_tool_parser(tool_parser, []).detector
            self.call_marker = _marker(detector, ("tool_call_start_token", "bot_token"))
            self._call_end = _marker(detector, ("tool_call_end_token", "eot_token"))
        if reasoning_parser is not None:
            _make_reasoning_parser(reasoning_parser)

    @property
    def reads_calls(self) -> bool:
        """Whether tool calls are taken out of the text."""
        return self._tool_parser is not None

    @property
    def reads_reasoning(self) -> bool:
        """Whether thinking is taken out of the text."""
        return self._reasoning_parser is not None

    def read(self, text: str, tools: Sequence[ToolSpec], *, is_cut: bool) -> ReadAnswer:
        """Take a sampled text apart.

        Args:
            text: the answer without its end token.
            tools: what the request offered; without any, nothing is a call.
            is_cut: whether the answer was ended by its length.
        """
        reasoning = ""
        if self._reasoning_parser is not None:
            parsed = _make_reasoning_parser(self._reasoning_parser).parse_non_stream(text)
            reasoning, text = (parsed[0] or "").strip(), parsed[1] or ""
        if not tools or self._tool_parser is None:
            return ReadAnswer(text=text, reasoning=reasoning, calls=())
        whole = self._closed_part(text) if is_cut else text
        try:
            visible, items = self._parser_for(tuple(tools)).parse_non_stream(whole) if whole else ("", [])
        except Exception as error:  # a parser that trips over what a model wrote has found no call in it
            logging.getLogger(__name__).debug("%s parser: %r", self._tool_parser, error)
            visible, items = "", []
        calls = tuple((item.name, item.parameters) for item in items if item.name)
        if not calls:
            return ReadAnswer(text=text, reasoning=reasoning, calls=())
        return ReadAnswer(text=visible, reasoning=reasoning, calls=calls)

    def _closed_part(self, text: str) -> str:
        """Of a cut answer, everything up to the end of its last closed call."""
        place = text.rfind(self._call_end) if self._call_end else -1
        return text[: place + len(self._call_end)] if place >= 0 else ""

    def _make_parser(self, tools: tuple[ToolSpec, ...]) -> Any:
        assert self._tool_parser is not None
        return _make_tool_parser(self._tool_parser, tools)


class VisibleText:
    """The part of a growing answer that is certainly text: what may be sent before the answer is whole.

    Without a marker (None) everything is. Text stops for good at the tool-call marker, and an end that could still become one is held back.

    >>> visible = VisibleText("<tool_call>")
    >>> visible.feed("I look. <tool"), visible.feed("I look. <tool_call>x")
    ('I look. ', '')
    """

    def __init__(self, marker: str | None) -> None:
        self._marker = marker
        self.sent = ""
        """What was given out so far."""

    def feed(self, text: str) -> str:
        """New text that may be sent, of the whole answer so far."""
        safe = text.rstrip("\N{REPLACEMENT CHARACTER}")  # half a character is not text yet
        if self._marker is not None:
            safe = safe[: _marker_place(safe, self._marker)]
        if len(safe) <= len(self.sent) or not safe.startswith(self.sent):
            return ""
        new, self.sent = safe[len(self.sent) :], safe
        return new


def _marker_place(text: str, marker: str) -> int:
    """Where a marker, or what could become one at the end, begins; the text's length where nothing does."""
    place = text.find(marker)
    if place >= 0:
        return place
    held = next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)
    return len(text) - held


def _marker(detector: Any, names: Sequence[str]) -> str:
    return next((str(value).strip() for name in names if (value := getattr(detector, name, None))), "")


def _make_tool_parser(name: str, tools: Sequence[ToolSpec]) -> Any:

    from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Function, Tool
    from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

    # It warns about every tool the model invents, for each call; the harness answers those.
    logging.getLogger("llm_router_utils").setLevel(logging.ERROR)
    listed = [Tool(function=Function(name=t.name, description=t.description, parameters=json.loads(t.parameters_json))) for t in tools]
    try:
        return FunctionCallParser(listed, name)
    except ValueError as error:
        known = ", ".join(sorted(FunctionCallParser.ToolCallParserEnum))
        raise UserError(f"there is no tool-call parser {name!r}", hint=f"write one of {known}") from error


def _make_reasoning_parser(name: str) -> Any:
    from llm_router_utils.sglang.srt.parser.reasoning_parser import ReasoningParser

    try:
        return ReasoningParser(model_type=name, stream_reasoning=False)
    except ValueError as error:
        known = ", ".join(sorted(ReasoningParser.DetectorMap))
        raise UserError(f"there is no reasoning parser {name!r}", hint=f"write one of {known}") from error
