"""What a run's tables say when it is resumed: which executions are over, which are scored, which groups were trained.

The checkpoint is the one commit point of a step. So first the log is folded and everything that belongs to a step after the newest
checkpoint is removed (`forget_after`: trajectories of a step that was under way are selected again, with the same draws), then rows
that the checkpoint promises and the process did not live to write are added by the runtime, which knows them from the checkpoint.
Fed by `runtime/`, which holds the run's exclusive lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gyre.store.run_store import fold_log, read_table
from gyre.store.tables import delete_rows

STEP_COLUMNS: Mapping[str, str] = {
    "trajectories": "step_version",
    "trajectory_spans": "step_version",
    "steps": "version",
    "consumption": "step_version",
}
"""Tables whose rows belong to a step, with the column that names it."""

ORPHAN_WAIT_S = 30.0
"""How long a resumption waits for log files of processes that outlive their killed driver; Ray ends them within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The state of a run as its tables hold it."""

    executions: Mapping[str, dict[str, Any]]
    """Rows of `executions` by id, in order of admission."""
    designated: Mapping[str, dict[str, Any]]
    """The designated assessment of each execution that has one, by id."""
    consumption: Mapping[str, dict[str, Any]]
    """Rows of `consumption` by group id: the groups that were trained."""
    steps: tuple[dict[str, Any], ...]
    """Rows of `steps`, by version."""
    published_version: int
    """The newest version that an engine confirmed; 0 where none was published."""

    @property
    def version(self) -> int:
        """The version after the last committed step."""
        return self.steps[-1]["version"] if self.steps else 0

    @property
    def groups(self) -> dict[str, list[dict[str, Any]]]:
        """Executions of each group, in order of admission."""
        members: dict[str, list[dict[str, Any]]] = {}
        for row in self.executions.values():
            members.setdefault(row["group_id"], []).append(row)
        return members


def load_resume_state(run_dir: Path | str) -> StoredRun:
    """Read the state of a run out of its tables, log included; changes nothing."""
    executions = read_table(run_dir, "executions").sort_by([("group_index", "ascending"), ("execution_id", "ascending")])
    designated = read_table(run_dir, "assessments", where="designated")
    confirmed = read_table(run_dir, "publications", where="confirmed", columns=["version"])
    return StoredRun(
        executions={row["execution_id"]: row for row in executions.to_pylist()},
        designated={row["execution_id"]: row for row in designated.to_pylist()},
        consumption={row["group_id"]: row for row in read_table(run_dir, "consumption").to_pylist()},
        steps=tuple(read_table(run_dir, "steps").sort_by("version").to_pylist()),
        published_version=max(confirmed.column("version").to_pylist(), default=0),
    )


def forget_after(run_dir: Path | str, version: int, *, wait_s: float = ORPHAN_WAIT_S) -> dict[str, int]:
    """Fold the log and remove every row of steps after `version`, the newest checkpoint's; returns the rows removed per table.

    Needs the run's exclusive lock. Repeating it changes nothing.
    """
    run_dir = Path(run_dir)
    fold_log(run_dir, wait_s=wait_s)
    return {table: delete_rows(run_dir, table, f"{column} > {version}") for table, column in STEP_COLUMNS.items()}


def calls_of(run_dir: Path | str, execution_id: str, attempt: int) -> pa.Table:
    """The nodes of one execution's tree, in node order."""
    where = f"execution_id = '{execution_id}' AND attempt = {attempt}"
    return read_table(run_dir, "calls", where=where).sort_by("node_id")


def trajectories_of_step(run_dir: Path | str, version: int) -> pa.Table:
    """The trajectories that the step making `version` trains on."""
    return read_table(run_dir, "trajectories", where=f"step_version = {version}")
