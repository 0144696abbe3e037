"""Running a task's own tests on a preserved workspace, on both sandbox backends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gyre.rollout.sandbox import ProcessSandbox, Sandbox, choose_sandbox
from gyre.rollout.verifier import Verdict, read_reward, verify_workspace


def backends() -> list[Sandbox]:
    found = choose_sandbox().sandbox
    return [ProcessSandbox()] if found.name == "process" else [ProcessSandbox(), found]


@pytest.fixture(params=backends(), ids=lambda sandbox: sandbox.name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return request.param


async def verify(sandbox: Sandbox, tmp_path: Path, script: str, deadline_s: float = 20.0) -> Verdict:
    tests = tmp_path / "task/tests"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "test.sh").write_text(script)
    (tests / "expected").write_text("42\n")
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "answer").write_text("42\n")
    return await verify_workspace(tmp_path / "task", workspace, deadline_s=deadline_s, sandbox=sandbox, logs_dir=tmp_path / "logs")


async def test_the_tests_read_their_files_and_write_the_score(sandbox, tmp_path):
    verdict = await verify(
        sandbox, tmp_path, "cmp /app/answer /tests/expected && cat answer && echo 0.75 > /logs/verifier/reward.txt; exit 1"
    )
    assert verdict == Verdict(True, 0.75, "reward.txt says 0.75")
    assert (tmp_path / "logs/verifier.out").read_text() == "42\n"


async def test_the_workspace_stays_as_it_was(sandbox, tmp_path):
    await verify(sandbox, tmp_path, "rm /app/answer; touch /app/more; echo 1 > /logs/verifier/reward.txt")
    assert sorted(os.listdir(tmp_path / "workspace")) == ["answer"]
    assert (tmp_path / "task/tests/test.sh").read_text().startswith("rm /app/answer")


async def test_a_score_of_an_earlier_try_is_never_read(sandbox, tmp_path):
    await verify(sandbox, tmp_path, "echo 1 > /logs/verifier/reward.txt")
    verdict = await verify(sandbox, tmp_path, "exit 7")
    assert verdict.valid is False
    assert "neither reward.txt nor reward.json" in verdict.reason
    assert "exit code 7" in verdict.reason


async def test_a_score_written_before_the_deadline_counts(sandbox, tmp_path):
    verdict = await verify(sandbox, tmp_path, "echo 0.5 > /logs/verifier/reward.txt; sleep 60", deadline_s=1.5)
    assert verdict == Verdict(True, 0.5, "reward.txt says 0.5")


async def test_no_score_at_the_deadline_is_invalid(sandbox, tmp_path):
    verdict = await verify(sandbox, tmp_path, "sleep 60", deadline_s=0.3)
    assert verdict.valid is False
    assert "deadline of 0.3 s" in verdict.reason


async def test_a_pipe_in_the_workspace_does_not_stop_the_tests(sandbox, tmp_path):
    (tmp_path / "workspace").mkdir()
    os.mkfifo(tmp_path / "workspace/pipe")
    os.symlink("/nowhere", tmp_path / "workspace/link")
    verdict = await verify(sandbox, tmp_path, "test -L /app/link && test ! -e /app/pipe && echo 1 >/logs/verifier/reward.txt")
    assert verdict.score == 1.0


async def test_missing_tests_and_missing_workspace_are_sentences(tmp_path):
    sandbox = ProcessSandbox()
    verdict = await verify_workspace(tmp_path, tmp_path, deadline_s=1, sandbox=sandbox, logs_dir=tmp_path / "logs")
    assert "has no tests/test.sh" in verdict.reason
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").touch()
    verdict = await verify_workspace(tmp_path, tmp_path / "gone", deadline_s=1, sandbox=sandbox, logs_dir=tmp_path / "logs")
    assert "is gone" in verdict.reason


@pytest.mark.parametrize(
    ("name", "text", "score"),
    [
        ("reward.txt", "1", 1.0),
        ("reward.txt", " 0.25\n", 0.25),
        ("reward.json", '{"reward": 0.5, "speed": 9}', 0.5),
        ("reward.json", '{"a": 1, "b": 0}', 0.5),
        ("reward.txt", "nan", None),
        ("reward.txt", "great", None),
        ("reward.json", "[1]", None),
        ("reward.json", '{"passed": true}', None),
        ("reward.json", "{", None),
        ("reward.json", '{"reward": true, "seconds": 3.5}', None),
        ("reward.json", '{"reward": null, "tests": 7}', None),
        ("reward.json", '{"a": 1' + "0" * 400 + "}", None),
        ("reward.json", "[" * 50_000, None),
    ],
)
def test_reads_rewards(tmp_path, name, text, score):
    (tmp_path / name).write_text(text)
    verdict = read_reward(tmp_path)
    assert (verdict.valid, verdict.score) == (score is not None, score)


def test_a_linked_reward_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("1")
    os.symlink(tmp_path / "elsewhere", tmp_path / "reward.txt")
    assert read_reward(tmp_path).valid is False
