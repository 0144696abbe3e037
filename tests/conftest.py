"""Shared by all tests: golden files, compared with what a test produced and rewritten by one flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN_DIR = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="Rewrite golden files; review the diff before committing.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, given its path below tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN_DIR / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; if it should, run pytest --refresh-golden and review"

    return compare
