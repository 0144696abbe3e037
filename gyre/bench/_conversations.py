"""Conversations of a made-up coding harness over chat completions, with the two things that break peers.

*Token drift*: the model samples an answer in tokens that no tokenizer would make of its text. *Echo rewriting*: the harness sends its
history back in another form each time, as real clients do: arguments parsed and written anew, thinking dropped, empty content as
null or missing, texts as lists, parallel results in another order, empty answers left out.

Fed to the benchmark `retention`; all randomness comes from one generator.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

WORDS = ("read", "the", "failing", "test", "change", "parse_row", "so", "that", "empty", "cells", "stay", "and", "run", "again")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} in the workspace.",
            "parameters": {"type": "object", "properties": {field: {"type": "string"} for field in fields}},
        },
    }
    for name, fields in (("write_file", ("path", "content")), ("run_tests", ("pattern", "timeout")))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCall:
    """One model call of a harness, with the answer that it got."""

    lineage: str
    """Agent whose history this is; its calls are one path where nothing went wrong."""
    body: dict[str, Any]
    """Chat completions body, as the harness sent it."""
    answer: dict[str, Any]
    """Assistant's message, as it was given to the harness."""
    output_ids: list[int]
    """Tokens that the model sampled."""


class DriftingSampler:
    """Turns an answer's text into sampled tokens."""

    def __init__(self, model_dir: Path, rng: np.random.Generator, *, drift: float) -> None:
        """Take `drift`, the probability that an answer's tokens are not those of its text."""
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._rng = rng
        self._drift = drift

    def sample(self, text: str) -> list[int]:
        """Tokens of a text and the end of turn; drifted ones spell some words in single characters."""
        ids = self._tokenizer.encode(text + "<|im_end|>", add_special_tokens=False).ids
        if self._rng.random() >= self._drift:
            return ids
        drifted: list[int] = []
        for number, token in enumerate(ids[:-1]):
            chars = self._tokenizer.id_to_token(token) or ""
            pieces = [piece for char in chars if (piece := self._tokenizer.token_to_id(char)) is not None]
            is_split = len(pieces) == len(chars) and (number % 7 == 0 or self._rng.random() < 0.3)
            drifted += pieces if is_split else [token]
        return [*drifted, ids[-1]]


class Harness:
    """One agent: keeps its history, sends it rewritten, gets answers of a made-up model."""

    def __init__(self, lineage: str, first_messages: Sequence[dict[str, Any]], rng: np.random.Generator, *, rewriting: float) -> None:
        """Take `rewriting`, the probability that a message is echoed in another form, drawn anew for every request."""
        self.lineage = lineage
        self._history = list(first_messages)
        self._rng = rng
        self._rewriting = rewriting
        self._num_calls = 0

    def call(self, sampler: DriftingSampler) -> HistoryCall:
        """Send the history, get an answer, act on it."""
        body = {"model": "m", "messages": list(self._echo()), "tools": TOOLS, "max_tokens": 4096}
        answer, text = self._answer()
        self._history += [answer, *self._results(answer)]
        return HistoryCall(lineage=self.lineage, body=body, answer=answer, output_ids=sampler.sample(text))

    def _answer(self) -> tuple[dict[str, Any], str]:
        """An assistant's message and the text that it was read from."""
        kind = self._rng.choice(["call", "call", "two calls", "bad call", "text", "blank"], p=[0.4, 0.2, 0.15, 0.05, 0.15, 0.05])
        thought, said = (" ".join(self._rng.choice(WORDS, size=8)) for _ in range(2))
        answer: dict[str, Any] = {"role": "assistant", "content": None, "reasoning_content": thought}
        if kind in ("call", "text"):
            answer["content"] = f" {said}\n"
        if kind not in ("text", "blank"):
            answer["tool_calls"] = [self._tool_call(is_valid=kind != "bad call") for _ in range(2 if kind == "two calls" else 1)]
        calls = "".join(f"\n<tool_call>{call['function']['arguments']}</tool_call>" for call in answer.get("tool_calls", ()))
        return answer, f"<think>{thought}</think>{answer['content'] or ''}{calls}"

    def _tool_call(self, *, is_valid: bool) -> dict[str, Any]:
        self._num_calls += 1
        number = int(self._rng.integers(1000))
        arguments = (
            f'{{"path": "src/m{number}.py",  "content": "caf\\u00e9 \\/ {number}", "timeout": {number}.0, "nested": {{"b": 1, "a": null}}}}'
        )
        function = {"name": "write_file", "arguments": arguments if is_valid else arguments[:-3]}
        return {"id": f"call_{self.lineage}_{self._num_calls:04d}", "type": "function", "function": function}

    def _results(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        calls = answer.get("tool_calls")
        text = " ".join(self._rng.choice(WORDS, size=12))
        if not calls:
            return [{"role": "user", "content": f"Go on. {text}"}]
        return [{"role": "tool", "tool_call_id": call["id"], "content": f"{text} {number}"} for number, call in enumerate(calls)]

    def _echo(self) -> Iterator[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for number, message in enumerate(self._history):
            is_rewritten = self._rng.random() < self._rewriting
            if message["role"] == "tool":
                results.insert(0 if is_rewritten else len(results), self._rewrite(message) if is_rewritten else message)
                continue
            yield from results
            results = []
            is_last = number == len(self._history) - 1
            if is_rewritten and _is_blank(message) and not is_last:
                continue
            yield self._rewrite(message) if is_rewritten else message
        yield from results

    def _rewrite(self, message: dict[str, Any]) -> dict[str, Any]:
        echoed = dict(message)
        text = echoed["content"]
        if text is None:
            echoed["content"] = self._rng.choice(np.array([None, "", "missing"], dtype=object))
            if echoed["content"] == "missing":
                del echoed["content"]
        elif message["role"] == "assistant" and self._rng.random() < 0.5:
            echoed["content"] = text.strip()
        else:
            echoed["content"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        if message["role"] == "assistant":
            self._rewrite_thinking(echoed)
        if "tool_calls" in message:
            echoed["tool_calls"] = [{**call, "function": self._rewrite_function(call["function"])} for call in message["tool_calls"]]
        return echoed

    def _rewrite_function(self, function: dict[str, str]) -> dict[str, str]:
        return {**function, "arguments": self._rewrite_arguments(function["arguments"])}

    def _rewrite_thinking(self, echoed: dict[str, Any]) -> None:
        form = int(self._rng.integers(3))
        thought = echoed.pop("reasoning_content", None)
        if form == 1:
            echoed["reasoning_content"] = None
        elif form == 2:
            echoed["reasoning"] = thought

    def _rewrite_arguments(self, arguments: str) -> str:
        try:
            values = json.loads(arguments)
        except ValueError:
            return json.dumps({"raw_arguments": arguments})
        names = self._rng.permutation(list(values)).tolist()
        whole = {name: int(v) if isinstance(v := values[name], float) else v for name in names}
        indent = 2 if self._rng.random() < 0.5 else None
        return json.dumps({**whole, "replace_all": False}, ensure_ascii=self._rng.random() < 0.5, indent=indent)


def _is_blank(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and not message["content"] and not message.get("tool_calls")


def make_calls(model_dir: Path, *, turns: int, sub_agent_turns: int, drift: float, rewriting: float, seed: int) -> Iterator[HistoryCall]:
    """Calls of one execution: a main agent, and meanwhile two sub-agents whose first requests are byte-identical."""
    rng = np.random.default_rng(seed)
    sampler = DriftingSampler(model_dir, rng, drift=drift)
    task = " ".join(rng.choice(WORDS, size=200))
    first = [{"role": "system", "content": "You are a coding agent.\n"}, {"role": "user", "content": task}]
    sub = [{"role": "system", "content": "You help a coding agent."}, {"role": "user", "content": "Find every caller."}]
    main = Harness("main", first, rng, rewriting=rewriting)
    helpers = [Harness(name, sub, rng, rewriting=rewriting) for name in ("helper-1", "helper-2")]
    for number in range(turns):
        yield main.call(sampler)
        if number < sub_agent_turns:
            yield from [helper.call(sampler) for helper in helpers]
