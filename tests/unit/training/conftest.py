"""The model that the training tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_models import make_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of 25 thousand parameters."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")
