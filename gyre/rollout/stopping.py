"""Where a client's stop string ends an answer.

An engine looks for stop strings in what it samples itself. Where an answer was cut between the tokens of one (new weights, another
engine), no engine sees the whole string and sampling goes on; what follows it is no part of the answer: the harness never gets it, so
it may not be trained on. What was sampled up to there is what the policy would have said in one piece.

Fed by the session with whole answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gyre.rollout.engines.protocol import Generation, VersionSpan


def end_at_stop(generation: Generation, stops: Sequence[str], decode_next: Callable[[Sequence[int]], str]) -> Generation:
    """The answer up to the token that completes its first stop string; all of it where there is none.

    Args:
        generation: a whole answer.
        stops: the client's stop strings.
        decode_next: text of the answer's next tokens, e.g. `StreamDecoder.feed` of a new decoder.
    """
    longest = max(map(len, stops), default=0)
    tail = ""
    for end, token in enumerate(generation.output_ids if stops else (), start=1):
        tail += decode_next([token])
        if (found := next((stop for stop in stops if stop in tail), None)) is not None:
            return _head(generation, end, found)
        tail = tail[-longest:]
    return generation


def _head(generation: Generation, num_tokens: int, stop: str) -> Generation:
    spans = [VersionSpan(s.version, s.start, min(s.end, num_tokens)) for s in generation.weight_versions if s.start < num_tokens]
    return replace(
        generation,
        output_ids=generation.output_ids[:num_tokens],
        output_logprobs=generation.output_logprobs[:num_tokens],
        weight_versions=spans,
        finish_reason="stop",
        matched=stop,
    )
