"""Run a task's own tests on a preserved workspace and read the score they write.

The tests see a *copy* of the workspace at the task's work directory, so that a later try starts from the same preserved state,
`/tests` read-only, and an empty `/logs/verifier`: whatever the agent left there is never looked at. The score is
`reward.txt` (one number), else `reward.json`: its `reward`, and where it names none the mean of its numbers. A score that was
written counts, however the tests ended afterwards (non-zero exit, deadline); none written, or not a finite number, is an invalid
assessment and may be tried again. Nothing here knows how the execution ended or how long it took.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gyre.rollout.sandbox import Bind, Sandbox

MAX_REWARD_BYTES = 1 << 16
"""A reward file is a number or a small object; more is not one."""


class Verdict(NamedTuple):
    """What the tests said of one artifact."""

    valid: bool
    """Whether there is a score."""
    score: float | None
    """None where not valid."""
    reason: str
    """One sentence for people."""


async def verify_workspace(
    task_path: Path,
    workspace: Path,
    *,
    deadline_s: float,
    sandbox: Sandbox,
    logs_dir: Path,
    workdir: str = "/app",
    env: Mapping[str, str] | None = None,
    network: bool = False,
) -> Verdict:
    """Score a workspace by the `tests/test.sh` of its task.

    Args:
        task_path: the task's folder.
        workspace: the preserved workspace; it is left as it is.
        deadline_s: seconds from now after which the tests are killed.
        sandbox: where they run.
        logs_dir: gets verifier.out, verifier.err and the folder `verifier` with what the tests wrote; cleared first.
        workdir: the work directory inside.
        env: more environment for the tests.
        network: whether the tests may use the network.
    """
    tests = task_path / "tests"
    if not (tests / "test.sh").is_file():
        return Verdict(False, None, f"the task at {task_path} has no tests/test.sh")
    if not workspace.is_dir():
        return Verdict(False, None, f"the preserved workspace {workspace} is gone")
    rewards = _clear_logs(logs_dir)
    with tempfile.TemporaryDirectory(prefix="gyre-verify-") as scratch:
        try:
            binds = await asyncio.to_thread(_lay_out, Path(scratch), tests=tests, workspace=workspace, rewards=rewards, workdir=workdir)
            if sandbox.name == "process":
                _localise_tests(binds)
        except (OSError, shutil.Error) as error:
            return Verdict(False, None, f"the workspace could not be copied for its tests: {error}")
        end = await sandbox.run(
            ["/bin/bash", f"{sandbox.inside(binds['tests'])}/test.sh"],
            env=dict(env or {}),
            binds=list(binds.values()),
            cwd=binds["app"],
            deadline_s=deadline_s,
            stdout=logs_dir / "verifier.out",
            stderr=logs_dir / "verifier.err",
            network=network,
        )
    found = read_reward(rewards)
    if found.valid:
        return found
    return Verdict(False, None, f"{found.reason} (tests/test.sh: {end.reason})")


def read_reward(folder: Path) -> Verdict:
    """Read the score from a `/logs/verifier` folder; a link is not followed, since tested code could have made it."""
    for name, parse in (("reward.txt", float), ("reward.json", _score_of_json)):
        try:
            text = _read_small(folder / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            return Verdict(False, None, f"{name} cannot be read: {error.strerror}")
        try:
            score = parse(text)
        except (ValueError, OverflowError, RecursionError):
            return Verdict(False, None, f"{name} holds {text[:40]!r}, which is no score")
        if not math.isfinite(score):
            return Verdict(False, None, f"{name} holds {text[:40]!r}, which is no score")
        return Verdict(True, score, f"{name} says {score:g}")
    return Verdict(False, None, "the tests wrote neither reward.txt nor reward.json")


def _score_of_json(text: str) -> float:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")
    numbers = {k: float(v) for k, v in document.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if "reward" in numbers:
        return numbers["reward"]
    if "reward" in document:  # the other numbers, a duration say, do not stand for it
        raise ValueError("its reward is no number")
    if not numbers:
        raise ValueError("no number")
    return math.fsum(numbers.values()) / len(numbers)


def _read_small(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(MAX_REWARD_BYTES).decode("utf-8", errors="replace").strip()


def _clear_logs(logs_dir: Path) -> Path:
    """Make the folder of one verification, empty; the earlier one is gone."""
    rewards = logs_dir / "verifier"
    shutil.rmtree(rewards, ignore_errors=True)
    rewards.mkdir(parents=True)
    for name in ("verifier.out", "verifier.err"):
        (logs_dir / name).unlink(missing_ok=True)
    return rewards


def _lay_out(scratch: Path, *, tests: Path, workspace: Path, rewards: Path, workdir: str) -> dict[str, Bind]:
    app = scratch / "app"
    copy_workspace(workspace, app)
    return {
        "app": Bind(source=app, target=workdir, is_writable=True),
        "tests": Bind(source=tests, target="/tests"),
        "logs": Bind(source=rewards, target="/logs/verifier", is_writable=True),
    }


def copy_workspace(source: Path, target: Path) -> None:
    """Copy a workspace; what is neither file, folder nor link (a pipe, say) is left out, or it could not be assessed."""

    def copy_file(src: str, dst: str) -> None:
        if not stat.S_ISREG(os.lstat(src).st_mode):
            return
        try:
            shutil.copy2(src, dst)
        except PermissionError:
            os.chmod(src, stat.S_IRUSR | os.lstat(src).st_mode)
            shutil.copy2(src, dst)

    shutil.copytree(source, target, symlinks=True, copy_function=copy_file)


def _localise_tests(binds: dict[str, Bind]) -> None:
    """Without a file tree of its own a script's `/app`, `/tests` and `/logs/verifier` mean nothing: write the real paths in.

    The tests are copied beside the workspace and their text files rewritten; published tasks run as they are, as long as they
    spell these paths out.
    """
    copy = binds["app"].source.parent / "tests"
    shutil.copytree(binds["tests"].source, copy, symlinks=True)
    binds["tests"] = Bind(source=copy, target="/tests")
    real = {bind.target: str(bind.source) for bind in binds.values()}
    spelled = "|".join(re.escape(target) for target in sorted(real, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./}}-])({spelled})(?![\w.-])")
    for path in copy.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        changed = pattern.sub(lambda match: real[match.group(1)], text)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
