"""Bring a killed run back to its last commit point.

The newest checkpoint decides: rows of steps after it are removed, rows that it promises and the process did not live to write are
added. Everything else is a replay with memory: every outstanding group is admitted again under its old version, the proxy passes on
executions whose harness had ended, the evaluation keeps designated assessments, and the draws of the selection are the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.ops.dispatch import execution_ids
from gyre.ops.harness_proxy import FINISHED
from gyre.records import Store
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.restore import RestoredExecution, RestoredGroup, RestoredState
from gyre.store.resume import StoredRun, forget_after, load_resume_state
from gyre.training.checkpoint import latest_checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeState:
    """Where a run stands."""

    version: int
    """Steps committed."""
    published_version: int
    """Newest version that every engine had confirmed."""
    num_consumed_groups: int
    """Groups of committed steps."""
    outstanding: tuple[RestoredGroup, ...]
    """Every other admitted group, in order of admission."""
    executions: Sequence[Mapping[str, Any]]
    """Rows of the `executions` table."""

    def scheduler_state(self) -> RestoredState:
        """What the scheduler needs of it."""
        return RestoredState(
            version=self.version,
            published_version=self.published_version,
            num_consumed_groups=self.num_consumed_groups,
            groups=self.outstanding,
        )


def reconcile(run_dir: Path, store: Store, config: SchedulerConfig) -> ResumeState:
    """Make the tables agree with the newest checkpoint and read the run's state out of them. Repeating it changes nothing."""
    checkpoint = latest_checkpoint(run_dir)
    version = checkpoint.version if checkpoint else 0
    forget_after(run_dir, version)
    stored = load_resume_state(run_dir)
    if checkpoint is not None and version > 0:
        _add_promised_rows(store, stored, checkpoint.state, version)
        stored = load_resume_state(run_dir)
    published = store.read("events", where="kind = 'published'").column("detail").to_pylist()
    return ResumeState(
        version=version,
        published_version=max((_version_of(detail) for detail in published), default=0),
        num_consumed_groups=len(stored.consumption),
        outstanding=_outstanding(stored, config),
        executions=list(stored.executions.values()),
    )


def _version_of(detail: str) -> int:
    return int(json.loads(detail)["version"])


def _add_promised_rows(store: Store, stored: StoredRun, state: Mapping[str, Any], version: int) -> None:
    known = [row for row in stored.consumption.values() if row["step_version"] == version]
    missing = [row for row in state["consumption"] if row["group_id"] not in {k["group_id"] for k in known}]
    if missing:
        store.append("consumption", missing)
    if all(row["version"] != version for row in stored.steps):
        store.append("steps", [state["step"]])
    noted = store.read("events", where="kind = 'updated'").column("detail").to_pylist()
    if version not in map(_version_of, noted):
        cells = {"version": version, "cells": state["step"]["cells"]}
        store.append("events", [{"time_s": time.time(), "kind": "updated", "cell": 0, "detail": json.dumps(cells)}])


def _outstanding(stored: StoredRun, config: SchedulerConfig) -> tuple[RestoredGroup, ...]:
    groups = []
    for group_id, members in stored.groups.items():
        if group_id in stored.consumption:
            continue
        by_id = {row["execution_id"]: row for row in members}
        index = members[0]["group_index"]
        listed = execution_ids(index, config.executions_per_group)
        groups.append(
            RestoredGroup(
                group_id=group_id,
                group_index=index,
                version=members[0]["dispatch_version"],
                executions=tuple(_restored(e, by_id.get(e), is_valid=stored.designated.get(e, {}).get("valid", False)) for e in listed),
                # The evaluation tells again when the group is ready: it has the outcomes.
                is_ready=False,
            )
        )
    return tuple(sorted(groups, key=lambda group: group.group_index))


def _restored(execution_id: str, row: Mapping[str, Any] | None, *, is_valid: bool) -> RestoredExecution:
    if row is None:
        return RestoredExecution(execution_id=execution_id, status="queued", attempts=0)
    status = "closed" if row["status"] in FINISHED else "running" if row["status"] == "running" else "queued"
    return RestoredExecution(execution_id=execution_id, status=status, attempts=row["attempts"], is_valid=is_valid)
