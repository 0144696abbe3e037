"""The embedded engine: a Qwen3-architecture policy in torch on the CPU, batched, with a prefix cache.

`LocalEngine` is `batching.BatchedEngine` over a `TorchDecoder`: the model's slots hold the KV of running sequences, the prefix
cache that of sequences that left. Both are of the loaded weights only; loading others empties them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from gyre.rollout.engines.batching import BatchedEngine
from gyre.rollout.engines.model import Qwen3Model
from gyre.rollout.engines.prefix import PrefixCache
from gyre.rollout.engines.sampler import sample_tokens
from gyre.rollout.engines.sequence import LiveSequence, Sampled
from gyre.rollout.engines.weights import read_end_tokens, read_served_shape, read_weights

PREFIX_CACHE_TOKENS = 32_768
"""Tokens of KV kept for sessions between their calls: 16 sessions of 2,048 tokens."""


class TorchDecoder:
    """The policy's slots, prefix cache and sampler (see `batch.Decoder`)."""

    kind = "local"

    def __init__(self, model_dir: str | Path, *, num_slots: int, context_length: int | None, prefix_cache_tokens: int) -> None:
        shape = read_served_shape(Path(model_dir))
        self.model_path = str(model_dir)
        self.vocab_size = shape.vocab_size
        self.context_length = context_length or shape.max_positions
        self.num_slots = num_slots
        self.eos_token_ids = read_end_tokens(Path(model_dir))
        self._model = Qwen3Model(shape, read_weights(model_dir), num_slots=num_slots, max_tokens=self.context_length)
        self._prefixes = PrefixCache(prefix_cache_tokens)
        tokenizer_path = Path(model_dir) / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(tokenizer_path)) if tokenizer_path.is_file() else None

    def admit(self, sequence: LiveSequence, slot: int) -> int:
        """Copy the longest cached prefix in; the last token is always computed, for its logits."""
        kv, num_tokens = self._prefixes.take(sequence.token_ids[:-1])
        if kv is not None:
            self._model.write_kv(slot, kv, num_tokens)
        return num_tokens

    def prefill(self, sequence: LiveSequence, stop: int) -> Sampled | None:
        """Compute a chunk of a prompt."""
        assert sequence.slot is not None
        start = sequence.num_computed
        is_last = stop == len(sequence.token_ids)
        logits = self._model.prefill(sequence.token_ids[start:stop], sequence.slot, start, wants_logits=is_last)
        return None if logits is None else self._sample(logits, [sequence])[0]

    def decode(self, rows: Sequence[LiveSequence | None]) -> list[Sampled]:
        """One token for every running row."""
        idle = self._model.max_tokens
        logits_BV = self._model.decode(
            [0 if row is None else row.token_ids[-1] for row in rows],
            [idle if row is None else row.num_computed for row in rows],
        )
        running = [row for row in rows if row is not None]
        if len(running) < len(rows):
            logits_BV = logits_BV[[index for index, row in enumerate(rows) if row is not None]]
        return self._sample(logits_BV, running)

    def _sample(self, logits_BV: torch.Tensor, sequences: Sequence[LiveSequence]) -> list[Sampled]:
        with torch.inference_mode():
            return sample_tokens(logits_BV, sequences)

    def keep(self, sequence: LiveSequence) -> None:
        """Copy a leaving sequence's KV into the prefix cache."""
        if sequence.slot is not None and sequence.num_computed:
            kv = self._model.read_kv(sequence.slot, 0, sequence.num_computed)
            self._prefixes.put(sequence.token_ids[: sequence.num_computed], kv)

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy a slot's KV into another slot."""
        self._model.move_kv(source, target, num_tokens)

    def forget(self) -> None:
        """Empty the prefix cache."""
        self._prefixes.clear()

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy these weights in."""
        self._model.load(weights)

    def load_weights_from_disk(self, model_dir: str) -> None:
        """Copy a folder's weights in."""
        self._model.load(read_weights(model_dir))

    def release(self, tag: str) -> None:
        """Free the slots' memory; weights are freed by letting go of them."""
        if tag == "kv_cache":
            self._model.free_kv()
        else:
            self._model.free_weights()

    def resume(self, tag: str) -> None:
        """Allocate the slots; weights take their memory as they are loaded."""
        if tag == "kv_cache":
            self._model.allocate_kv()

    def checksums(self) -> dict[str, str]:
        """BLAKE2 of every tensor as float32."""
        return {
            name: blake2b(tensor.contiguous().numpy().tobytes(), digest_size=16).hexdigest()
            for name, tensor in self._model.export().items()
        }

    def decode_text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Text of tokens; None without tokenizer.json."""
        if self._tokenizer is None:
            return None
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


class LocalEngine(BatchedEngine):
    """An engine for a Hugging Face folder of a Qwen3-architecture model.

    Args:
        model_dir: folder with config.json, *.safetensors and (for stop strings and text) tokenizer.json.
        concurrency: requests decoded at once.
        context_length: most tokens of a request, input and output; None: what the model was made for.
        version: version of the folder's weights.
        num_threads: torch threads of this engine; None: torch's own number.
        seed: of draws whose request brings no seed.
        prefix_cache_tokens: tokens of KV kept of sequences that ended.
        name: of the engine's thread.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        concurrency: int = 8,
        context_length: int | None = None,
        version: int = 0,
        num_threads: int | None = None,
        seed: int = 0,
        prefix_cache_tokens: int = PREFIX_CACHE_TOKENS,
        name: str = "local",
    ) -> None:
        decoder = TorchDecoder(
            model_dir,
            num_slots=concurrency,
            context_length=context_length,
            prefix_cache_tokens=prefix_cache_tokens,
        )

        def limit_threads() -> None:
            if num_threads is not None:
                torch.set_num_threads(num_threads)

        super().__init__(decoder, version=version, seed=seed, name=name, on_thread_start=limit_threads)
