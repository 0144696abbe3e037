"""Run a black-box harness on a task: workspace, command, deadline, logs.

A harness is data: a profile names its command, environment, wire, deadline, workspace rules and role rules, so a new one is a
libsonnet file and no code. The runner makes the workspace from the task's `environment/` folder (Harbor's build context, less the
build files), binds it at the work directory, starts the command in the sandbox with the proxy's address and the execution's
key, and waits. How it ends is data: completed, failed or timeout. The workspace stays as the harness left it.

Placeholders in `command`, `env`, `stdin` and `home_files`: {instruction} {instruction_file} {model} {proxy_url} {base_url} {key}
{workspace} {harness_dir} {install_dir} {home} {python} {deadline_s}. `proxy_url` is `http://host:port/x/KEY` (the key as a path prefix),
`base_url` is what a client of the profile's wire calls its base URL: with `/v1` for the OpenAI wires, without for Anthropic's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gyre.rollout.profile import PLACEHOLDER, PLACEHOLDERS, HarnessProfile
from gyre.rollout.sandbox import Bind, Sandbox
from gyre.rollout.wires.registry import WIRES

BUILD_FILES = ("Dockerfile", ".dockerignore", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
"""Of `environment/`: they say how an image is built and are not part of the work directory."""


class HarnessResult(NamedTuple):
    """How one attempt of an execution ended."""

    status: str
    """completed, failed or timeout."""
    reason: str
    """One sentence for people."""
    started_at_s: float | None
    """When the harness was started; None where it never was."""
    finished_at_s: float
    """When it ended."""
    workspace: Path
    """The preserved workspace."""
    is_assessable: bool
    """False where the workspace never started."""


class HarnessRunner:
    """Runs one profile's harness, any number of executions at a time.

    One runner serves a run: `await runner.run(execution, attempt=1, proxy_url='http://127.0.0.1:4321', key='gk-…',
    workspace=run_dir / 'workspaces' / 'g000012-03' / '1')` starts the command with `base_url`
    `http://127.0.0.1:4321/x/gk-…/v1`, logs to `RUN/logs/g000012-03/attempt-1.out` and `.err`, and returns a `HarnessResult`.
    """

    def __init__(self, profile: HarnessProfile, *, run_dir: Path, sandbox: Sandbox, model: str = "policy") -> None:
        """Copy the profile's files into the run, so that what ran stays with it; homes that a killed life of the run left go."""
        self._profile = profile
        self._run_dir = run_dir
        shutil.rmtree(run_dir / "homes", ignore_errors=True)
        self._sandbox = sandbox
        self._model = model
        self._program_dir = run_dir / "harness" / profile.name
        self._program_dir.mkdir(parents=True, exist_ok=True)
        for source in profile.files:
            target = self._program_dir / source.name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)

    async def run(self, execution: Mapping[str, Any], *, attempt: int, proxy_url: str, key: str, workspace: Path) -> HarnessResult:
        """Run one attempt of an execution (a row of `execution.v1`) to its end.

        Args:
            execution: the row.
            attempt: number of the attempt, from 1.
            proxy_url: address of the proxy, `http://host:port`.
            key: the execution's key.
            workspace: folder that becomes the workspace; what an earlier try left there is removed.
        """
        config = json.loads(execution["config"] or "{}")
        home = self._run_dir / "homes" / f"{execution['execution_id']}-{attempt}"
        try:
            await asyncio.to_thread(make_workspace, Path(execution["task_path"]), workspace)
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            (home / "instruction.md").write_text(execution["instruction"], encoding="utf-8")
        except (OSError, shutil.Error) as error:
            return HarnessResult("failed", f"the workspace could not be made: {error}", None, time.time(), workspace, False)
        try:
            return await self._run_in(home, workspace, execution, attempt, config, proxy_url, key)
        except OSError as error:
            return HarnessResult("failed", f"the harness could not be run: {error}", None, time.time(), workspace, True)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    async def _run_in(
        self,
        home: Path,
        workspace: Path,
        execution: Mapping[str, Any],
        attempt: int,
        config: Mapping[str, Any],
        proxy_url: str,
        key: str,
    ) -> HarnessResult:
        profile, sandbox = self._profile, self._sandbox
        binds = {
            "app": Bind(source=workspace, target=config.get("workdir") or "/app", is_writable=True),
            "home": Bind(source=home, target="/home/agent", is_writable=True),
            "harness": Bind(source=self._program_dir, target="/harness"),
        }
        if profile.install is not None:
            binds["install"] = Bind(source=profile.install, target="/opt/harness")
        inside = {name: sandbox.inside(bind) for name, bind in binds.items()}
        deadline_s = profile.deadline_for(config.get("agent_timeout_s"))
        values = {
            "instruction": execution["instruction"],
            "instruction_file": f"{inside['home']}/instruction.md",
            "model": self._model,
            "proxy_url": f"{proxy_url}/x/{key}",
            "base_url": f"{proxy_url}/x/{key}{WIRES[profile.wire].base_path}",
            "key": key,
            "workspace": inside["app"],
            "harness_dir": inside["harness"],
            "install_dir": inside.get("install", ""),
            "home": inside["home"],
            "python": sandbox.python,
            "deadline_s": f"{deadline_s:g}",
        }
        assert values.keys() == set(PLACEHOLDERS), "profiles are checked against the placeholders that are filled in"
        for name, text in profile.home_files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fill(text, values), encoding="utf-8")
        if profile.stdin is not None:
            (home / ".stdin").write_text(fill(profile.stdin, values), encoding="utf-8")
        logs = self._run_dir / "logs" / execution["execution_id"]
        logs.mkdir(parents=True, exist_ok=True)
        started_at_s = time.time()
        end = await sandbox.run(
            [fill(word, values) for word in profile.command],
            env={"HOME": inside["home"], **{k: fill(v, values) for k, v in profile.env.items()}},
            binds=[*binds.values(), *(Bind(source=Path(p), target=p) for p in profile.host_paths)],
            cwd=binds["app"],
            deadline_s=deadline_s,
            stdout=logs / f"attempt-{attempt}.out",
            stderr=logs / f"attempt-{attempt}.err",
            stdin=home / ".stdin" if profile.stdin is not None else None,
            network=True,
        )
        now_s = time.time()
        if not end.is_started:
            return HarnessResult("failed", f"the harness did not start: {end.reason}", None, now_s, workspace, True)
        if end.is_timeout:
            return HarnessResult("timeout", f"the harness was {end.reason}", started_at_s, now_s, workspace, True)
        status = "completed" if end.exit_code in profile.success_exit_codes else "failed"
        return HarnessResult(status, f"the harness ended with {end.reason}", started_at_s, now_s, workspace, True)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in for the placeholders that are known; other braces stay as they are."""
    return PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def make_workspace(task_path: Path, workspace: Path) -> None:
    """Make a workspace with a task's starting files; an earlier one at the same place is removed."""
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.parent.mkdir(parents=True, exist_ok=True)
    start = task_path / "environment"
    if not start.is_dir():
        workspace.mkdir()
        return

    def leave_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name in BUILD_FILES} if Path(folder) == start else set()

    shutil.copytree(start, workspace, symlinks=True, ignore=leave_out)


def artifact_version(workspace: Path) -> str:
    """Version of a workspace: a digest of the names, kinds and contents of all that is in it, in sorted order."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(workspace):
        folders.sort()
        for name in sorted([*folders, *names]):
            path = os.path.join(folder, name)
            digest.update(os.path.relpath(path, workspace).encode("utf-8", "surrogateescape") + b"\0" + _kind_and_content(path) + b"\0")
    return digest.hexdigest()[:16]


def _kind_and_content(path: str) -> bytes:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return b"link " + os.readlink(path).encode("utf-8", "surrogateescape")
        if stat.S_ISDIR(mode):
            return b"folder"
        if not stat.S_ISREG(mode):
            return b"neither"
        with open(path, "rb") as file:
            return b"file " + hashlib.file_digest(file, "sha256").digest()
    except OSError:  # an agent may take its own rights to a file away, or a process of its may still be at work
        return b"unreadable"
