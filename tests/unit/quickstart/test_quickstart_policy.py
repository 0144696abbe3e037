"""The shipped policy's text format: tokenizer, chat template, tool calls, and demonstrations rendered as a live run renders."""

from __future__ import annotations

import json
import random
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


def test_demonstrations_have_the_tokens_of_a_live_run(renderer: Any, mini: ModuleType, folder: Path) -> None:
    from gyre.rollout.renderer import Renderer as LiveRenderer
    from gyre.trajectory.messages import Message, ToolSpec

    live = LiveRenderer(folder)
    specs = [t["function"] for t in (mini.WRITE, mini.RUN, mini.FINISH)]
    tools = [ToolSpec(name=t["name"], description=t["description"], parameters_json=json.dumps(t["parameters"])) for t in specs]
    for messages in conversations(renderer, mini, 24):
        ids, said = renderer.encode_context(messages)
        neutral = [Message(role=m["role"], text=m["content"]) for m in messages]
        answers = [index for index, m in enumerate(neutral) if m.role == "assistant"]
        tokens = live.render_prefix(neutral[: answers[0]], tools)
        for answer, following in zip(answers, [*answers[1:], None], strict=True):
            length = ([*said, False]).index(False, len(tokens)) - len(tokens)
            tokens += ids[len(tokens) : len(tokens) + length]
            assert tokens[-1] == live.turn_end_id
            if following is not None:
                tokens += live.render_delta(neutral[answer + 1 : following], tools, is_turn_closed=True)
            assert tokens == ids[: len(tokens)]
        assert len(tokens) == len(ids)


def test_some_demonstrations_are_wrong_some_compacted(renderer: Any, mini: ModuleType) -> None:
    contexts = conversations(renderer, mini, 240)
    texts = [renderer.text(messages) for messages in contexts]
    share_compacted = len(contexts) / 240 - 1
    assert 0.1 < share_compacted < 0.5
    assert any("want" in text for text in texts)
    assert any("all 3 passed" in text for text in texts)
    assert max(len(renderer.encode(text)) for text in texts) < 512


def test_the_library_parser_reads_the_calls(scripts: Path, mini: ModuleType) -> None:
    from demonstrations import Renderer, call

    from gyre.rollout.answers import AnswerReader
    from gyre.trajectory.messages import ToolSpec

    content = "def solve(x):\n    return x * 3"
    text = Renderer(None, []).text(
        [{"role": "assistant", "content": "", "tool_calls": [call("write_file", content=content), call("run_tests")]}]
    )
    tools = [ToolSpec(name=t["function"]["name"], parameters_json=json.dumps(t["function"]["parameters"])) for t in (mini.WRITE, mini.RUN)]
    answer = text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    read = AnswerReader(tool_parser="qwen3_coder").read(answer, tools, is_cut=False)
    assert read.text.strip() == ""
    assert [(name, json.loads(arguments)) for name, arguments in read.calls] == [("write_file", {"content": content}), ("run_tests", {})]
