"""Operators by name, and what their signatures declare."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gyre.errors import UserError
from gyre.graph.registry import find_operator, list_operators
from gyre.graph.report import operator_document, render_operator
from gyre.graph.settings import REQUIRED
from gyre.records import Assessment, ClosedExecution, Execution, Task


def test_a_class_operator_has_its_settings_in_init_and_its_ports_in_run():
    runner = find_operator("graph_toy_ops:Runner")
    assert {n: (p.record, p.kind, p.is_optional) for n, p in runner.inputs.items()} == {
        "tasks": (Task, "stream", False),
        "hints": (Assessment, "stream", True),
    }
    assert {n: p.record for n, p in runner.outputs.items()} == {"closed": ClosedExecution, "started": Execution}
    assert runner.settings["mode"].default is REQUIRED
    assert runner.settings["ratio"] == (float, 0.5)
    assert runner.resources == {"control": "Control", "engines": "Engines", "store": "Store"}
    assert runner.state == "store"
    assert runner.is_class
    assert runner.target_path == "graph_toy_ops:Runner"


def test_a_function_operator_has_all_in_its_signature():
    tasks = find_operator("graph_toy_ops:tasks")
    assert (dict(tasks.inputs), list(tasks.outputs), list(tasks.settings)) == ({}, ["out"], ["count", "folder"])
    assert find_operator("graph_toy_ops:sink").outputs == {}
    assert list(find_operator("graph_toy_ops:score_with").outputs) == ["scores"]


def test_settings_are_described_from_the_docstring():
    document = operator_document(find_operator("graph_toy_ops:tasks"))
    assert document["doc"] == "Emit tasks."
    assert document["settings"]["count"] == {
        "type": "a whole number",
        "required": False,
        "default": 3,
        "doc": "how many, at most 99; the rest is cut.",
    }


def test_the_text_about_an_operator_is_golden(golden):
    golden("ops/toy_runner.txt", render_operator(find_operator("graph_toy_ops:Runner")))


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("no_such_operator_here", "there is no operator 'no_such_operator_here'", "operators are: "),
        ("tre_select", "there is no operator 'tre_select'", "did you mean 'tree_select'?"),
        ("no_such_package/op", "no installed package has the operator", "install the package that has it"),
        ("graph_toy_ops:Limits", "is not an operator", "put @op"),
        ("json:loads", "is not an operator", "put @op"),
    ],
)
def test_a_name_that_finds_nothing_is_the_users_mistake(name, message, hint):
    with pytest.raises(UserError, match=message) as caught:
        find_operator(name)
    assert hint in caught.value.hint


def test_a_module_that_fails_to_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "graph_broken_ops.py").write_text("1 / 0\n")
    (tmp_path / "graph_needy_ops.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="importing graph_broken_ops fails: ZeroDivisionError"):
        find_operator("graph_broken_ops:x")
    with pytest.raises(UserError, match="importing graph_needy_ops fails: No module named 'no_such_dependency'"):
        find_operator("graph_needy_ops:x")


def test_a_module_that_is_a_script_is_named_and_does_not_end_the_command(tmp_path, monkeypatch):
    (tmp_path / "graph_script_ops.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="importing graph_script_ops fails: SystemExit: 0"):
        find_operator("graph_script_ops:x")


def test_what_a_module_prints_stays_out_of_stdout(tmp_path, monkeypatch, capsys):
    lines = "from gyre.records import Batch, Task, op\nprint('hello')\n@op('x')\ndef x() -> Batch[Task]: ...\n"
    (tmp_path / "graph_loud_ops.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_operator("graph_loud_ops:x").name == "graph_loud_ops:x"
    assert tuple(capsys.readouterr()) == ("", "hello\n")


def install(folder: Path, *, distribution: str, entries: str) -> None:
    """Lay out what an installer would: metadata of a distribution with entry points."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gyre.ops]\n{entries}\n")


def test_an_installed_package_offers_operators_by_entry_point(tmp_path, monkeypatch):
    plugin = Path(__file__).parents[2] / "plugin_pkg"
    entries = (
        "graph_coverage = my_scorers.coverage:Coverage\nacme/graph_other = my_scorers.coverage:Coverage\ncoverage = my_scorers.coverage"
    )
    install(tmp_path, distribution="graph-acme", entries=entries)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(plugin)
    monkeypatch.delitem(sys.modules, "my_scorers", raising=False)
    for name in ("graph_acme/graph_coverage", "my_scorers/graph_coverage", "acme/graph_other", "graph_acme/coverage"):
        found = find_operator(name)
        assert (found.name, found.target_path) == (name, "my_scorers.coverage:Coverage")
    assert "graph_acme/graph_coverage" in list_operators()
    with pytest.raises(UserError, match="no installed package") as caught:
        find_operator("graph_acme/graph_covrage")
    assert caught.value.hint == "did you mean 'graph_acme/graph_coverage'?"


@pytest.mark.parametrize("name", [name for name in list_operators() if "/" not in name])
def test_built_in_operators_are_described_in_full(name):
    operator = find_operator(name)
    document = operator_document(operator)
    assert operator.doc
    assert [n for n, s in document["settings"].items() if not s["doc"]] == [], "every setting has a sentence"
