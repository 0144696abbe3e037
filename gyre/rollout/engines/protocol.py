"""What a rollout engine is: it turns token ids into sampled token ids with their log-probabilities, and says under which weights.

Everything that serves model calls implements `Engine`: `local` (embedded torch) and `scripted` (answers from rules) in this
process, SGLang behind its HTTP contract. `server.serve_engine` puts an `Engine` behind that same contract, so that the proxy
knows one protocol (`client.EngineClient`).

Invariants of every engine:

- one log-probability and exactly one version span per output token, of the temperature-scaled distribution that was sampled from;
- no KV block outlives the weights that made it: after a change of weights a live request is prefilled whole again;
- an aborted request gives back what it has, it never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from gyre.errors import EngineError

FinishReason = Literal["stop", "length", "abort"]
PauseMode = Literal["abort", "retract", "in_place"]


class EngineRefusedError(EngineError):
    """The engine answered, and it refuses this request (HTTP 4xx): another engine would refuse it, too."""


class VersionSpan(NamedTuple):
    """Output tokens `start … end` (half-open) were sampled under the weights of `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. The defaults sample from the model's own distribution."""

    max_new_tokens: int
    """Most output tokens, 0 or more."""
    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those of temperature 1."""
    top_p: float = 1.0
    """Nucleus; log-probabilities are of the distribution before this cut, as SGLang's are."""
    top_k: int = -1
    """-1: no cut."""
    min_p: float = 0.0
    """0: no cut."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends with any of these; the token stays in the output."""
    stop: tuple[str, ...] = ()
    """Sampling ends with the token that completes any of these strings."""
    ignore_eos: bool = False
    """Whether the model's own end token ends the output."""
    sampling_seed: int | None = None
    """Seed of this request's draws; None: the engine's own."""

    def to_wire(self) -> dict[str, Any]:
        """The fields that differ from SGLang's defaults: newer servers refuse unknown fields, older ones know fewer."""
        wire: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature}
        for name, neutral in (("top_p", 1.0), ("top_k", -1), ("min_p", 0.0), ("ignore_eos", False)):
            if getattr(self, name) != neutral:
                wire[name] = getattr(self, name)
        if self.stop_token_ids:
            wire["stop_token_ids"] = list(self.stop_token_ids)
        if self.stop:
            wire["stop"] = list(self.stop)
        if self.sampling_seed is not None:
            wire["sampling_seed"] = self.sampling_seed
        return wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine made of one request, up to now (`finish_reason` None) or in the end."""

    output_ids: list[int] = field(default_factory=list)
    """Sampled tokens, a matched stop token included."""
    output_logprobs: list[float] = field(default_factory=list)
    """One per output token."""
    weight_versions: list[VersionSpan] = field(default_factory=list)
    """Spans that cover the output without gap or overlap."""
    finish_reason: FinishReason | None = None
    """None: more is to come."""
    matched: int | str | None = None
    """The stop token or stop string that ended the output, if one did."""
    prompt_tokens: int = 0
    """Number of input tokens."""
    cached_tokens: int = 0
    """How many of them came from the engine's prefix cache."""
    num_retractions: int = 0
    """How often the request was put back and prefilled again."""
    has_exact_versions: bool = True
    """False where the engine only told its version at the end of the answer: the span may be mixed."""


def join_generations(first: Generation, second: Generation) -> Generation:
    """The one answer that `first` (cut) and `second` (its continuation, asked for with input + first's output) make together."""
    if not first.output_ids:
        return replace(second, num_retractions=first.num_retractions + second.num_retractions)
    shift = len(first.output_ids)
    spans = list(first.weight_versions)
    for span in second.weight_versions:
        moved = VersionSpan(span.version, span.start + shift, span.end + shift)
        if spans and spans[-1].version == moved.version:
            spans[-1] = spans[-1]._replace(end=moved.end)
        else:
            spans.append(moved)
    return Generation(
        output_ids=first.output_ids + second.output_ids,
        output_logprobs=first.output_logprobs + second.output_logprobs,
        weight_versions=spans,
        finish_reason=second.finish_reason,
        matched=second.matched,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        num_retractions=first.num_retractions + second.num_retractions,
        has_exact_versions=first.has_exact_versions and second.has_exact_versions,
    )


class EngineLoad(NamedTuple):
    """How busy an engine is now."""

    num_running: int
    """Requests that hold a slot."""
    num_waiting: int
    """Requests that wait for one."""
    num_used_tokens: int
    """Tokens whose KV is held for running requests."""
    capacity: int
    """Requests it can run at once; 0 where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself."""

    kind: str
    """'local', 'scripted', or the server's own name."""
    model_path: str
    """Folder or name of the model."""
    vocab_size: int
    """Ids at or above it are refused."""
    context_length: int
    """Most tokens of input and output together."""
    concurrency: int
    """Requests run at once."""
    version: int
    """Version of the weights it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request to an engine in this process."""

    rid: str
    """Id, unique among live requests."""
    input_ids: Sequence[int]
    """One or more token ids."""
    sampling: SamplingParams
    """How to sample."""
    is_streamed: bool = False
    """Whether `on_update` is wanted after every token, too."""


OnUpdate = Callable[[Generation | EngineError], None]
"""Called from the engine's thread: with each token of a streamed request, and for every request once at its end, with
`finish_reason` set or with the error that stopped the engine."""


@runtime_checkable
class Engine(Protocol):
    """A rollout engine in this process. Every method may be called from any thread."""

    def submit(self, request: GenerateRequest, on_update: OnUpdate) -> None:
        """Queue a request. Raises `EngineRefusedError` for one that can never be served."""
        ...

    def abort(self, rid: str | None) -> None:
        """End the request with this id, or all (None), with what they have; an unknown id is fine."""
        ...

    def pause(self, mode: PauseMode) -> None:
        """Stop sampling: `abort` ends live requests, `retract` puts them back into the queue, `in_place` freezes them."""
        ...

    def resume(self) -> None:
        """Go on sampling after `pause`."""
        ...

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False while requests are live and not paused."""
        ...

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Serve these weights (Hugging Face names → tensors) as `version`; live requests keep their tokens and go on under them."""
        ...

    def load_weights_from_disk(self, model_dir: str, version: int) -> None:
        """Serve the weights of a Hugging Face folder as `version`."""
        ...

    def set_version(self, version: int) -> None:
        """Call the weights that are loaded `version`."""
        ...

    def release_memory(self, tags: Sequence[str] = ()) -> None:
        """Give back the memory of 'weights' and 'kv_cache' (none named: both); live requests wait."""
        ...

    def resume_memory(self, tags: Sequence[str] = ()) -> None:
        """Take the memory again; released weights must be loaded before anything is sampled."""
        ...

    def checksums(self) -> dict[str, str]:
        """A hexadecimal digest of every weight tensor, by its Hugging Face name."""
        ...

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        ...

    def info(self) -> EngineInfo:
        """What the engine serves."""
        ...

    def is_ready(self) -> bool:
        """Whether it holds weights and memory and works; a request to a paused engine is held, not lost."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """The text of tokens, None without a tokenizer."""
        ...

    def close(self) -> None:
        """End every request with what it has and stop."""
        ...
