"""A growing answer: which part of it may be sent before it is whole.

Text may go out early only where nothing that follows can turn it into a tool call or cut it off. An answer begins in thinking or in
text; each goes out as it grows, up to a mark (the end of thinking, the beginning of a call, a stop string), and an end that could
still become a mark is held back. Behind a call's or a stop's mark nothing more goes out: the whole answer is taken apart at its end
by the parsers, and what they find is what is sent last. Costs what is new, not what there is.

Fed by the session with decoded text, eaten by the wires' event writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Piece(NamedTuple):
    """Something that was sent or may be."""

    text: str
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMarks:
    """Texts by which the parts of an answer are told apart; empty where a format has none."""

    call: str = ""
    """Opens a tool call."""
    think_start: str = ""
    """Opens thinking."""
    think_end: str = ""
    """Closes it; empty: no thinking is taken out of the text."""
    thinks_first: bool = False
    """Whether an answer begins in thinking without a mark."""


class HeldText:
    """Lets text through up to the first of some marks, and never a part of one.

    >>> held = HeldText(["<call>"])
    >>> held.feed("I look. <ca"), held.feed("n I?"), held.feed(" <call>x")
    (('I look. ', None), ('<can I?', None), (' ', '<call>'))
    >>> held.rest
    'x'
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = [mark for mark in marks if mark]
        self.rest = ""
        """What is held back; behind a mark that was found, what followed it."""

    def feed(self, new: str) -> tuple[str, str | None]:
        """Take new text; what may pass, and the mark that ended it, if one did."""
        text = self.rest + new
        found = [(place, mark) for mark in self._marks if (place := text.find(mark)) >= 0]
        if found:
            place, mark = min(found)
            self.rest = text[place + len(mark) :]
            return text[:place], mark
        held = max((_held_back(text, mark) for mark in self._marks), default=0)
        end = len(text) - held
        self.rest = text[end:]
        return text[:end], None


def _held_back(text: str, mark: str) -> int:
    """How many characters at the end could be the beginning of a mark."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


class GrowingAnswer:
    """Turns decoded text into pieces that may be sent.

    >>> growing = GrowingAnswer(AnswerMarks(call="<call>", think_start="<think>", think_end="</think>"), has_calls=True)
    >>> [growing.feed(text) for text in ("<thi", "nk> Hm", ". </think>", " I", " see.<call>x")]
    [[], [Piece(text='Hm', is_reasoning=True)], [Piece(text='.', is_reasoning=True)], [Piece(text=' I', is_reasoning=False)], \
[Piece(text=' see.', is_reasoning=False)]]
    """

    def __init__(self, marks: AnswerMarks, *, has_calls: bool, stops: Sequence[str] = ()) -> None:
        self._marks = marks
        endings = [*([marks.call] if has_calls else []), *stops]
        self._thinking = HeldText([marks.think_end, *endings])
        self._visible = HeldText([*endings, *([marks.think_start] if marks.think_end else [])])
        self._stage = "opening" if marks.think_end else "text"
        self._opening = ""
        # Space around thinking, and in front of text, is sent only together with what it stands next to.
        self._space = ""
        self._is_begun = False

    def feed(self, new: str) -> list[Piece]:
        """Take new text; what may be sent now."""
        pieces: list[Piece] = []
        if self._stage == "opening":
            new = self._open(new)
        if self._stage == "thinking" and new:
            passed, mark = self._thinking.feed(new)
            pieces += self._pass(passed, is_reasoning=True)
            new = ""
            if mark is not None:
                self._stage = "text" if mark == self._marks.think_end else "closed"
                self._space, self._is_begun, new = "", False, self._thinking.rest
        if self._stage == "text" and new:
            passed, mark = self._visible.feed(new)
            pieces += self._pass(passed, is_reasoning=False)
            if mark is not None:
                self._stage = "closed"
        return pieces

    def _open(self, new: str) -> str:
        """Decide whether the answer begins in thinking; the text from there on, empty while that is open."""
        text = self._opening + new
        start = self._marks.think_start
        if len(text) < len(start) and start.startswith(text):
            self._opening = text
            return ""
        is_marked = bool(start) and text.startswith(start)
        self._stage = "thinking" if is_marked or self._marks.thinks_first else "text"
        return text[len(start) :] if is_marked else text

    def _pass(self, text: str, *, is_reasoning: bool) -> list[Piece]:
        text = self._space + text
        if not self._is_begun and is_reasoning:
            text = text.lstrip()
        end = len(text.rstrip()) if is_reasoning or not (self._is_begun or text.strip()) else len(text)
        self._space, text = text[end:], text[:end]
        self._is_begun |= bool(text)
        return [Piece(text, is_reasoning)] if text else []


def rest_of(whole: str, sent: str) -> str | None:
    """What of a whole text was not sent yet; None where something else was sent. Spacing does not count: parsers trim it.

    >>> rest_of("I look. Done", "I look."), rest_of("I look", "I  look "), rest_of("I look", "You")
    (' Done', '', None)
    """
    if whole.startswith(sent):
        return whole[len(sent) :]
    left = iter(sent.split())
    place, word = 0, ""
    for place, char in enumerate(whole):
        if char.isspace():
            continue
        word = word or next(left, "")
        if not word:
            return whole[place:]
        if char != word[0]:
            return None
        word = word[1:]
    return None if word or next(left, "") else ""
