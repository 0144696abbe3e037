"""The sequences of an engine and their turns: who waits, who holds a slot, what is computed next. One thread's business.

`batching.BatchedEngine` calls it from its thread; a `Decoder` under it (the torch policy of `local`, the rules of `scripted`) turns
sequences in slots into tokens. A turn gives free slots to the longest-waiting sequences, prefills up to a budget, and decodes one
token of every running row.

Invariants: running sequences fill slots 0 … n-1 before each decode; a sequence ends exactly once; one that is put back keeps its
tokens and comes before those that never ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gyre.errors import EngineError
from gyre.rollout.engines.sequence import Finish, LiveSequence, Sampled, find_finish

PREFILL_BUDGET_TOKENS = 512
"""Prompt tokens per turn: a long prompt delays the running answers by at most this much computation at a time."""


class Decoder(Protocol):
    """What computes tokens. Called from the engine's thread only, except for `info` values and `decode_text`."""

    kind: str
    model_path: str
    vocab_size: int
    context_length: int
    num_slots: int
    eos_token_ids: tuple[int, ...]

    def admit(self, sequence: LiveSequence, slot: int) -> int:
        """Put what is cached of the sequence's beginning into a slot; the number of tokens, less than the sequence has.

        An `EngineError` ends this request alone.
        """
        ...

    def prefill(self, sequence: LiveSequence, stop: int) -> Sampled | None:
        """Compute tokens `num_computed … stop`; the next token if that was all of them."""
        ...

    def decode(self, rows: Sequence[LiveSequence | None]) -> list[Sampled]:
        """Compute the newest token of every sequence in slots 0 … n-1 (None: idle); one next token per sequence."""
        ...

    def keep(self, sequence: LiveSequence) -> None:
        """Remember a leaving sequence's prefix."""
        ...

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Move a slot's contents."""
        ...

    def forget(self) -> None:
        """Forget every remembered prefix."""
        ...

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Take these weights; unchanged if they do not fit."""
        ...

    def load_weights_from_disk(self, model_dir: str) -> None:
        """Take the weights of a folder; unchanged if they do not fit."""
        ...

    def release(self, tag: str) -> None:
        """Give the memory of 'weights' or 'kv_cache' back."""
        ...

    def resume(self, tag: str) -> None:
        """Take it again."""
        ...

    def checksums(self) -> dict[str, str]:
        """Digest of every weight tensor."""
        ...

    def decode_text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Text of tokens; None without a tokenizer."""
        ...


class SequenceBatch:
    """Waiting and running sequences over a decoder's slots.

    Args:
        decoder: computes the tokens.
        version: of the weights it holds.
        on_end: called just before the last update of a sequence is sent.
    """

    def __init__(self, decoder: Decoder, *, version: int, on_end: Callable[[LiveSequence], None]) -> None:
        self.version = version
        self.slots: list[LiveSequence | None] = [None] * decoder.num_slots
        self.waiting: deque[LiveSequence] = deque()
        self._decoder = decoder
        self._on_end = on_end

    @property
    def has_work(self) -> bool:
        """Whether a turn would compute anything."""
        return bool(self.waiting) or any(self.slots)

    def live(self) -> list[LiveSequence]:
        """Every live sequence: those in slots, then those that wait."""
        return [sequence for sequence in self.slots if sequence is not None] + list(self.waiting)

    def turn(self) -> None:
        """Admit, prefill, decode."""
        self._prefill()
        self._decode()

    def enqueue(self, sequence: LiveSequence) -> None:
        """Take a new sequence in."""
        if sequence.request.sampling.max_new_tokens == 0:
            self._finish(sequence, Finish("length"))
        else:
            self.waiting.append(sequence)

    def abort(self, rid: str | None) -> None:
        """End the sequence with this id, or all (None), with what they have."""
        for sequence in self.live():
            if rid is None or sequence.request.rid == rid:
                self._finish(sequence, Finish("abort"))

    def _finish(self, sequence: LiveSequence, finish: Finish) -> None:
        """End a request: its slot is free, its prefix remembered, its last update sent."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
        else:
            self._decoder.keep(sequence)
            self.slots[sequence.slot] = None
            sequence.slot = None
        self._on_end(sequence)
        sequence.on_update(sequence.generation(finish))

    def fail(self, sequence: LiveSequence, error: EngineError) -> None:
        """End a sequence with an error instead of an answer."""
        self._on_end(sequence)
        sequence.on_update(error)

    def retract_all(self, *, keeps_kv: bool) -> None:
        """Put every running sequence back to the front of the queue, in the order of its slots."""
        running = [sequence for sequence in self.slots if sequence is not None]
        for sequence in reversed(running):
            if keeps_kv:
                self._decoder.keep(sequence)
            sequence.slot = None
            sequence.num_computed = 0
            sequence.num_retractions += 1
            self.waiting.appendleft(sequence)
        self.slots = [None] * len(self.slots)

    def _prefill(self) -> None:
        """Prefill unfinished prompts, then admit waiting ones, until the budget is spent."""
        budget = PREFILL_BUDGET_TOKENS
        while budget > 0 and (sequence := self._next_prefill()) is not None:
            stop = min(len(sequence.token_ids), sequence.num_computed + budget)
            budget -= stop - sequence.num_computed
            sampled = self._decoder.prefill(sequence, stop)
            sequence.num_computed = stop
            if sampled is not None:
                self._accept(sequence, sampled)

    def _next_prefill(self) -> LiveSequence | None:
        for sequence in self.slots:
            if sequence is not None and not sequence.is_decoding:
                return sequence
        if not self.waiting or None not in self.slots:
            return None
        sequence, slot = self.waiting.popleft(), self.slots.index(None)
        try:
            sequence.num_computed = self._decoder.admit(sequence, slot)
        except EngineError as error:
            self.fail(sequence, error)
            return self._next_prefill()
        sequence.slot = slot
        self.slots[slot] = sequence
        if not sequence.num_retractions:
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_input)
        return sequence

    def _decode(self) -> None:
        self._close_gaps()
        rows = [s if s is not None and s.is_decoding else None for s in self.slots]
        while rows and rows[-1] is None:
            rows.pop()
        running = [sequence for sequence in rows if sequence is not None]
        if not running:
            return
        for sequence, sampled in zip(running, self._decoder.decode(rows), strict=True):
            sequence.num_computed += 1
            self._accept(sequence, sampled)

    def _close_gaps(self) -> None:
        """Move the last running sequences into free slots before them, so that no row is computed for nothing."""
        while None in self.slots:
            gap = self.slots.index(None)
            last = max((slot for slot, sequence in enumerate(self.slots) if sequence is not None), default=-1)
            if last < gap:
                return
            sequence = self.slots[last]
            assert sequence is not None
            self._decoder.move(last, gap, sequence.num_computed)
            self.slots[gap], self.slots[last] = sequence, None
            sequence.slot = gap

    def _accept(self, sequence: LiveSequence, sampled: Sampled) -> None:
        sequence.append(sampled, self.version)
        finish = find_finish(sequence, self._decoder.eos_token_ids, self._decoder.decode_text)
        if finish is not None:
            self._finish(sequence, finish)
        elif sequence.request.is_streamed:
            sequence.on_update(sequence.generation(None))
