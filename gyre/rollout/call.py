"""One model call on its way: who waits for it, what of it was sent, and whether a repeated request is the same call.

Fed by the session, which serves it; eaten by `delivery`, which gives it to clients. A call may have no client (gone), one, or
several (joined); its answer is there once its record is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gyre.rollout.answers import AnswerReader
from gyre.rollout.engines.protocol import Generation
from gyre.rollout.growing import Piece, rest_of
from gyre.rollout.renderer import Renderer
from gyre.rollout.wires.neutral import Answer, ChatRequest, WireError
from gyre.trajectory.messages import Message


class Call:
    """One request on its way to an answer, and the clients that wait for it."""

    def __init__(self, request: ChatRequest, *, role: str, started_at_s: float) -> None:
        self.request = request
        self.role = role
        self.started_at_s = started_at_s
        self.pieces: list[Piece] = []
        """Thinking and text in the order they were sampled."""
        self.num_prompt_tokens = 0
        """Tokens of the context; 0 until it is encoded."""
        self.answer: Answer | None = None
        """Set once the record is durable."""
        self.error: WireError | None = None
        """Set where there will be no answer."""
        self.is_delivered = False
        """Whether some client got all of the answer."""
        self.is_committing = False
        """Whether the record is in the tree and on its way to the store."""
        self.num_clients = 0
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.answer is not None or self.error is not None

    @property
    def is_settled(self) -> bool:
        """Whether no request can be a retry of this call any more."""
        return self.error is not None or self.is_delivered

    def can_be_joined(self) -> bool:
        """Whether an identical request is a retry of this call."""
        return not self.is_settled and self.num_clients == 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Count a client while it waits."""
        self.num_clients += 1
        try:
            yield
        finally:
            self.num_clients -= 1

    def announce(self) -> None:
        """Wake whoever waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_done(self) -> None:
        """Wait for the answer or the error."""
        while not self.is_done:
            await self._changed.wait()

    async def wait_news(self, num_seen: int, timeout_s: float) -> bool:
        """Wait until there are more than `num_seen` pieces or the call is done; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_done and len(self.pieces) <= num_seen:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Progress:
    """Turns an answer's growing tokens into pieces of text that may already be sent."""

    def __init__(self, call: Call, renderer: Renderer, reader: AnswerReader) -> None:
        request = call.request
        self._call = call
        self._decoder = renderer.open_decoder()
        self._growing = reader.open(has_tools=bool(request.tools), stops=request.stop)
        self._num_seen = 0

    def __call__(self, generation: Generation) -> None:
        """Take everything that was sampled so far."""
        if self._growing is None:
            return
        new_ids = generation.output_ids[self._num_seen :]
        self._num_seen += len(new_ids)
        pieces = self._growing.feed(self._decoder.feed(new_ids))
        if pieces:
            self._call.pieces += pieces
            self._call.announce()


def complete(pieces: list[Piece], message: Message) -> Message:
    """Append what was held back of the final answer; the message as a client sees it that got all pieces.

    Space in front of tool calls is nothing to show. Where something else was sent than the parsers found in the end, the client
    has seen what was sent.
    """
    thought = rest_of(message.reasoning, "".join(piece.text for piece in pieces if piece.is_reasoning))
    if thought and all(piece.is_reasoning for piece in pieces):
        pieces.append(Piece(thought, is_reasoning=True))
    sent = "".join(piece.text for piece in pieces if not piece.is_reasoning)
    text = rest_of(message.text, sent)
    if text is None:
        return replace(message, text=sent)
    if text.strip() or (text and not message.tool_calls):
        pieces.append(Piece(text))
    return message
