"""`read_tasks`: the queries of a pipeline, from folders in a published task format.

Feeds `dispatch`. Emits every task once, in the order of their names; who draws how often is `dispatch`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gyre.errors import Problem
from gyre.records import Batch, Task, op


def check(settings: Mapping[str, Any], base_dir: Path) -> Iterable[Problem]:
    """Say what is wrong with the tasks folder before a run starts."""
    from gyre.rollout.tasks import find_task_problems

    path = settings.get("path")
    found = find_task_problems(base_dir / path) if isinstance(path, str | Path) else []
    return [Problem("path", problem.message, problem.hint) for problem in found]


@op("read_tasks", check=check)
def read_tasks(*, path: Path, limit: int | None = None) -> Batch[Task]:
    """Read task folders (Harbor format).

    Args:
        path: a task folder, or a folder of task folders; relative to the pipeline's file.
        limit: take only the first so many tasks; None takes all.
    """
    from gyre.rollout.tasks import read_task_folder

    return Batch.of(Task, read_task_folder(path)[:limit])
