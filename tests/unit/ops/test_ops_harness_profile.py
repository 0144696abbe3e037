"""What `harness_proxy` takes from its harness profile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gyre.bench._measuring import shipped_model_dir
from gyre.ops.harness_proxy import HarnessProxy


@pytest.mark.parametrize("parser", [None, "qwen3"])
def test_the_profiles_parsers_take_answers_apart(tmp_path: Path, parser: str | None) -> None:
    resources: dict[str, Any] = {
        "engines": SimpleNamespace(model_dir=shipped_model_dir()),
        "control": None,
        "store": SimpleNamespace(run_dir=tmp_path),
        "pipeline": SimpleNamespace(base_dir=tmp_path, trains=True),
    }
    harness = {"name": "toy", "command": ["toy"], "reasoning_parser": parser}
    operator = HarnessProxy(harness=harness, sandbox="process", **resources)
    found = operator.proxy._services.reader.read("<think>hm</think>Hi", [], is_cut=False)
    assert (found.reasoning, found.text) == (("hm", "Hi") if parser else ("", "<think>hm</think>Hi"))
