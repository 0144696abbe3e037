"""The sandbox surface on both backends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gyre.rollout.sandbox import Bind, Limits, ProcessSandbox, Sandbox, choose_sandbox


def backends() -> list[Sandbox]:
    found = choose_sandbox().sandbox
    return [ProcessSandbox()] if found.name == "process" else [ProcessSandbox(), found]


@pytest.fixture(params=backends(), ids=lambda sandbox: sandbox.name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return request.param


async def run(sandbox: Sandbox, tmp_path: Path, script: str, **options):
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    end = await sandbox.run(
        ["/bin/sh", "-c", script],
        **{
            "env": {"GREETING": "hello"},
            "binds": [],
            "cwd": Bind(source=workspace, target="/app", is_writable=True),
            "deadline_s": 20.0,
            "stdout": tmp_path / "out",
            "stderr": tmp_path / "err",
            **options,
        },
    )
    return end, (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""


async def test_runs_in_the_workspace_with_only_the_given_environment(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    end, out = await run(sandbox, tmp_path, 'echo "$GREETING:${SECRET_OF_THE_HOST:-none}"; touch made; exit 3')
    assert (end.exit_code, end.is_timeout, end.is_started) == (3, False, True)
    assert out == "hello:none\n"
    assert (tmp_path / "workspace/made").exists()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_kills_the_whole_group_at_the_deadline(sandbox, tmp_path):
    end, out = await run(sandbox, tmp_path, "sleep 100 & echo $!; sleep 100", deadline_s=0.3)
    assert (end.exit_code, end.is_timeout, end.is_started) == (None, True, True)
    assert "deadline of 0.3 s" in end.reason
    if sandbox.name == "process":
        child = int(out)
        # It is killed, but on a busy machine it may take a moment to be gone.
        async with asyncio.timeout(10):
            while is_alive(child):
                await asyncio.sleep(0.01)


async def test_a_command_that_does_not_exist_is_a_result(sandbox, tmp_path):
    end, _ = await run(sandbox, tmp_path, "true", cwd=Bind(source=tmp_path / "nowhere", target="/app"))
    assert not end.is_started or end.exit_code != 0


async def test_a_file_over_the_limit_is_cut(sandbox, tmp_path):
    end, _ = await run(sandbox, tmp_path, "head -c 100000 /dev/zero > big", limits=Limits(file_bytes=1000))
    assert end.exit_code != 0
    assert (tmp_path / "workspace/big").stat().st_size <= 1000


async def test_python_starts_inside(sandbox, tmp_path):
    end, out = await run(sandbox, tmp_path, f"{sandbox.python} -I -S -c 'print(6*7)'")
    assert (end.exit_code, out) == (0, "42\n")


async def test_bubblewrap_hides_the_machine(tmp_path):
    sandbox = choose_sandbox().sandbox
    if sandbox.name != "bubblewrap":
        pytest.skip("bubblewrap does not work on this machine")
    secret = tmp_path / "secret"
    secret.write_text("x")
    tests = tmp_path / "tests"
    tests.mkdir()
    end, out = await run(
        sandbox,
        tmp_path,
        f"cat {secret} 2>/dev/null || echo hidden; touch /tests/x 2>/dev/null || echo read-only; pwd",
        binds=[Bind(source=tests, target="/tests")],
    )
    assert (end.exit_code, out) == (0, "hidden\nread-only\n/app\n")


async def test_bubblewrap_takes_the_rights_of_root_away(tmp_path):
    sandbox = choose_sandbox().sandbox
    if sandbox.name != "bubblewrap":
        pytest.skip("bubblewrap does not work on this machine")
    script = "grep CapEff /proc/self/status; test -w /proc/sys/kernel/core_pattern && echo writable || echo sealed"
    end, out = await run(sandbox, tmp_path, script)
    assert (end.exit_code, out) == (0, "CapEff:\t0000000000000000\nsealed\n")


def test_insisting_on_bubblewrap_without_it_is_a_sentence(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": "/nonexistent"})
    with pytest.raises(ValueError, match="does not work here: it is not installed"):
        choose_sandbox("bubblewrap")
    choice = choose_sandbox()
    assert choice.sandbox.name == "process"
    assert "plain processes" in choice.notice


def test_an_unknown_kind_is_a_sentence():
    with pytest.raises(ValueError, match="'docker' is unknown"):
        choose_sandbox("docker")
