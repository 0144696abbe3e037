"""The other side of `replies`: bodies of SGLang's `/generate` contract become requests, and generations become bodies.

Pure. What an engine of ours does not do (several samples, grammars, penalties, prompt log-probabilities) is refused with a
sentence, as is every unknown sampling field: SGLang does so from 0.5.22 on, and a parameter that is silently ignored would change
what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gyre.rollout.engines.protocol import EngineRefusedError, GenerateRequest, Generation, SamplingParams

DEFAULT_MAX_NEW_TOKENS = 128
"""SGLang's default."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "min_new_tokens": (0,),
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "stop_regex": (None, [], ""),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "no_stop_trim": (False, True),
    "stream_interval": (None, 1),
}
"""Sampling fields that are known but not computed, with the values that ask for nothing."""


def parse_request(body: Mapping[str, Any], new_rid: Callable[[], str]) -> GenerateRequest:
    """Read a `/generate` body; raises `EngineRefusedError` for what cannot be served as asked."""
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise EngineRefusedError("input_ids must be one list of integers; text and batches are not served")
    is_streamed = body.get("stream", False)
    if not isinstance(is_streamed, bool):
        raise EngineRefusedError(f"stream is {is_streamed!r}, not true or false")
    if body.get("logprob_start_len") not in (None, -1) or body.get("top_logprobs_num"):
        raise EngineRefusedError("only log-probabilities of output tokens are served; leave logprob_start_len at -1")
    rid = body.get("rid") or new_rid()
    if not isinstance(rid, str):
        raise EngineRefusedError("rid must be one string")
    return GenerateRequest(rid=rid, input_ids=ids, sampling=parse_sampling(body.get("sampling_params") or {}), is_streamed=is_streamed)


def parse_sampling(raw: Mapping[str, Any]) -> SamplingParams:
    """Read `sampling_params`."""
    if not isinstance(raw, Mapping):
        raise EngineRefusedError("sampling_params must be one object")
    own = set(SamplingParams.__dataclass_fields__)
    for name, value in raw.items():
        if name not in own and name not in NEUTRAL:
            raise EngineRefusedError(f"sampling_params has no field {name!r}")
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise EngineRefusedError(f"sampling_params.{name} = {value!r} is not served by this engine")
    stop = raw.get("stop") or ()
    try:
        return SamplingParams(
            max_new_tokens=int(raw.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)),
            temperature=float(raw.get("temperature", 1.0)),
            top_p=float(raw.get("top_p", 1.0)),
            top_k=int(raw.get("top_k", -1)),
            min_p=float(raw.get("min_p", 0.0)),
            stop_token_ids=tuple(int(token) for token in raw.get("stop_token_ids") or ()),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=bool(raw.get("ignore_eos", False)),
            sampling_seed=raw.get("sampling_seed"),
        )
    except (TypeError, ValueError) as error:
        raise EngineRefusedError(f"sampling_params has a value of a wrong type: {error}") from error


def render_reply(
    rid: str,
    generation: Generation,
    version: int,
    *,
    return_logprob: bool,
    decode: Callable[[Sequence[int]], str | None],
    latency_s: float | None = None,
    num_sent: int = 0,
) -> dict[str, Any]:
    """Body of an answer, or of a stream's chunk.

    Args:
        rid: of the request.
        generation: everything so far.
        version: what the engine serves now.
        return_logprob: whether log-probabilities were asked for.
        decode: text of tokens, where there is a tokenizer.
        latency_s: of a finished answer.
        num_sent: tokens that earlier chunks held; this one holds what is new, as SGLang's incremental streams do, so that a
            stream costs what the answer is long.
    """
    ids = generation.output_ids[num_sent:]
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": _render_finish(generation),
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": len(generation.output_ids),
        "cached_tokens": generation.cached_tokens,
        "weight_version": str(version),
        "weight_versions": [{"version": str(span.version), "start": span.start, "end": span.end} for span in generation.weight_versions],
        "num_retractions": generation.num_retractions,
    }
    if return_logprob:
        meta["input_token_logprobs"] = []
        logprobs = generation.output_logprobs[num_sent:]
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in zip(logprobs, ids, strict=True)]
        meta["output_token_logprobs_length"] = len(ids)
    if latency_s is not None:
        meta["e2e_latency"] = latency_s
    reply: dict[str, Any] = {"output_ids": ids, "meta_info": meta}
    if not num_sent and (text := _trimmed_text(generation, decode)) is not None:
        reply["text"] = text
    return reply


def _render_finish(generation: Generation) -> dict[str, Any] | None:
    match generation.finish_reason:
        case None:
            return None
        case "stop":
            return {"type": "stop", "matched": generation.matched}
        case "length":
            return {"type": "length", "length": len(generation.output_ids)}
        case "abort":
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _trimmed_text(generation: Generation, decode: Callable[[Sequence[int]], str | None]) -> str | None:
    """The output's text without what ended it; None without a tokenizer."""
    if isinstance(generation.matched, int):
        return decode(generation.output_ids[:-1])
    text = decode(generation.output_ids)
    if text is not None and isinstance(generation.matched, str) and generation.matched in text:
        return text[: text.index(generation.matched)]
    return text
