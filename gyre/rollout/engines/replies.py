"""Reads what an engine answers on `/generate`: bodies and stream chunks of SGLang's contract become `Generation`s.

Pure: no socket, no clock. `client` feeds it; every check of an answer's form is here, so that a wrong answer is a sentence at the
door and never a wrong token in a tree.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import EngineRefusedError, Generation, VersionSpan

FINISH_REASONS = ("stop", "length", "abort")
DUPLICATE_ID = "Duplicate request ID"
"""Begins what a server says of an id that is live."""


def error_text(body: str) -> str:
    """The reason in an error body: `error` as a string, `error.message`, or `message`; else the body's beginning."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return body[:300] or "no reason given"
    if isinstance(parsed, dict):
        error = parsed.get("error")
        if isinstance(error, str):
            return error
        if isinstance(error, dict) and error.get("message"):
            return str(error["message"])
        if parsed.get("message"):
            return str(parsed["message"])
    return body[:300] or "no reason given"


def error_of(status: int, message: str) -> EngineError:
    """The error of an HTTP status: a refusal of 400 to 499, which another engine would give as well, unless it is about an id.

    An engine that has not noticed yet that a request's connection broke refuses its repetition under the same id.
    """
    is_refusal = 400 <= status < 500 and DUPLICATE_ID not in message
    return EngineRefusedError(message) if is_refusal else EngineError(message)


def version_number(name: object, initial_version: int, where: str) -> int:
    """The number in a weight version's name: '12' and 'step-12' are 12, 'default' is the initial version.

    Raises:
        EngineError: the name holds no number.
    """
    if name is None or name == "default":
        return initial_version
    found = re.search(r"(\d+)$", str(name))
    if found is None:
        raise EngineError(f"engine {where}: weight version {name!r} ends in no number; name versions by number")
    return int(found.group(1))


def parse_generation(reply: Mapping[str, Any], *, initial_version: int, where: str) -> Generation:
    """Read a whole answer (or a cumulative chunk).

    Raises:
        EngineError: tokens, log-probabilities and ids do not belong together.
    """
    meta: Mapping[str, Any] = reply.get("meta_info") or {}
    ids, logprobs = _read_tokens(reply, meta, where)
    return _to_generation(meta, ids, logprobs, initial_version=initial_version, where=where)


def _to_generation(meta: Mapping[str, Any], ids: list[int], logprobs: list[float], *, initial_version: int, where: str) -> Generation:
    """What an answer says, with all tokens so far."""
    spans, is_exact = _read_spans(meta, len(ids), initial_version, where)
    finish_reason, matched = _read_finish(meta, where)
    return Generation(
        output_ids=ids,
        output_logprobs=logprobs,
        weight_versions=spans,
        finish_reason=finish_reason,  # pyright: ignore[reportArgumentType]  # checked against FINISH_REASONS
        matched=matched,
        prompt_tokens=int(meta.get("prompt_tokens") or 0),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        num_retractions=int(meta.get("num_retractions") or meta.get("total_retractions") or 0),
        has_exact_versions=is_exact,
    )


def _read_tokens(reply: Mapping[str, Any], meta: Mapping[str, Any], where: str) -> tuple[list[int], list[float]]:
    triples = meta.get("output_token_logprobs") or []
    logprobs = [triple[0] for triple in triples]
    triple_ids = [triple[1] for triple in triples]
    ids = reply.get("output_ids")
    if ids is None:  # servers up to 0.4.10 have the ids only here
        ids = triple_ids
    if ids != triple_ids:
        raise EngineError(
            f"engine {where}: {len(ids)} output tokens, but log-probabilities of {len(triple_ids)}"
            f" {'other ' if len(ids) == len(triple_ids) else ''}tokens; the answer cannot be trained on"
        )
    for logprob in logprobs:
        if not isinstance(logprob, int | float) or not math.isfinite(logprob):
            raise EngineError(f"engine {where}: log-probability {logprob!r} is no finite number")
    return ids, logprobs


def _read_spans(meta: Mapping[str, Any], num_tokens: int, initial_version: int, where: str) -> tuple[list[VersionSpan], bool]:
    """Version spans and whether they are exact; one span of the version at the end where the server tells none."""
    spans: list[VersionSpan] = []
    reached = 0
    for entry in meta.get("weight_versions") or []:
        span = VersionSpan(version_number(entry["version"], initial_version, where), entry["start"], entry["end"])
        if span.start != reached or span.end < span.start:
            break
        reached = span.end
        if span.end > span.start:
            spans.append(span)
    if reached == num_tokens:
        return spans, True
    version = version_number(meta.get("weight_version"), initial_version, where)
    return [VersionSpan(version, 0, num_tokens)], False


def _read_finish(meta: Mapping[str, Any], where: str) -> tuple[str | None, int | str | None]:
    finish = meta.get("finish_reason")
    if finish is None:
        return None, None
    if isinstance(finish, str):
        finish = {"type": finish}
    kind = finish.get("type")
    if kind not in FINISH_REASONS:
        raise EngineError(f"engine {where}: unknown finish reason {kind!r}")
    status = finish.get("status_code")
    if kind == "abort" and isinstance(status, int) and 400 <= status < 600:
        raise error_of(status, f"engine {where}: HTTP {status}: {finish.get('message') or 'no reason given'}")
    matched: Any = finish.get("matched")
    if isinstance(matched, list):
        matched = matched[0] if matched else None
    return kind, matched


class StreamReader:
    """Puts a stream's chunks together, whether each repeats everything (SGLang's default) or holds only what is new.

    >>> reader = StreamReader(initial_version=0, where="cell0")
    >>> chunk = b'data: {"output_ids": [7], "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-0.5, 7, null]]}}'
    >>> reader.feed(chunk).output_ids
    [7]
    >>> reader.feed(b"data: [DONE]"), reader.is_finished
    (None, False)
    """

    def __init__(self, *, initial_version: int, where: str) -> None:
        self._initial_version = initial_version
        self._where = where
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._latest: Generation | None = None
        self.is_finished = False

    def feed(self, line: bytes) -> Generation | None:
        """Take one line of the event stream; everything so far, or None if the line brings nothing."""
        line = line.strip()
        if not line.startswith(b"data:"):
            return None
        payload = line[5:].strip()
        if payload == b"[DONE]":
            return None
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise EngineError(f"engine {self._where}: unreadable stream chunk ({error})") from error
        self._raise_error(chunk)
        meta: Mapping[str, Any] = chunk.get("meta_info") or {}
        tokens = _read_tokens(chunk, meta, self._where)
        if self._latest is not None and self._ids and not tokens[0] and not meta.get("completion_tokens"):
            # A request that was put back and is aborted in the queue ends with counts of zero; what it had sampled stands.
            finish_reason, matched = _read_finish(meta, self._where)
            generation = replace(self._latest, finish_reason=finish_reason, matched=matched)  # pyright: ignore[reportArgumentType]
        else:
            self._take(tokens, meta)
            generation = _to_generation(meta, self._ids, self._logprobs, initial_version=self._initial_version, where=self._where)
        self._latest = generation
        self.is_finished = generation.finish_reason is not None
        return generation

    def _raise_error(self, chunk: Mapping[str, Any]) -> None:
        if "error" not in chunk:
            return
        error = chunk["error"]
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) else 400
        raise error_of(status, f"engine {self._where}: {error_text(json.dumps(chunk))}")

    def _take(self, tokens: tuple[list[int], list[float]], meta: Mapping[str, Any]) -> None:
        """Add a chunk's tokens, into new lists: what was given out earlier stays as it is."""
        ids, logprobs = tokens
        total = meta.get("completion_tokens", len(ids))
        if total == len(ids):
            self._ids, self._logprobs = ids, logprobs
        elif total == len(self._ids) + len(ids):
            self._ids, self._logprobs = self._ids + ids, self._logprobs + logprobs
        else:
            raise EngineError(
                f"engine {self._where}: a chunk of {len(ids)} tokens after {len(self._ids)}, but {total} in all; tokens were lost"
            )
