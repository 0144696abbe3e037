"""An engine on a thread of its own: the surface that other threads call, around a batch of sequences that only it touches.

`BatchedEngine` is the surface of every engine in this process (`protocol.Engine`). What other threads ask for is posted to the
engine's thread and runs between two turns of `batch.SequenceBatch`, in the order in which it was asked.

Invariants: the decoder and all sequences are touched by the engine's thread only; a change of weights puts every live sequence back
with its tokens kept and no KV; nothing is sampled while paused or while weights or memory are missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from gyre.errors import EngineError
from gyre.rollout.engines.batch import Decoder, SequenceBatch
from gyre.rollout.engines.protocol import (
    EngineInfo,
    EngineLoad,
    EngineRefusedError,
    GenerateRequest,
    OnUpdate,
    PauseMode,
)
from gyre.rollout.engines.sequence import LiveSequence, draw_key

T = TypeVar("T")


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
        self._seed = seed
        self._on_thread_start = on_thread_start
        self._batch = SequenceBatch(decoder, version=version, on_end=self._forget_rid)
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
            self._posted.append(lambda: self._batch.enqueue(sequence))
            self._condition.notify()

    def abort(self, rid: str | None) -> None:
        """End the request with this id, or all (None), with what they have."""
        self._post(lambda: self._batch.abort(rid))

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
            self._batch.version = version

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
        running = [sequence for sequence in self._batch.slots if sequence is not None]
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
            version=self._batch.version,
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
                    self._batch.turn()
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
        return self._paused_by is None and not self._missing and self._batch.has_work

    def _stop(self) -> None:
        """End every request; commands that came too late still run, so that no caller waits for ever."""
        with self._condition:
            self._is_closing = True
            commands, self._posted = self._posted, deque()
        for command in commands:
            command()
        if self._failure is None:
            self._batch.abort(None)
        for sequence in self._batch.live():
            self._batch.fail(sequence, EngineError(f"the engine has failed: {self._failure!r}"))

    def _forget_rid(self, sequence: LiveSequence) -> None:
        with self._condition:
            self._live_rids.discard(sequence.request.rid)

    # Control

    def _pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            self._batch.abort(None)
        elif mode == "retract":
            self._batch.retract_all(keeps_kv=True)
        self._paused_by = mode

    def _flush_cache(self) -> bool:
        if any(self._batch.slots) or (self._batch.waiting and self._paused_by is None):
            return False
        self._decoder.forget()
        return True

    def _load(self, load: Callable[[], None], version: int) -> None:
        load()
        self._batch.retract_all(keeps_kv=False)
        self._decoder.forget()
        self._batch.version = version
        self._missing.discard("weights")
        self._unallocated.discard("weights")

    def _checksums(self) -> dict[str, str]:
        if "weights" in self._missing:
            raise EngineError("the engine holds no weights now; load them first")
        return self._decoder.checksums()

    def _release(self, tags: Sequence[str]) -> None:
        self._batch.retract_all(keeps_kv=False)
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
