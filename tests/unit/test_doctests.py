"""Run the worked examples in docstrings of the rooms that have them."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import gyre.graph
import gyre.ops
import gyre.scheduler
import gyre.sim
import gyre.store

ROOMS = (gyre.graph, gyre.ops, gyre.scheduler, gyre.sim, gyre.store)
MODULES = [f"{room.__name__}.{module.name}" for room in ROOMS for module in pkgutil.iter_modules(room.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    assert doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS).failed == 0
