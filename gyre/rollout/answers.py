"""Sampled text to an assistant's message: tool calls and reasoning by llm-router-utils' parsers, the same that SGLang has.

Only what the model finished is a call: of an answer that was cut by its length or a stop string the part behind the last closed call
stays text, so that no harness acts on half a command. Where a parser finds no call in marked text the whole text is given to the
harness: what the model produced is what is seen, matched and trained. Loading the parsers costs about a second of processor time, once,
at construction.
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
from gyre.rollout.growing import AnswerMarks, GrowingAnswer
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
        self._call_end = ""
        call = ""
        if tool_parser is not None:
            detector = _make_tool_parser(tool_parser, []).detector
            call = _marker(detector, ("tool_call_start_token", "bot_token"))
            self._call_end = _marker(detector, ("tool_call_end_token", "eot_token"))
        self._marks = AnswerMarks(call=call)
        if reasoning_parser is not None:
            self._marks = _thinking_marks(reasoning_parser, call)

    def open(self, *, has_tools: bool, stops: Sequence[str] = ()) -> GrowingAnswer | None:
        """What sends an answer's text early; None where the format does not allow it."""
        has_calls = has_tools and self._tool_parser is not None
        if self._marks is None or (has_calls and not self._marks.call):
            return None
        return GrowingAnswer(self._marks, has_calls=has_calls, stops=stops)

    def read(self, text: str, tools: Sequence[ToolSpec], *, is_cut: bool) -> ReadAnswer:
        """Take a sampled text apart.

        Args:
            text: the answer without its end token.
            tools: what the request offered; without any, nothing is a call.
            is_cut: whether the answer was ended by its length or a stop string.
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


def _thinking_marks(name: str, call: str) -> AnswerMarks | None:
    """Marks of a reasoning parser; None where it does more than look for two marks."""
    from llm_router_utils.sglang.srt.parser.reasoning_parser import BaseReasoningFormatDetector as Plain

    detector = _make_reasoning_parser(name).detector
    if type(detector).detect_and_parse is not Plain.detect_and_parse or detector.tool_start_token not in (None, "", call):
        return None
    if type(detector)._detect_and_parse_impl is not Plain._detect_and_parse_impl:
        return None
    return AnswerMarks(
        call=call,
        think_start=detector.think_start_token + detector.think_start_self_label,
        think_end=detector.think_end_token,
        thinks_first=bool(detector._in_reasoning),
    )
