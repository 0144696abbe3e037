"""Task folders in Harbor's published format, read into `task.v1` rows.

A path is one task (it holds `instruction.md`) or a folder of tasks, one sub-folder each, taken in the order of their names.
Of a task only `instruction.md` and `tests/test.sh` are required. `task.toml` gives limits, which travel in the row's `config`:
`agent_timeout_s`, `verifier_timeout_s`, `workdir`, `network`, and the `metadata` table as it is. What is wrong is found before
a run starts, all of it at once, each as a sentence with the place and the remedy.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from gyre.errors import Problem, SpecError

INSTRUCTION = "instruction.md"
TEST_ENTRY = "tests/test.sh"


class TaskProblem(NamedTuple):
    """What is wrong with a folder of tasks."""

    message: str
    """What is wrong, with the place."""
    hint: str
    """What to do about it."""


class _Reading(NamedTuple):
    rows: list[dict[str, Any]]
    problems: list[TaskProblem]


def read_task_folder(path: Path, *, setting: str = "path") -> list[dict[str, Any]]:
    """Read a task, or a folder of tasks, as `task.v1` rows.

    Args:
        path: the folder.
        setting: dotted path of the user's setting that named it, for the error.

    Raises:
        SpecError: with every problem of every task.
    """
    reading = _read(path)
    if reading.problems:
        raise SpecError([Problem(setting, message, hint) for message, hint in reading.problems])
    return reading.rows


def find_task_problems(path: Path) -> list[TaskProblem]:
    """Say what is wrong with a folder of tasks; empty where nothing is."""
    return _read(path).problems


def _read(path: Path) -> _Reading:
    if not path.is_dir():
        return _Reading([], [TaskProblem(f"there is no tasks folder {path}", "name a folder of Harbor tasks")])
    if (path / INSTRUCTION).is_file():
        folders = [path]
    else:
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
    if not folders:
        hint = f"each task is a sub-folder with {INSTRUCTION} and {TEST_ENTRY}"
        return _Reading([], [TaskProblem(f"the folder {path} holds no task", hint)])
    reading = _Reading([], [])
    for folder in folders:
        problems = _task_problems(folder)
        reading.problems.extend(problems)
        if not problems:
            reading.rows.append(_read_task(folder))
    return reading


def _task_problems(folder: Path) -> list[TaskProblem]:
    problems: list[TaskProblem] = []
    instruction, entry = folder / INSTRUCTION, folder / TEST_ENTRY
    if not instruction.is_file():
        problems.append(TaskProblem(f"task {folder.name} has no {INSTRUCTION}", f"write its instruction to {instruction}"))
    elif not _is_text(instruction):
        problems.append(TaskProblem(f"task {folder.name}: {INSTRUCTION} is not UTF-8 text", f"save {instruction} as UTF-8"))
    elif not instruction.read_text(encoding="utf-8").strip():
        problems.append(TaskProblem(f"task {folder.name} has an empty {INSTRUCTION}", "say what the agent shall do"))
    if not entry.is_file():
        hint = f"put a script that writes /logs/verifier/reward.txt at {entry}"
        problems.append(TaskProblem(f"task {folder.name} has no {TEST_ENTRY}", hint))
    try:
        _read_limits(folder)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        problems.append(TaskProblem(f"task {folder.name}: task.toml cannot be read: {error}", "correct the file"))
    return problems


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False


def _read_task(folder: Path) -> dict[str, Any]:
    return {
        "query_id": folder.name,
        "instruction": (folder / INSTRUCTION).read_text(encoding="utf-8"),
        "task_path": str(folder.resolve()),
        "config": json.dumps(_read_limits(folder), sort_keys=True),
    }


def _read_limits(folder: Path) -> dict[str, Any]:
    path = folder / "task.toml"
    document = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    agent, verifier, environment = (_table(document, name) for name in ("agent", "verifier", "environment"))
    return {
        "format": "harbor",
        "agent_timeout_s": _seconds(agent, "agent"),
        "verifier_timeout_s": _seconds(verifier, "verifier"),
        "verifier_env": {str(k): str(v) for k, v in _table(verifier, "env").items()},
        "workdir": _workdir(environment),
        "network": str(environment.get("network_mode", "")),
        "metadata": json.loads(json.dumps(_table(document, "metadata"), default=str)),
    }


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"[{name}] is {value!r}, not a table")
    return value


def _workdir(environment: dict[str, Any]) -> str:
    """Where the workspace is seen inside; the root would hide the system under it."""
    value = environment.get("workdir", "/app")
    if not isinstance(value, str) or not PurePosixPath(value).is_absolute() or PurePosixPath(value) == PurePosixPath("/"):
        raise ValueError(f"[environment] workdir is {value!r}, not the absolute path of a folder below /")
    return value


def _seconds(table: dict[str, Any], name: str) -> float | None:
    """The table's `timeout_sec`; None where it gives none."""
    value = table.get("timeout_sec")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"[{name}] timeout_sec is {value!r}, not a positive number of seconds")
    return float(value)
