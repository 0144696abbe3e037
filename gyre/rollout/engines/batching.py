"""Continuous batching: one thread that admits, prefills, decodes and ends requests, whatever computes the tokens.

`BatchedEngine` is the surface of every engine in this process (`protocol.Engine`); a `Decoder` under it (the torch policy of
`local`, the rules of `scripted`) turns sequences in slots into tokens. A turn of the loop: run what other threads asked for, give
free slots to the longest-waiting requests, prefill up to a budget, decode one token of every running row.

Invariants: the decoder and all sequences are touched by the engine's thread only; running sequences fill slots 0 … n-1 before each
decode; a change of weights puts every live sequence back with its tokens kept and no KV.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import (
    EngineInfo,
    EngineLoad,
    EngineRefusedError,
    GenerateRequest,
    OnUpdate,
    PauseMode,
)
from gyre.rollout.engines.sequence import Finish, LiveSequence, Sampled, draw_key, find_finish

PREFILL_BUDGET_TOKENS = 512
"""Prompt tokens per turn: a long prompt delays the running answers by at most this much computation at a time."""

T = TypeVar("T")


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


MEMORY_TAGS = ("weights", "kv_cache")


class BatchedEngine:
    """An engine of `decoder.num_slots` concurrent requests on a thread of its own (see `protocol.Engine`).

    Args:
        decoder: computes the tokens.
        version: version of the weights it begins with.
        seed: of draws whose request brings no seed.
        name: of the thread.
        on_thread_start: called first on the engine's thread.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        version: int = 0,
        seed: int = 0,
        name: str = "engine",
        on_thread_start: Callable[[], None] | None = None,
    ) -> None:
        self._decoder = decoder
        self._version = version
        self._seed = seed
        self._on_thread_start = on_thread_start
        self._slots: list[LiveSequence | None] = [None] * decoder.num_slots
        self._waiting: deque[LiveSequence] = deque()
        self._paused_by: PauseMode | None = None
        self._missing: set[str] = set()
        """Memory tags that are released, and 'weights' until they are loaded again."""
        self._unallocated: set[str] = set()
        self._live_rids: set[str] = set()
        self._posted: deque[Callable[[], None]] = deque()
        self._condition = threading.Condition()
        self._is_closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # Surface: any thread

    def submit(self, request: GenerateRequest, on_update: OnUpdate) -> None:
        """Queue a request; `on_update` is called from the engine's thread.

        Raises:
            EngineRefusedError: it can never be served: no or unknown tokens, too long, or its id is live.
            EngineError: the engine has stopped.
        """
        ids = list(request.input_ids)
        self._check_request(request, ids)
        sequence = LiveSequence(
            request=request,
            on_update=on_update,
            token_ids=ids,
            num_input=len(ids),
            draw_key=draw_key(self._seed, request),
        )
        with self._condition:
            self._raise_if_stopped()
            if request.rid in self._live_rids:
                raise EngineRefusedError(f"Duplicate request ID detected: {request.rid}")
            self._live_rids.add(request.rid)
            self._posted.append(lambda: self._enqueue(sequence))
            self._condition.notify()

    def abort(self, rid: str | None) -> None:
        """End the request with this id, or all (None), with what they have."""
        self._post(lambda: self._abort(rid))

    def pause(self, mode: PauseMode) -> None:
        """Stop sampling until `resume`; returns when it has stopped."""
        self._call(lambda: self._pause(mode))

    def resume(self) -> None:
        """Go on sampling."""

        def apply() -> None:
            self._paused_by = None

        self._call(apply)

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False while requests hold a slot, or wait for one unpaused."""
        return self._call(self._flush_cache)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Serve these weights (Hugging Face names → tensors or arrays) as `version`.

        The tensors are copied: the caller's memory is its own again on return. Live requests keep their tokens and are prefilled
        whole under the new weights.

        Raises:
            EngineError: the weights do not fit; the old ones and their version stay.
        """
        self._call(lambda: self._load(lambda: self._decoder.load_weights(weights), version))

    def load_weights_from_disk(self, model_dir: str, version: int) -> None:
        """Like `load_weights`, from a Hugging Face folder."""
        self._call(lambda: self._load(lambda: self._decoder.load_weights_from_disk(model_dir), version))

    def set_version(self, version: int) -> None:
        """Call the loaded weights `version`."""

        def apply() -> None:
            self._version = version

        self._call(apply)

    def release_memory(self, tags: Sequence[str] = ()) -> None:
        """Give back memory of 'weights' and 'kv_cache' (none named: both); live requests wait with their tokens kept."""
        self._call(lambda: self._release(_check_tags(tags)))

    def resume_memory(self, tags: Sequence[str] = ()) -> None:
        """Take it again; released weights have to be loaded before sampling goes on."""
        self._call(lambda: self._resume_memory(_check_tags(tags)))

    def checksums(self) -> dict[str, str]:
        """Digest of every weight tensor, by its Hugging Face name."""
        return self._call(self._checksums)

    def load(self) -> EngineLoad:
        """How busy the engine is; a glance, not a transaction."""
        running = [sequence for sequence in self._slots if sequence is not None]
        return EngineLoad(
            num_running=len(running),
            num_waiting=max(0, len(self._live_rids) - len(running)),
            num_used_tokens=sum(sequence.num_computed for sequence in running),
            capacity=self._decoder.num_slots,
        )

    def info(self) -> EngineInfo:
        """What the engine serves."""
        return EngineInfo(
            kind=self._decoder.kind,
            model_path=self._decoder.model_path,
            vocab_size=self._decoder.vocab_size,
            context_length=self._decoder.context_length,
            concurrency=self._decoder.num_slots,
            version=self._version,
        )

    def is_ready(self) -> bool:
        """Whether it holds weights and memory and its thread works."""
        return self._thread.is_alive() and not self._is_closing and not self._missing

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """Text of tokens; None without a tokenizer."""
        return self._decoder.decode_text(token_ids)

    def close(self) -> None:
        """End every request with what it has and stop the thread."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _check_request(self, request: GenerateRequest, ids: list[int]) -> None:
        sampling, limit = request.sampling, self._decoder.context_length
        if not ids:
            raise EngineRefusedError("input_ids is empty; send at least one token")
        if min(ids) < 0 or max(ids) >= self._decoder.vocab_size:
            raise EngineRefusedError(f"input_ids holds an id outside the vocabulary of {self._decoder.vocab_size}")
        if sampling.max_new_tokens < 0 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
            raise EngineRefusedError(f"sampling parameters out of range: {sampling.to_wire()}")
        if len(ids) + sampling.max_new_tokens > limit:
            raise EngineRefusedError(
                f"the request needs {len(ids)} input and {sampling.max_new_tokens} new tokens, but the context holds {limit};"
                " shorten the input or lower max_new_tokens"
            )
        if sampling.stop and self._decoder.decode_text([]) is None:
            raise EngineRefusedError("stop strings need a tokenizer.json beside the model; use stop_token_ids")

    def _raise_if_stopped(self) -> None:
        if self._failure is not None:
            raise EngineError(f"the engine has failed: {self._failure!r}") from self._failure
        if self._is_closing or not self._thread.is_alive():
            raise EngineError("the engine is closed")

    def _post(self, command: Callable[[], None]) -> None:
        with self._condition:
            self._posted.append(command)
            self._condition.notify()

    def _call(self, work: Callable[[], T]) -> T:
        """Run `work` on the engine's thread between two turns and wait for its result."""
        future: Future[T] = Future()

        def command() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        with self._condition:
            self._raise_if_stopped()
            self._posted.append(command)
            self._condition.notify()
        return future.result()

    # The engine's thread

    def _run(self) -> None:
        try:
            if self._on_thread_start is not None:
                self._on_thread_start()
            while self._take_commands():
                if self._can_sample():
                    self._prefill()
                    self._decode()
        except Exception as error:
            self._failure = error
        self._stop()

    def _take_commands(self) -> bool:
        """Wait for something to do and run what was posted; False when the engine closes."""
        with self._condition:
            while not (self._posted or self._is_closing or self._can_sample()):
                self._condition.wait()
            commands, self._posted = self._posted, deque()
            is_closing = self._is_closing
        for command in commands:
            command()
        return not is_closing

    def _can_sample(self) -> bool:
        return self._paused_by is None and not self._missing and (bool(self._waiting) or any(self._slots))

    def _stop(self) -> None:
        """End every request; commands that came too late still run, so that no caller waits for ever."""
        with self._condition:
            self._is_closing = True
            commands, self._posted = self._posted, deque()
        for command in commands:
            command()
        for sequence in self._live():
            if self._failure is None:
                self._finish(sequence, Finish("abort"))
            else:
                self._fail(sequence, EngineError(f"the engine has failed: {self._failure!r}"))

    def _live(self) -> list[LiveSequence]:
        """Every live sequence: those in slots, then those that wait."""
        return [sequence for sequence in self._slots if sequence is not None] + list(self._waiting)

    # Requests

    def _enqueue(self, sequence: LiveSequence) -> None:
        if sequence.request.sampling.max_new_tokens == 0:
            self._finish(sequence, Finish("length"))
        else:
            self._waiting.append(sequence)

    def _abort(self, rid: str | None) -> None:
        for sequence in self._live():
            if rid is None or sequence.request.rid == rid:
                self._finish(sequence, Finish("abort"))

    def _finish(self, sequence: LiveSequence, finish: Finish) -> None:
        """End a request: its slot is free, its prefix remembered, its last update sent."""
        if sequence.slot is None:
            if sequence in self._waiting:
                self._waiting.remove(sequence)
        else:
            self._decoder.keep(sequence)
            self._slots[sequence.slot] = None
            sequence.slot = None
        with self._condition:
            self._live_rids.discard(sequence.request.rid)
        sequence.on_update(sequence.generation(finish))

    def _fail(self, sequence: LiveSequence, error: EngineError) -> None:
        with self._condition:
            self._live_rids.discard(sequence.request.rid)
        sequence.on_update(error)

    def _retract_all(self, *, keeps_kv: bool) -> None:
        """Put every running sequence back to the front of the queue, in the order of its slots."""
        running = [sequence for sequence in self._slots if sequence is not None]
        for sequence in reversed(running):
            if keeps_kv:
                self._decoder.keep(sequence)
            sequence.slot = None
            sequence.num_computed = 0
            sequence.num_retractions += 1
            self._waiting.appendleft(sequence)
        self._slots = [None] * len(self._slots)

    # Turns

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
        for sequence in self._slots:
            if sequence is not None and not sequence.is_decoding:
                return sequence
        if not self._waiting or None not in self._slots:
            return None
        sequence, slot = self._waiting.popleft(), self._slots.index(None)
        try:
            sequence.num_computed = self._decoder.admit(sequence, slot)
        except EngineError as error:
            self._fail(sequence, error)
            return self._next_prefill()
        sequence.slot = slot
        self._slots[slot] = sequence
        if not sequence.num_retractions:
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_input)
        return sequence

    def _decode(self) -> None:
        self._close_gaps()
        rows = [s if s is not None and s.is_decoding else None for s in self._slots]
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
        while None in self._slots:
            gap = self._slots.index(None)
            last = max((slot for slot, sequence in enumerate(self._slots) if sequence is not None), default=-1)
            if last < gap:
                return
            sequence = self._slots[last]
            assert sequence is not None
            self._decoder.move(last, gap, sequence.num_computed)
            self._slots[gap], self._slots[last] = sequence, None
            sequence.slot = gap

    def _accept(self, sequence: LiveSequence, sampled: Sampled) -> None:
        sequence.append(sampled, self._version)
        finish = find_finish(sequence, self._decoder.eos_token_ids, self._decoder.decode_text)
        if finish is not None:
            self._finish(sequence, finish)
        elif sequence.request.is_streamed:
            sequence.on_update(sequence.generation(None))

    # Control

    def _pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            self._abort(None)
        elif mode == "retract":
            self._retract_all(keeps_kv=True)
        self._paused_by = mode

    def _flush_cache(self) -> bool:
        if any(self._slots) or (self._waiting and self._paused_by is None):
            return False
        self._decoder.forget()
        return True

    def _load(self, load: Callable[[], None], version: int) -> None:
        load()
        self._retract_all(keeps_kv=False)
        self._decoder.forget()
        self._version = version
        self._missing.discard("weights")
        self._unallocated.discard("weights")

    def _checksums(self) -> dict[str, str]:
        if "weights" in self._missing:
            raise EngineError("the engine holds no weights now; load them first")
        return self._decoder.checksums()

    def _release(self, tags: Sequence[str]) -> None:
        self._retract_all(keeps_kv=False)
        self._decoder.forget()
        for tag in tags:
            if tag not in self._unallocated:
                self._decoder.release(tag)
        self._unallocated.update(tags)
        self._missing.update(tags)

    def _resume_memory(self, tags: Sequence[str]) -> None:
        for tag in tags:
            if tag in self._unallocated:
                self._decoder.resume(tag)
        self._unallocated.difference_update(tags)
        # Weights come back empty: they are missing until they are loaded.
        self._missing.difference_update(set(tags) - {"weights"})


def _check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    unknown = set(tags) - set(MEMORY_TAGS)
    if unknown:
        raise EngineRefusedError(f"unknown memory tags {sorted(unknown)}; there are {', '.join(MEMORY_TAGS)}")
    return tuple(tags) or MEMORY_TAGS
