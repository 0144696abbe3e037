from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def scripts() -> Path:
    """Makes the scripts importable by their names, as they import each other."""
    folder = REPO / "scripts"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


@pytest.fixture(scope="session")
def mini_program() -> Path:
    return REPO / "pipelines/harness/mini/mini.py"


@pytest.fixture(scope="session")
def mini(mini_program: Path) -> ModuleType:
    """The harness program as a module."""
    spec = importlib.util.spec_from_file_location("mini_program", mini_program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
