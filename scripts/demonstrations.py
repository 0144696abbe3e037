"""Imperfect demonstrations of the mini harness at work: what the policy imitates before reinforcement learning.

A demonstrator writes a right body with probability `first_right`, otherwise one of the kata's plausible wrong ones; it often
runs the tests in the same answer; where they fail it may try again or give up; in the end it says it is done. Histories are
compacted as the harness does it. The conversations are those of a live run to the token: messages and tool results come from
the harness's own functions, text from the chat template. A demonstration is a list of contexts; in each, the assistant's
answers are what is learned.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from kata_templates import TEMPLATES, Kata, draw_cases, draw_kata, evaluate
from policy_format import CHAT_TEMPLATE, TURN_END
from tokenizers import Tokenizer

Message = dict[str, Any]

VISIBLE_CASES = 3
COMPACT_TOKENS_RANGE = (50, 250)
"""Compaction thresholds that demonstrations draw from; a live run has one fixed threshold in this range."""


def load_mini(path: Path) -> ModuleType:
    """The harness program as a module, for its messages, tools and test reports."""
    spec = importlib.util.spec_from_file_location("mini", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"no harness program at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mini"] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstrator:
    """How often the demonstrator gets what right."""

    first_right: float = 0.35
    tests_run: float = 0.6
    fix_tried: float = 0.5
    fix_right: float = 0.45
    max_writes: int = 4


class Renderer:
    """Messages → tokens with the policy's own template and tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, tools: list[dict[str, Any]]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(CHAT_TEMPLATE)
        self._tokenizer = tokenizer
        self._tools = tools

    def text(self, messages: list[Message], *, prompt: bool = False) -> str:
        """The conversation as text; with `prompt` up to where the next answer begins."""
        return self._template.render(messages=messages, tools=self._tools, add_generation_prompt=prompt)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        assert self._tokenizer is not None
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_context(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """Tokens of a context and which of them the assistant says, the end of its turn included."""
        ids: list[int] = []
        said: list[bool] = []
        done = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.text(messages[:index], prompt=True)
            after = self.text(messages[: index + 1])
            answer = after[len(before) :].removesuffix("\n")
            assert answer.endswith(TURN_END), answer
            for part, is_said in ((before[done:], False), (answer, True)):
                part_ids = self.encode(part)
                ids += part_ids
                said += [is_said] * len(part_ids)
            done = len(before) + len(answer)
        return ids, said


def call(name: str, **arguments: str) -> dict[str, Any]:
    """One tool call of an assistant message."""
    return {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}


class Episode:
    """One demonstration: the harness's side of the conversation, and the contexts that it leaves behind."""

    def __init__(self, kata: Kata, mini: ModuleType, renderer: Renderer, compact_tokens: int, rng: random.Random) -> None:
        self._kata, self._mini, self._renderer, self._compact_tokens = kata, mini, renderer, compact_tokens
        cases = draw_cases(kata, VISIBLE_CASES, rng) if len(kata.wrong) else []
        self._cases = [(f"solve({', '.join(map(repr, arguments))})", arguments, want) for arguments, want in cases]
        self.contexts: list[list[Message]] = []
        self.messages = self._open("")
        self.state = "nothing"

    def _open(self, summary: str) -> list[Message]:
        text = self._kata.instruction + (self._mini.SO_FAR + summary if summary else "")
        return [{"role": "system", "content": self._mini.SYSTEM}, {"role": "user", "content": text}]

    def run_tests(self, expression: str) -> str:
        """The harness's report on `return expression`."""
        answers = []
        for _, arguments, _ in self._cases:
            got = evaluate(self._kata, expression, arguments)
            answers.append(f"raised {got}" if got.endswith("Error") else f"gave {got}")
        return self._mini.describe_answers([[text, want] for text, _, want in self._cases], answers)

    def answer(self, calls: list[dict[str, Any]], results: list[str]) -> None:
        """One answer of the demonstrator with the results of its calls; compacts where the harness would."""
        self.messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        num_tokens = self.count_tokens()
        self.messages += [{"role": "tool", "content": text} for text in results]
        if num_tokens > self._compact_tokens and calls[-1]["function"]["name"] != "finish":
            self.compact()

    def count_tokens(self) -> int:
        """Tokens of the exchange as the endpoint reports them; characters where there is no tokenizer yet."""
        text = self._renderer.text(self.messages)
        return len(self._renderer.encode(text)) if self._renderer._tokenizer else len(text) // 3

    def compact(self) -> None:
        """A summary answer, then a fresh context that holds it."""
        self.messages.append({"role": "user", "content": self._mini.SUMMARIZE})
        self.messages.append({"role": "assistant", "content": self.state})
        self.contexts.append(self.messages)
        self.messages = self._open(self.state)


def demonstrate(kata: Kata, mini: ModuleType, renderer: Renderer, demonstrator: Demonstrator, rng: random.Random) -> Episode:
    """One whole demonstration on a kata."""
    episode = Episode(kata, mini, renderer, rng.randint(*COMPACT_TOKENS_RANGE), rng)
    probability, written = demonstrator.first_right, None
    for _ in range(demonstrator.max_writes):
        wrong = [body for body in kata.wrong if body != written]
        written = kata.right if rng.random() < probability else rng.choice(wrong)
        calls, results = [call("write_file", content=kata.source(written).rstrip("\n"))], ["ok"]
        verdict = "not tested"
        if rng.random() < demonstrator.tests_run:
            calls.append(call("run_tests"))
            results.append(episode.run_tests(written))
            verdict = results[-1].split("\n")[0]
        episode.state = f"{written}, {verdict}"
        episode.answer(calls, results)
        if not verdict[0].isdigit() or rng.random() >= demonstrator.fix_tried:
            break
        probability = demonstrator.fix_right
    episode.answer([call("finish")], [])
    episode.contexts.append(episode.messages)
    return episode


def draw_demonstrations(
    count: int, mini: ModuleType, renderer: Renderer, demonstrator: Demonstrator, rng: random.Random
) -> list[list[Message]]:
    """Contexts of `count` demonstrations on freshly drawn katas of every family in turn."""
    contexts: list[list[Message]] = []
    for index in range(count):
        kata = draw_kata(TEMPLATES[index % len(TEMPLATES)], rng)
        contexts += demonstrate(kata, mini, renderer, demonstrator, rng).contexts
    return contexts
