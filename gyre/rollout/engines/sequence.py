"""One live request inside an engine: its tokens, what was sampled under which version, and where it stands in the batch.

Owned by the engine's thread alone. `num_computed` tokens of it have KV in its slot; a sequence is decoded when exactly one token is
missing and prefilled when more are. Putting it back (retraction) sets `num_computed` to 0 and keeps every token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from gyre.rollout.engines.protocol import FinishReason, GenerateRequest, Generation, OnUpdate, VersionSpan

TAIL_TOKENS_PER_CHARACTER = 4
"""A stop string of n characters ends within this many times n tokens: a character has at most 4 bytes, a token at least one."""


class Sampled(NamedTuple):
    """One drawn token."""

    token_id: int
    logprob: float


class Finish(NamedTuple):
    """Why an answer ended."""

    reason: FinishReason
    matched: int | str | None = None


@dataclass(slots=True, weakref_slot=True, kw_only=True, eq=False)
class LiveSequence:
    """A request with its progress."""

    request: GenerateRequest
    on_update: OnUpdate
    token_ids: list[int]
    """Input and output so far."""
    num_input: int
    """Input tokens."""
    draw_key: bytes
    """Key of the draws: the number for a position depends on nothing else, so a continued request draws what it would have drawn."""
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    slot: int | None = None
    """Row of the batch; None while it waits."""
    num_computed: int = 0
    """Tokens whose KV is in the slot."""
    cached_tokens: int = 0
    """Input tokens taken from the prefix cache at first admission."""
    num_retractions: int = 0
    """Times it was put back."""

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_input

    @property
    def is_decoding(self) -> bool:
        """Whether it holds a slot and misses the KV of just its newest token."""
        return self.slot is not None and self.num_computed == len(self.token_ids) - 1 and self.num_output > 0

    def append(self, sampled: Sampled, version: int) -> None:
        """Add a token sampled under `version`."""
        position = self.num_output
        self.token_ids.append(sampled.token_id)
        self.logprobs.append(sampled.logprob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = self.spans[-1]._replace(end=position + 1)
        else:
            self.spans.append(VersionSpan(version, position, position + 1))

    def draw_uniform(self) -> float:
        """The number in [0, 1) for the next token."""
        position = len(self.token_ids).to_bytes(8, "little")
        digest = blake2b(position, key=self.draw_key, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53

    def generation(self, finish: Finish | None) -> Generation:
        """What there is now, as a value of its own."""
        return Generation(
            output_ids=self.token_ids[self.num_input :],
            output_logprobs=list(self.logprobs),
            weight_versions=list(self.spans),
            finish_reason=finish.reason if finish else None,
            matched=finish.matched if finish else None,
            prompt_tokens=self.num_input,
            cached_tokens=self.cached_tokens,
            num_retractions=self.num_retractions,
        )


def draw_key(engine_seed: int, request: GenerateRequest) -> bytes:
    """Key of a request's draws: its own seed, or the engine's seed and the request's id."""
    own_seed = request.sampling.sampling_seed
    text = f"engine {engine_seed} request {request.rid}" if own_seed is None else f"seed {own_seed}"
    return blake2b(text.encode(), digest_size=32).digest()


def find_finish(sequence: LiveSequence, eos_token_ids: Collection[int], decode: Callable[[Sequence[int]], str | None]) -> Finish | None:
    """Why the newest token ends the answer, or None: a stop token before a stop string before the token maximum."""
    sampling = sequence.request.sampling
    newest = sequence.token_ids[-1]
    if newest in sampling.stop_token_ids or (newest in eos_token_ids and not sampling.ignore_eos):
        return Finish("stop", newest)
    if sampling.stop and (matched := _find_stop_string(sequence, decode)) is not None:
        return Finish("stop", matched)
    if sequence.num_output >= sampling.max_new_tokens:
        return Finish("length")
    return None


def _find_stop_string(sequence: LiveSequence, decode: Callable[[Sequence[int]], str | None]) -> str | None:
    """The stop string that the output's end holds; only the end is decoded, earlier parts were looked at before."""
    stops = sequence.request.sampling.stop
    tail_tokens = TAIL_TOKENS_PER_CHARACTER * max(map(len, stops)) + 1
    start = max(sequence.num_input, len(sequence.token_ids) - tail_tokens)
    text = decode(sequence.token_ids[start:]) or ""
    return next((stop for stop in stops if stop in text), None)
