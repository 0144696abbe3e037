"""Writes pipelines of toy operators for the graph's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.errors import Problem, SpecError
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"
TOY = """
local gyre = import 'gyre.libsonnet';
function(mode='fast', count=3)
  gyre.pipeline('toy') {
    resources: { cells: gyre.cells({ count: 2, concurrency: [4, 2] }), engine: gyre.engine('local', { model: 'model' }) },
    ops: {
      tasks: gyre.op('graph_toy_ops:tasks') { args: { count: count, folder: 'folder' } },
      runner: gyre.op('graph_toy_ops:Runner') {
        from: { tasks: 'tasks', hints: gyre.feedback('judge') },
        args: { mode: mode, limits: { cpu_s: 2 }, levels: [1, 2] },
      },
      judge: gyre.op('graph_toy_ops:score_with') { from: { closed: 'runner.closed' }, args: { scorer: 'graph_toy_ops:judge' } },
      sink: gyre.op('graph_toy_ops:sink') { from: { assessed: 'judge.scores' } },
    },
  }
"""


@pytest.fixture
def toy_dir(tmp_path: Path) -> Path:
    """A folder with the toy pipeline `toy.libsonnet` and its model."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "toy.libsonnet").write_text(TOY)
    return tmp_path


@pytest.fixture
def write_pipeline(toy_dir: Path) -> Callable[[str], Path]:
    """Write the toy pipeline with a Jsonnet object merged over it."""

    def write(patch: str = "{}") -> Path:
        path = toy_dir / "pipeline.jsonnet"
        path.write_text(f"local gyre = import 'gyre.libsonnet';\n(import 'toy.libsonnet')() + {patch}\n")
        return path

    return write


@pytest.fixture
def find_problems(write_pipeline: Callable[[str], Path]) -> Callable[[str], list[Problem]]:
    """The problems of the toy pipeline with a Jsonnet object merged over it."""

    def find(patch: str) -> list[Problem]:
        try:
            build_graph(load_spec(write_pipeline(patch)))
        except SpecError as error:
            return error.problems
        return []

    return find


@pytest.fixture
def find_in_quickstart(tmp_path: Path) -> Callable[[str], list[Problem]]:
    """The problems of an expression over the quickstart, which it calls `q`."""

    def find(expression: str) -> list[Problem]:
        path = tmp_path / "pipeline.jsonnet"
        path.write_text(f"local gyre = import 'gyre.libsonnet'; local q = import '{QUICKSTART}';\n{expression}\n")
        try:
            build_graph(load_spec(path))
        except SpecError as error:
            return error.problems
        return []

    return find
