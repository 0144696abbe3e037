"""Evaluation of pipeline files: settings, imports, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.errors import SpecError
from gyre.graph.jsonnet import evaluate_file, parameter_names


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problem_of(path: Path, settings: dict[str, str] | None = None):
    with pytest.raises(SpecError) as caught:
        evaluate_file(path, settings or {})
    (problem,) = caught.value.problems
    return problem


def test_settings_are_json_where_they_are_json(tmp_path):
    path = write(tmp_path / "p.jsonnet", "function(a=1, b=2, c=3, d=4, e=5) [a, b, c, d, e]")
    settings = {"a": "0.5", "b": "true", "c": '"7"', "d": "plain words", "e": "NaN"}
    assert evaluate_file(path, settings) == ([0.5, True, "7", "plain words", "NaN"], [])


def test_unknown_settings_are_all_named_and_the_rest_still_counts(tmp_path):
    path = write(tmp_path / "p.jsonnet", "// function(x=1)\nlocal f(x, y=2) = x;\nfunction(steps=1, seed=[1, 2], s='a,b(') steps")
    value, problems = evaluate_file(path, {"stepz": "3", "zzz": "1", "steps": "4", "a-b": "1", "self": "1"})
    assert value == 4
    assert {(p.path, p.hint) for p in problems} == {
        ("--set stepz", "did you mean 'steps'?"),
        ("--set zzz", "it takes: s, seed, steps"),
        ("--set a-b", "it takes: s, seed, steps"),
        ("--set self", "it takes: s, seed, steps"),
    }


def test_a_setting_of_an_object_is_a_problem(tmp_path):
    path = write(tmp_path / "p.jsonnet", "{ a: 1 }")
    value, problems = evaluate_file(path, {"a": "2"})
    assert value == {"a": 1}
    assert [p.path for p in problems] == ["--set a"]
    assert "it is not a function" in problems[0].message


def test_numbers_that_would_lose_digits_are_refused(tmp_path):
    path = write(tmp_path / "p.jsonnet", "function(seed=0) seed")
    _, problems = evaluate_file(path, {"seed": "9007199254740993"})
    assert problems[0].hint == "give it as a string: --set 'seed=\"9007199254740993\"'"


def test_imports_are_relative_to_the_importing_file_or_absolute(tmp_path):
    elsewhere = write(tmp_path / "elsewhere/c.libsonnet", "{ c: 3 }")
    write(tmp_path / "here/sub/b.libsonnet", "{ b: import 'deeper/d.libsonnet', text: importstr 'deeper/d.libsonnet', file: std.thisFile }")
    write(tmp_path / "here/sub/deeper/d.libsonnet", "4")
    path = write(tmp_path / "here/p.jsonnet", f"{{ x: import 'sub/b.libsonnet', y: import '{elsewhere}' }}")
    value, _ = evaluate_file(path, {})
    assert value == {"x": {"b": 4, "text": "4", "file": "sub/b.libsonnet"}, "y": {"c": 3}}


def test_the_library_is_the_packages_own(tmp_path):
    write(tmp_path / "gyre.libsonnet", "{}")
    path = write(tmp_path / "p.jsonnet", "(import 'gyre.libsonnet').feedback('a.b')")
    assert evaluate_file(path, {}).document == {"feedback": "a.b"}


def test_the_vocabulary_gives_the_binding_objects(tmp_path):
    text = "local g = import 'gyre.libsonnet'; [g.pipeline('n'), g.op('n'), g.engine('e'), g.learner('m', { lr: 1 }), g.cells({ n: 2 })]"
    assert evaluate_file(write(tmp_path / "p.jsonnet", text), {}).document == [
        {"gyre": "pipeline.v1", "name": "n", "resources": {}, "ops": {}},
        {"op": "n", "from": {}, "args": {}},
        {"kind": "e"},
        {"kind": "m", "lr": 1},
        {"n": 2},
    ]


def test_a_missing_file_is_named(tmp_path):
    problem = problem_of(tmp_path / "none.jsonnet")
    assert problem.path == str(tmp_path / "none.jsonnet")
    assert "there is no pipeline file" in problem.message


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"{ a: '\x00' }"])
def test_a_file_that_is_not_text_is_named(content, tmp_path):
    (tmp_path / "p.jsonnet").write_bytes(content)
    assert problem_of(tmp_path / "p.jsonnet").message == "the file is not text in UTF-8"


def test_a_folder_is_not_a_file(tmp_path):
    assert "is not a file" in problem_of(tmp_path).message


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{ a: 1,\n  b: , }", ":2:6", 'unexpected: "," while parsing terminal'),
        ("{ a: 1,\n  b: self.c }", ":2:6", "field does not exist: c"),
        ("local x = 1;\n{ a: error 'no luck' }", ":2:6", "no luck"),
        ("{ a: b }", ":1:6", "Unknown variable: b"),
        ("import 'p.jsonnet'", ":1:1", "max stack frames exceeded"),
        ("import 'none.libsonnet'", ":1:1", "couldn't open import"),
        ("function(a) { a: a }", "", "parameter 'a' of the pipeline has no value"),
        ("{ f: function(x) x }", ":1:6", "couldn't manifest function"),
    ],
)
def test_an_error_names_file_line_and_column(tmp_path, text, place, message):
    path = write(tmp_path / "p.jsonnet", text)
    problem = problem_of(path)
    assert problem.path == f"{path}{place}"
    assert message in problem.message
    assert problem.hint


def test_an_error_in_an_imported_file_is_found_there(tmp_path):
    write(tmp_path / "sub/b.libsonnet", "{\n  a: 1 +\n}")
    assert problem_of(write(tmp_path / "p.jsonnet", "import 'sub/b.libsonnet'")).path == f"{tmp_path}/sub/b.libsonnet:3:1"


def test_names_of_files_may_have_blanks_and_colons(tmp_path):
    path = write(tmp_path / "my pipeline: 2.jsonnet", "import 'sub folder/b c.libsonnet'")
    write(tmp_path / "sub folder/b c.libsonnet", "{\n  a: 1 +\n}")
    assert problem_of(path).path == f"{tmp_path}/sub folder/b c.libsonnet:3:1"
    write(tmp_path / "sub folder/b c.libsonnet", "{\n  a: error 'no luck',\n}")
    assert problem_of(path).path == f"{tmp_path}/sub folder/b c.libsonnet:2:6"
    write(path, "{\n  a: error 'no luck',\n}")
    assert problem_of(path).path == f"{path}:2:6"


def test_a_wrong_call_inside_the_file_is_not_taken_for_a_wrong_setting(tmp_path):
    path = write(tmp_path / "p.jsonnet", "local base(seed=0) = seed;\nfunction(lr=1) base(lr=lr)")
    problem = problem_of(path, {"lr": "2"})
    assert (problem.path, problem.message) == (f"{path}:2:16", "function has no parameter lr")
    path = write(tmp_path / "q.jsonnet", "local base(seed) = seed;\nfunction(lr=1) base()")
    problem = problem_of(path, {"lr": "2"})
    assert (problem.path, problem.message) == (f"{path}:2:16", "function parameter seed not bound in call.")


def test_a_number_that_json_cannot_hold_stays_a_string(tmp_path):
    path = write(tmp_path / "p.jsonnet", "function(a=1, b=2) [a, b]")
    assert evaluate_file(path, {"a": "1e999", "b": "[1e999, 0.5, 2]"}).document == ["1e999", ["1e999", 0.5, 2]]


def test_parameter_names_are_read_from_the_top_function():
    assert parameter_names("local f = function(x) x;\nfunction(a=1, b={ c: [1, 2], d: 'x,y)' }, e=f(1), )\n  a") == ["a", "b", "e"]
    assert parameter_names("{ a: function(b) b }") == []
