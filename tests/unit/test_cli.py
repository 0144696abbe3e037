"""The command line: exit codes, one JSON document, sentences instead of tracebacks, and nothing heavy imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.cli import cli, run_cli
from gyre.errors import RunError

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "pipelines" / "quickstart.jsonnet")
ERRORS = ROOT / "tests" / "golden" / "errors"
HEAVY = ("torch", "ray", "lance", "aiohttp", "duckdb", "transformers", "megatron", "mooncake")


def in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, object]:
    code = run_cli([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_pipeline_is_ok(capsys):
    code, document = in_json(capsys, "check", QUICKSTART, "--set", "mu=3", "--set", "phi=0.4")
    assert code == 0
    assert document == {
        "ok": True,
        "problems": [],
        "pipeline": "quickstart",
        "dispatch": {
            "phi_eff": 0.375,
            "extra_groups": 3,
            "expected_staleness": 1.375,
            "total_groups": 240,
            "rollout_concurrency": 24,
        },
    }


@pytest.mark.parametrize("case", sorted(path.stem for path in ERRORS.glob("*.jsonnet")))
def test_the_text_of_each_mistake_is_golden(case, capsys, golden):
    code = run_cli(["check", str(ERRORS / f"{case}.jsonnet")])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    golden(f"errors/{case}.txt", captured.err.replace(str(ROOT), "ROOT"))


def test_five_mistakes_give_five_problems_with_their_paths(capsys):
    code, document = in_json(capsys, "check", str(ERRORS / "five_mistakes.jsonnet"))
    assert code == 2
    assert document["ok"] is False
    assert {problem["path"] for problem in document["problems"]} == {
        "ops.dispatch.args.groups_per_steps",
        "ops.rollout.from.executions",
        "ops.score.args.budget_s",
        "ops.select.op",
        "ops.elastic.agrs",
    }
    assert len(document["problems"]) == 5
    assert all(problem["message"] and problem["hint"] for problem in document["problems"])


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["check", "no/such.jsonnet"], 2, "there is no pipeline file"),
        (["check", QUICKSTART, "--set", "stepz=3"], 2, "did you mean 'steps'"),
        (["check", QUICKSTART, "--set", "steps"], 2, "name=value"),
        (["check"], 2, "PIPELINE"),
        (["chekc"], 2, "chekc"),
        (["ops", "tree_selct"], 2, "did you mean 'tree_select'"),
        (["schema", "steqs"], 2, "there is no schema"),
        (["bench", "no_such_benchmark"], 2, "there is no benchmark"),
        (["run", QUICKSTART, "--resume"], 2, "--run-dir"),
        (["run", QUICKSTART, "--stop-after-hours", "0"], 2, "x>0"),
        (["run", QUICKSTART, "--stop-after-hours", "nan"], 2, "not a finite number"),
        (["tune", QUICKSTART, "--staleness", "nan"], 2, "not a finite number"),
        (["tune", QUICKSTART, "--staleness", "inf"], 2, "not a finite number"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_code_2(arguments, code, word, capsys):
    assert run_cli(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert word in captured.err
    assert "Traceback" not in captured.err


def test_mistakes_are_one_json_document_too(capsys):
    for arguments in (["ops", "tree_selct"], ["check"], ["check", "no/such.jsonnet"]):
        code, document = in_json(capsys, *arguments)
        assert (code, document["ok"]) == (2, False)


def test_a_failed_run_is_exit_code_1_and_an_interrupted_one_130(monkeypatch, capsys):
    for error, code in ((RunError("disk full"), 1), (KeyboardInterrupt(), 130)):

        def fail(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr("gyre.graph.registry.list_operators", fail)
        assert run_cli(["ops"]) == code
        assert capsys.readouterr().err.strip() in ("error: disk full", "interrupted")


def test_an_interrupted_command_is_one_json_document_too(monkeypatch, capsys):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gyre.graph.registry.list_operators", interrupt)
    code, document = in_json(capsys, "ops")
    assert (code, document) == (130, {"ok": False, "error": "interrupted", "hint": ""})


def test_a_package_that_is_broken_does_not_hide_other_operators(monkeypatch, capsys):
    monkeypatch.setattr("gyre.graph.registry.list_operators", lambda: ["pack", "no_such_module_here:x"])
    assert run_cli(["ops"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("pack ")
    assert "note: 'no_such_module_here:x' cannot be used: there is no module no_such_module_here" in captured.err


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_help_with_an_example_and_takes_json(name, capsys):
    assert run_cli([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example:\n  gyre {name}" in text
    assert "--json" in text


def test_the_commands_are_the_ones_of_the_architecture():
    names = "bench check export inspect ops plan query rescore run schema simulate tune verify"
    assert " ".join(sorted(cli.commands)) == names


def test_operators_and_schemas_are_listed_and_shown(capsys):
    _, listed = in_json(capsys, "ops")
    assert {"dispatch", "tree_select", "task_verifier"} <= {operator["name"] for operator in listed}
    _, shown = in_json(capsys, "ops", "tree_select")
    assert shown["inputs"] == {"scored": {"record": "scored_execution.v1", "kind": "batch", "optional": False}}
    assert shown["settings"]["j_max"]["type"] == "a whole number or null"
    _, schemas = in_json(capsys, "schema")
    assert {"calls.v1", "trajectory.v1"} <= schemas.keys()
    _, columns = in_json(capsys, "schema", "steps")
    assert columns[0] == {"name": "version", "type": "int64", "nullable": False, "doc": "Policy version after the update."}
    assert run_cli(["schema", "steps.v1"]) == 0
    assert "  loss: double\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "mermaid", "json"])
def test_plans_are_printed_in_each_form(form, capsys):
    assert run_cli(["plan", QUICKSTART, "--format", form]) == 0
    text = capsys.readouterr().out
    assert {"text": "process rollout", "mermaid": "train -. policy_version .-> dispatch", "json": '"pipeline": "quickstart"'}[form] in text


def test_checking_imports_no_heavy_room():
    code = (
        "import sys; from gyre.cli import run_cli; "
        f"assert run_cli(['check', {QUICKSTART!r}]) == 0 and run_cli(['--help']) == 0; "
        f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_help_imports_neither_arrow_nor_jsonnet():
    code = (
        "import sys; import gyre.cli; sys.stderr.write(' '.join(m for m in ('pyarrow', '_jsonnet', 'rich', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
