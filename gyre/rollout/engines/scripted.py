"""An engine that answers from a script: for tests and dry runs, without torch and without a model.

A script is a function of the prompt's text or a JSON file of rules: `[{"contains": ["reverse"], "answer": "…"}, {"answer": "…"}]`,
the first rule all of whose strings are in the prompt answers; or a playbook of agents with steps (see `playbook`). The scripted
policy is certain of every token, so each log-probability is 0. An answer is cut, resumed and moved to another engine like any
other: what already follows the last `turn_start` is taken for the beginning of the answer, and the rest is given.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from tokenizers import Tokenizer

from gyre.errors import EngineError, UserError
from gyre.rollout.engines.batching import BatchedEngine
from gyre.rollout.engines.playbook import read_playbook
from gyre.rollout.engines.protocol import EngineRefusedError
from gyre.rollout.engines.sequence import LiveSequence, Sampled

Script = Callable[[str], str]
"""From the prompt's text (special tokens included) to the answer's."""
SHOWN_CHARACTERS = 200
"""How much of a prompt's end an error shows."""


def read_script(path: str | Path) -> Script:
    """The script in a JSON file: a list of rules, or a playbook (see `playbook`).

    Raises:
        UserError: no such file, or it holds neither.
    """
    try:
        rules = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"script {path} cannot be read: {error}", hint="give a JSON list of rules, or a playbook") from error
    if isinstance(rules, dict) and "agents" in rules:
        return read_playbook(rules, place=f"script {path}")
    parsed: list[tuple[tuple[str, ...], str]] = []
    for number, rule in enumerate(rules if isinstance(rules, list) else [rules]):
        if not isinstance(rule, dict) or not isinstance(rule.get("answer"), str) or set(rule) - {"contains", "answer"}:
            raise UserError(
                f"script {path}: rule {number} is not of the form {{'contains': [text, …], 'answer': text}}",
                hint="leave 'contains' out for a rule that always answers",
            )
        contains = rule.get("contains", [])
        parsed.append(((contains,) if isinstance(contains, str) else tuple(contains), rule["answer"]))

    def answer(prompt: str) -> str:
        for contains, text in parsed:
            if all(part in prompt for part in contains):
                return text
        raise EngineRefusedError(f"no rule of {path} answers the prompt that ends in {prompt[-SHOWN_CHARACTERS:]!r}")

    return answer


class ScriptDecoder:
    """Looks answers up and hands them out token by token (see `batch.Decoder`)."""

    kind = "scripted"

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        script: Script,
        turn_start: str,
        end_token: str | None,
        num_slots: int,
        context_length: int,
        token_delay_s: float,
        sleep: Callable[[float], None],
    ) -> None:
        self.model_path = "scripted"
        self.vocab_size = tokenizer.get_vocab_size()
        self.context_length = context_length
        self.num_slots = num_slots
        end_token_id = None if end_token is None else tokenizer.token_to_id(end_token)
        if end_token is not None and end_token_id is None:
            raise UserError(f"the tokenizer has no token {end_token!r}", hint="name the token that ends a turn, or None")
        self.eos_token_ids = () if end_token_id is None else (end_token_id,)
        self._tokenizer = tokenizer
        self._script = script
        self._turn_start_ids = self._encode(turn_start)
        self._token_delay_s = token_delay_s
        self._sleep = sleep
        self._answers: WeakKeyDictionary[LiveSequence, list[int]] = WeakKeyDictionary()
        """What a live sequence will have said in the end, after its input."""
        self._checksums: dict[str, str] = {}

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def admit(self, sequence: LiveSequence, slot: int) -> int:
        """Look the answer up once per request."""
        if sequence not in self._answers:
            self._answers[sequence] = self._plan(sequence.token_ids[: sequence.num_input])
        return 0

    def _plan(self, input_ids: list[int]) -> list[int]:
        """The rest of the answer to an input that may hold its beginning."""
        split = self._find_turn(input_ids)
        prompt = self._tokenizer.decode(input_ids[:split], skip_special_tokens=False)
        begun, answer = input_ids[split:], [*self._encode(self._script(prompt)), *self.eos_token_ids]
        return answer[len(begun) :] if answer[: len(begun)] == begun else answer

    def _find_turn(self, input_ids: list[int]) -> int:
        """Where the answer begins: after the last opening of a turn, or at the end."""
        opening = self._turn_start_ids
        for start in range(len(input_ids) - len(opening), -1, -1):
            if opening and input_ids[start : start + len(opening)] == opening:
                return start + len(opening)
        return len(input_ids)

    def _next(self, sequence: LiveSequence) -> Sampled:
        answer = self._answers[sequence]
        if sequence.num_output < len(answer):
            return Sampled(answer[sequence.num_output], 0.0)
        # A script without an end token has said all it has to; the maximum ends the answer.
        return Sampled(answer[-1] if answer else sequence.token_ids[-1], 0.0)

    def prefill(self, sequence: LiveSequence, stop: int) -> Sampled | None:
        """The first token, once the whole prompt was taken in."""
        return self._next(sequence) if stop == len(sequence.token_ids) else None

    def decode(self, rows: Sequence[LiveSequence | None]) -> list[Sampled]:
        """The next token of every answer, after the delay of a token."""
        if self._token_delay_s:
            self._sleep(self._token_delay_s)
        return [self._next(row) for row in rows if row is not None]

    def keep(self, sequence: LiveSequence) -> None:
        """There is nothing to keep."""

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """There is nothing to move."""

    def forget(self) -> None:
        """There is nothing to forget."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Note what was loaded, for `checksums`."""
        self._checksums = {name: f"{zlib.crc32(np.ascontiguousarray(tensor).tobytes()):08x}" for name, tensor in weights.items()}

    def load_weights_from_disk(self, model_dir: str) -> None:
        """Note which files were loaded."""
        files = sorted(Path(model_dir).glob("*.safetensors"))
        if not files:
            raise EngineError(f"{model_dir} holds no *.safetensors file; save the model as a Hugging Face folder")
        self._checksums = {file.name: f"{zlib.crc32(file.read_bytes()):08x}" for file in files}

    def release(self, tag: str) -> None:
        """There is nothing to release."""

    def resume(self, tag: str) -> None:
        """There is nothing to take again."""

    def checksums(self) -> dict[str, str]:
        """CRC-32 of what was loaded last."""
        return dict(self._checksums)

    def decode_text(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Text of tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


class ScriptedEngine(BatchedEngine):
    """An engine that says what a script says.

    Args:
        script: JSON file of rules, or a function from the prompt's text to the answer's.
        model_dir: folder with a tokenizer.json, or that file.
        tokenizer: the tokenizer itself, instead of a folder.
        turn_start: text that opens an answer in the prompt.
        end_token: token that closes every answer; None: answers end at the token maximum.
        concurrency: requests answered at once.
        context_length: most tokens of input and output.
        version: version it begins with.
        token_delay_s: pause before each round of tokens, to make answers take time.
        sleep: what pauses.
        name: of the engine's thread.
    """

    def __init__(
        self,
        script: str | Path | Script,
        *,
        model_dir: str | Path | None = None,
        tokenizer: Tokenizer | None = None,
        turn_start: str = "<|im_start|>assistant\n",
        end_token: str | None = "<|im_end|>",
        concurrency: int = 8,
        context_length: int = 32_768,
        version: int = 0,
        token_delay_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        name: str = "scripted",
    ) -> None:
        decoder = ScriptDecoder(
            tokenizer=tokenizer or open_tokenizer(model_dir),
            script=script if callable(script) else read_script(script),
            turn_start=turn_start,
            end_token=end_token,
            num_slots=concurrency,
            context_length=context_length,
            token_delay_s=token_delay_s,
            sleep=sleep,
        )
        super().__init__(decoder, version=version, name=name)


def open_tokenizer(model_dir: str | Path | None) -> Tokenizer:
    """The tokenizer of a model folder (or a tokenizer.json); raises `UserError` where there is none."""
    path = Path(model_dir or "")
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path} does not exist", hint="name a model folder with a tokenizer.json")
    return Tokenizer.from_file(str(path))
