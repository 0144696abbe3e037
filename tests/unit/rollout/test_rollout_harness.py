"""Running a harness declared as data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gyre.errors import SpecError
from gyre.rollout.harness import HarnessRunner, artifact_version, fill
from gyre.rollout.profile import HarnessProfile, find_profile_problems
from gyre.rollout.sandbox import choose_sandbox

SCRIPT = """
import os, sys
print("|".join(sys.argv[1:]), os.environ["AGENT_MODEL"], open(sys.argv[2]).read())
print(open(os.environ["HOME"] + "/conf/agent.toml").read())
open("done", "w").write(open("start.txt").read() + sys.stdin.read())
sys.exit(int(sys.argv[4]))
"""


def make_run(tmp_path: Path, **changes) -> tuple[HarnessRunner, dict]:
    task = tmp_path / "task"
    (task / "environment").mkdir(parents=True)
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    (task / "environment/start.txt").write_text("begin ")
    (tmp_path / "agent.py").write_text(SCRIPT)
    profile = {
        "name": "toy",
        "command": ["{python}", "-I", "-S", "{harness_dir}/agent.py", "{base_url}", "{instruction_file}", "{key}", "0"],
        "env": {"AGENT_MODEL": "{model}"},
        "files": ["agent.py"],
        "home_files": {"conf/agent.toml": 'url = "{proxy_url}"'},
        "stdin": "say {instruction}",
        "deadline_s": 30,
        **changes,
    }
    runner = HarnessRunner(HarnessProfile.from_dict(profile, base_dir=tmp_path), run_dir=tmp_path / "run", sandbox=choose_sandbox().sandbox)
    row = {"execution_id": "g000001-02", "instruction": "Build {x}.", "task_path": str(task), "config": "{}"}
    return runner, row


async def launch(tmp_path: Path, runner: HarnessRunner, row: dict):
    return await runner.run(row, attempt=1, proxy_url="http://127.0.0.1:1", key="gk-1", workspace=tmp_path / "run/workspaces/g000001-02/1")


async def test_a_harness_runs_on_the_tasks_files_and_leaves_its_workspace(tmp_path):
    runner, row = make_run(tmp_path)
    result = await launch(tmp_path, runner, row)
    assert (result.status, result.is_assessable, result.reason) == ("completed", True, "the harness ended with exit code 0")
    assert (result.workspace / "done").read_text() == "begin say Build {x}."
    assert sorted(p.name for p in result.workspace.iterdir()) == ["done", "start.txt"]
    out = (tmp_path / "run/logs/g000001-02/attempt-1.out").read_text()
    assert "http://127.0.0.1:1/x/gk-1/v1|" in out
    assert "policy Build {x}." in out
    assert 'url = "http://127.0.0.1:1/x/gk-1"' in out
    assert list((tmp_path / "run/homes").iterdir()) == []


def test_homes_that_a_killed_run_left_are_removed(tmp_path):
    left = tmp_path / "run/homes/g000001-02-1"
    left.mkdir(parents=True)
    make_run(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"command": ["/bin/sh", "-c", "exit 9"]}, "failed", "exit code 9"),
        ({"command": ["/bin/sh", "-c", "exit 9"], "success_exit_codes": [0, 9]}, "completed", "exit code 9"),
        ({"command": ["/bin/sleep", "60"], "deadline_s": 0.3}, "timeout", "deadline of 0.3 s"),
    ],
)
async def test_how_it_ends_is_data(tmp_path, changes, status, reason):
    runner, row = make_run(tmp_path, **changes)
    result = await launch(tmp_path, runner, row)
    assert (result.status, result.is_assessable) == (status, True)
    assert reason in result.reason


async def test_the_tasks_own_shorter_limit_wins(tmp_path):
    runner, row = make_run(tmp_path, command=["/bin/sleep", "60"])
    result = await launch(tmp_path, runner, {**row, "config": '{"agent_timeout_s": 0.2}'})
    assert "deadline of 0.2 s" in result.reason


async def test_a_workspace_that_cannot_be_made_is_not_assessable(tmp_path):
    runner, row = make_run(tmp_path)
    (tmp_path / "run/workspaces").mkdir(parents=True)
    (tmp_path / "run/workspaces/g000001-02").write_text("in the way")
    result = await launch(tmp_path, runner, row)
    assert (result.status, result.is_assessable, result.started_at_s) == ("failed", False, None)


def test_an_artifact_version_changes_with_the_content(tmp_path):
    (tmp_path / "a").write_text("1")
    first = artifact_version(tmp_path)
    assert artifact_version(tmp_path) == first
    (tmp_path / "a").write_text("2")
    assert artifact_version(tmp_path) != first


def test_an_artifact_version_sees_folders_links_and_kinds(tmp_path):
    seen = {artifact_version(tmp_path)}
    for change in (
        lambda: (tmp_path / "folder").mkdir(),
        lambda: os.symlink("folder", tmp_path / "link"),
        lambda: ((tmp_path / "link").unlink(), os.symlink("/etc", tmp_path / "link")),
        lambda: ((tmp_path / "link").unlink(), (tmp_path / "link").touch()),
        lambda: ((tmp_path / "link").unlink(), os.mkfifo(tmp_path / "link")),
    ):
        change()
        seen.add(artifact_version(tmp_path))
    assert len(seen) == 6


def test_a_file_that_cannot_be_read_does_not_end_the_run(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("1")
    readable = artifact_version(tmp_path)

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hashlib.file_digest", refuse)  # root, as whom tests may run, reads whatever its mode is
    assert artifact_version(tmp_path) not in ("", readable)


async def test_a_command_that_no_process_can_get_is_a_failed_execution(tmp_path):
    runner, row = make_run(tmp_path, command=["/bin/echo", "{instruction}"], stdin=None)
    result = await launch(tmp_path, runner, {**row, "instruction": "a\0b"})
    assert (result.status, result.started_at_s) == ("failed", None)
    assert "null byte" in result.reason


def test_unknown_braces_stay():
    assert fill("{key} {other} {", {"key": "k"}) == "k {other} {"


def test_every_problem_of_a_profile_is_named(tmp_path):
    found = find_profile_problems(
        {"name": 3, "comand": [], "wire": "grpc", "deadline_s": "soon"}, base_dir=tmp_path, setting="ops.rollout.args.harness"
    )
    assert [p.path.rsplit(".", 1)[1] for p in found] == ["name", "comand", "deadline_s", "harness", "wire"]
    assert found[1].hint == "did you mean command?"
    with pytest.raises(SpecError, match="there is no"):
        HarnessProfile.from_dict({"name": "x", "command": ["x"], "files": ["nowhere.py"]}, base_dir=tmp_path)
    assert "is no wire" in find_profile_problems({"name": "x", "command": ["x"], "wire": "grpc"}, base_dir=tmp_path)[0].message


@pytest.mark.parametrize(
    ("change", "place", "sentence"),
    [
        ({"command": ["x", "{instrction}"]}, "harness.command[1]", "'{instrction}' is no placeholder"),
        ({"env": {"URL": "{bas_url}/v1"}}, "harness.env.URL", "'{bas_url}' is no placeholder"),
        ({"stdin": "{instructions}"}, "harness.stdin", "'{instructions}' is no placeholder"),
        ({"name": "../x"}, "harness.name", "'../x' cannot name a folder"),
        ({"home_files": {"../../x": ""}}, "harness.home_files", "'../../x' is not a place in the home"),
        ({"home_files": {"/etc/x": ""}}, "harness.home_files", "'/etc/x' is not a place in the home"),
        ({"files": ["a/x.py", "b/x.py"]}, "harness.files[1]", "b/x.py and a/x.py would have the same name in {harness_dir}"),
    ],
)
def test_what_would_go_wrong_without_a_word_is_refused(change, place, sentence, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").touch()
    sound = {
        "name": "x",
        "command": ["x", "{instruction}", "{anything} ${else}"],
        "files": ["a/x.py"],
        "home_files": {".config/x": "{modle}"},
    }
    assert find_profile_problems(sound, base_dir=tmp_path) == []
    [problem] = find_profile_problems({**sound, **change}, base_dir=tmp_path)
    assert (problem.path, problem.message) == (place, sentence)
