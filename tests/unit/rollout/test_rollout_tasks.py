"""Reading Harbor task folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre.errors import SpecError
from gyre.records import Batch, Task
from gyre.rollout.tasks import find_task_problems, read_task_folder


def make_task(folder: Path, *, toml: str = "", tests: bool = True, instruction: str | None = "Do it.") -> Path:
    (folder / "tests").mkdir(parents=True)
    if instruction is not None:
        (folder / "instruction.md").write_text(instruction)
    if tests:
        (folder / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    if toml:
        (folder / "task.toml").write_text(toml)
    return folder


def test_reads_tasks_in_the_order_of_their_names(tmp_path):
    make_task(tmp_path / "b")
    make_task(tmp_path / "a", toml='[agent]\ntimeout_sec = 30\n[verifier]\ntimeout_sec = 5.5\n[metadata]\nlevel = "easy"\n')
    rows = read_task_folder(tmp_path)
    assert [row["query_id"] for row in rows] == ["a", "b"]
    config = json.loads(rows[0]["config"])
    assert (config["agent_timeout_s"], config["verifier_timeout_s"], config["metadata"]) == (30.0, 5.5, {"level": "easy"})
    assert len(Batch.of(Task, rows)) == 2


def test_one_task_may_be_named_itself(tmp_path):
    assert [r["query_id"] for r in read_task_folder(make_task(tmp_path / "only"))] == ["only"]


def test_every_problem_is_named_at_once(tmp_path):
    make_task(tmp_path / "a", tests=False)
    make_task(tmp_path / "b", instruction=None)
    make_task(tmp_path / "c", toml="[agent]\ntimeout_sec = -1\n")
    make_task(tmp_path / "d", toml="not toml")
    make_task(tmp_path / "e", instruction="  \n")
    with pytest.raises(SpecError) as raised:
        read_task_folder(tmp_path, setting="ops.tasks.args.path")
    messages = [problem.message for problem in raised.value.problems]
    assert "task a has no tests/test.sh" in messages
    assert "task b has no instruction.md" in messages
    assert any("timeout_sec is -1" in m for m in messages)
    assert len(messages) == 5
    assert {problem.path for problem in raised.value.problems} == {"ops.tasks.args.path"}


def test_a_missing_or_empty_folder_is_a_problem(tmp_path):
    assert "there is no tasks folder" in find_task_problems(tmp_path / "nowhere")[0].message
    assert "holds no task" in find_task_problems(tmp_path)[0].message


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('[environment]\nworkdir = "app"\n', "workdir is 'app', not the absolute path"),
        ('[environment]\nworkdir = "/"\n', "workdir is '/', not the absolute path"),
        ("[verifier]\ntimeout_sec = nan\n", r"timeout_sec is nan, not a positive number"),
        ("[agent]\ntimeout_sec = inf\n", r"timeout_sec is inf, not a positive number"),
    ],
)
def test_limits_that_no_execution_could_run_under_are_problems(tmp_path, toml, sentence):
    assert sentence in find_task_problems(make_task(tmp_path / "a", toml=toml))[0].message


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a\0b"])
def test_an_instruction_that_is_no_text_is_a_problem(tmp_path, raw):
    (make_task(tmp_path / "a") / "instruction.md").write_bytes(raw)
    assert find_task_problems(tmp_path)[0].message == "task a: instruction.md is not UTF-8 text"
