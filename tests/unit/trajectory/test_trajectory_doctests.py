from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["tree", "path_index", "restore", "roles", "outcomes"])
def test_the_worked_examples_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"gyre.trajectory.{name}"))
    assert results.attempted
    assert not results.failed
