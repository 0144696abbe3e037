"""The shipped policy's text format: tokenizer, chat template, tool calls, and demonstrations rendered as a live run renders."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

MAX_WEIGHTS_BYTES = 4 << 20


@pytest.fixture(scope="module")
def folder(repo: Path) -> Path:
    return repo / "pipelines/models/tiny"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def renderer(scripts: Path, tokenizer: Tokenizer, mini: ModuleType) -> Any:
    from demonstrations import Renderer

    return Renderer(tokenizer, [mini.WRITE, mini.RUN, mini.FINISH])


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_the_folder_is_a_small_qwen3(folder: Path, tokenizer: Tokenizer) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert config["vocab_size"] == tokenizer.get_vocab_size() == 512
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert (folder / "model.safetensors").stat().st_size < MAX_WEIGHTS_BYTES


def test_the_shipped_template_is_the_one_that_was_trained_on(folder: Path, scripts: Path) -> None:
    from policy_format import CHAT_TEMPLATE

    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE


@given(text=st.text(max_size=60) | st.from_regex(r"( ?[a-z]+| ?[0-9]+|[-+*/:()]| |\n){0,20}", fullmatch=True))
@settings(max_examples=50, deadline=None)
def test_any_text_survives_the_tokenizer(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x * 3 + 27", ["x", " * ", "3", " + ", "2", "7"]),
        ("<tool_call>\n<function=run_tests>\n</function>\n</tool_call>", 4),
        ("\n</parameter>\n</function>\n</tool_call><|im_end|>", 4),
        ("<|im_start|>assistant\n", 3),
    ],
)
def test_syntax_is_few_tokens(tokenizer: Tokenizer, text: str, pieces: int | list[str]) -> None:
    found = [tokenizer.decode([i], skip_special_tokens=False) for i in encode(tokenizer, text)]
    assert (found if isinstance(pieces, list) else len(found)) == pieces


def conversations(renderer: Any, mini: ModuleType, count: int) -> list[list[dict[str, Any]]]:
    from demonstrations import Demonstrator, draw_demonstrations

    return draw_demonstrations(count, mini, renderer, Demonstrator(), random.Random(7))


def test_rendering_only_appends(renderer: Any, mini: ModuleType) -> None:
    for messages in conversations(renderer, mini, 24):
        whole = renderer.text(messages)
        for count in range(1, len(messages)):
            assert whole.startswith(renderer.text(messages[:count]))


def test_demonstrations_have_the_tokens_of_a_live_run(renderer: Any, mini: ModuleType, tokenizer: Tokenizer) -> None:
    from demonstrations import Renderer

    delta = Renderer(tokenizer, [])
    turn_end = tokenizer.token_to_id("<|im_end|>")
    for messages in conversations(renderer, mini, 24):
        ids, said = renderer.encode_context(messages)
        live = renderer.encode(renderer.text(messages[:2], prompt=True))
        index = 2
        while index < len(messages):
            start = len(live)
            live += [token for token, is_said in zip(ids[start:], said[start:], strict=True) if is_said][: _answer_length(said, start)]
            assert live[-1] == turn_end
            index += 1
            results = []
            while index < len(messages) and messages[index]["role"] != "assistant":
                results.append(messages[index])
                index += 1
            if results and index < len(messages):
                live += encode(tokenizer, "\n" + delta.text(results, prompt=True))
        assert live == ids[: len(live)]
        assert not any(said[len(live) :])


def _answer_length(said: list[bool], start: int) -> int:
    """Tokens of the answer that begins at `start`."""
    end = start
    while end < len(said) and said[end]:
        end += 1
    return end - start


def test_some_demonstrations_are_wrong_some_compacted(renderer: Any, mini: ModuleType) -> None:
    contexts = conversations(renderer, mini, 240)
    texts = [renderer.text(messages) for messages in contexts]
    share_compacted = len(contexts) / 240 - 1
    assert 0.1 < share_compacted < 0.5
    assert any("want" in text for text in texts)
    assert any("all 3 passed" in text for text in texts)
    assert max(len(renderer.encode(text)) for text in texts) < 512


def test_a_parser_of_the_published_format_reads_the_calls(renderer: Any) -> None:
    from demonstrations import call

    content = "def solve(x):\n    return x * 3"
    text = renderer.text([{"role": "assistant", "content": "", "tool_calls": [call("write_file", content=content), call("run_tests")]}])
    blocks = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    assert len(blocks) == 2
    assert re.search(r"<function=(\w+)>", blocks[1]).group(1) == "run_tests"  # type: ignore[union-attr]
    assert re.search(r"<parameter=content>\n(.*)\n</parameter>", blocks[0], re.DOTALL).group(1) == content  # type: ignore[union-attr]
