"""A run's tables in the form in which `gyre verify` checks them: rows by what they belong to, token lists as numpy arrays.

Everything is read once, log included. Reading judges nothing: rows that contradict each other are all here. Of a run that goes on
meanwhile, what a row stands on is read after it, and rows that are newer than the reading are left out: tables are read one by one.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gyre.store.run_store import read_table
from gyre.store.settings import RunSettings, read_settings

CLOSED = ("completed", "failed", "timeout", "cancelled")
"""Statuses of an execution that is over."""
READING_ORDER = ("steps", "events", "publications", "consumption", "trajectories", "calls", "assessments", "executions")
"""Later tables have what rows of earlier ones stand on."""
MIXED_MARK = '"versions":"mixed"'
"""What the proxy writes into `sampling` of a call whose version spans are not known exactly."""


class Breach(NamedTuple):
    """One row of the store that contradicts what gyre promises."""

    table: str
    """Table of the row."""
    key: str
    """The row, by its own ids."""
    sentence: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """One row of `calls`."""

    row: Mapping[str, Any]
    """Its columns without the token lists."""
    input_ids: np.ndarray
    """New input tokens."""
    output_ids: np.ndarray
    """Sampled tokens."""
    logprobs: np.ndarray
    """One behaviour log-probability per sampled token; NaN where null."""
    is_mixed: bool
    """True where the engine could not say which versions sampled which tokens, so that none of them may train."""

    @property
    def key(self) -> str:
        """The row as a breach names it."""
        return f"{self.row['execution_id']} attempt {self.row['attempt']} node {self.row['node_id']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """One row of `trajectories`."""

    row: Mapping[str, Any]
    """Its columns without the token lists."""
    input_ids: np.ndarray
    """All tokens of the path."""
    target_mask: np.ndarray
    """True where token t is a target."""
    logprobs: np.ndarray
    """Behaviour log-probability of token t; NaN where null."""

    @property
    def key(self) -> str:
        """The row as a breach names it."""
        return str(self.row["trajectory_id"])


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All tables of a run."""

    run_dir: Path
    settings: RunSettings
    executions: Sequence[Mapping[str, Any]]
    assessments: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]]
    consumption: Sequence[Mapping[str, Any]]
    publications: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    calls: Sequence[CallNode]
    trajectories: Sequence[TrajectoryRow]
    read_at_s: float
    """When the reading began: what the rows of a run that goes on say of later moments is incomplete."""

    @cached_property
    def execution(self) -> dict[str, Mapping[str, Any]]:
        """Rows of `executions` by id."""
        return {row["execution_id"]: row for row in self.executions}

    @cached_property
    def groups(self) -> dict[str, list[Mapping[str, Any]]]:
        """Rows of `executions` by group."""
        return _grouped(self.executions, lambda row: row["group_id"])

    @cached_property
    def designated(self) -> dict[str, list[Mapping[str, Any]]]:
        """Designated assessments by execution."""
        return _grouped([row for row in self.assessments if row["designated"]], lambda row: row["execution_id"])

    @cached_property
    def rewards(self) -> dict[str, float | None]:
        """Reward of each execution: the score of its one valid designated assessment; None where it has none."""
        found = {name: rows[0] for name, rows in self.designated.items()}
        return {
            row["execution_id"]: _score(found.get(row["execution_id"])) if row["status"] != "cancelled" else None for row in self.executions
        }

    @cached_property
    def trees(self) -> dict[tuple[str, int], list[CallNode]]:
        """Nodes by execution and attempt, in node order."""
        trees = _grouped(self.calls, lambda node: (node.row["execution_id"], node.row["attempt"]))
        return {key: sorted(nodes, key=lambda node: node.row["node_id"]) for key, nodes in trees.items()}

    @cached_property
    def consumed_in(self) -> dict[str, int]:
        """The step that consumed each group."""
        return {row["group_id"]: row["step_version"] for row in self.consumption}

    @cached_property
    def committed(self) -> list[TrajectoryRow]:
        """Trajectories of steps that were committed; those of a step that an interruption cut off are drawn again."""
        return [trajectory for trajectory in self.trajectories if trajectory.row["step_version"] <= self.version]

    @cached_property
    def details(self) -> list[Mapping[str, Any]]:
        """The detail of each event, in the order of `events`; empty where it is not a JSON object."""
        return [parse_detail(row["detail"]) or {} for row in self.events]

    @cached_property
    def version(self) -> int:
        """The version after the last committed step."""
        return max((row["version"] for row in self.steps), default=0)

    @cached_property
    def was_resumed(self) -> bool:
        """True where the run was interrupted at least once: events around that moment may be missing or stand twice."""
        return any(row["kind"] == "resumed" for row in self.events)

    @cached_property
    def is_finished(self) -> bool:
        """True where the run did all that its pipeline asks for."""
        wanted = self.settings.steps
        if not self.settings.is_trained:
            return False
        return wanted is not None and self.version >= wanted and self.settings.is_horizon_closed

    def events_of(self, kind: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Rows of one kind of event with their details, in time order."""
        found = [(row, detail) for row, detail in zip(self.events, self.details, strict=True) if row["kind"] == kind]
        return sorted(found, key=lambda pair: pair[0]["time_s"])


def load_run(run_dir: Path) -> RunData:
    """Read all tables of a run."""
    return _load(run_dir, {})


def load_execution(run_dir: Path, execution_id: str) -> RunData:
    """Read what the tables have of one execution, and nothing that is not about it."""
    name = execution_id.replace("'", "''")
    of_it, of_its_group = f"execution_id = '{name}'", f"group_id = '{name.rpartition('-')[0]}'"
    conditions = dict.fromkeys(("executions", "assessments", "calls", "trajectories"), of_it)
    return _load(run_dir, conditions | {"consumption": of_its_group, "steps": "false", "publications": "false", "events": "false"})


def _load(run_dir: Path, where: Mapping[str, str]) -> RunData:
    read_at_s = time.time()
    tables = {name: read_table(run_dir, name, where=where.get(name)) for name in READING_ORDER}
    calls, trajectories = _call_nodes(tables.pop("calls")), _trajectory_rows(tables.pop("trajectories"))
    rows: dict[str, list[Mapping[str, Any]]] = {name: table.to_pylist() for name, table in tables.items()}
    if not where:
        went_on = read_table(run_dir, "steps", columns=["version"]).num_rows > len(rows["steps"])
        late = {row["group_id"] for row in rows["executions"] if row["dispatched_at_s"] > read_at_s}
        rows = _as_of(rows, read_at_s, late, went_on=went_on)
        calls = [node for node in calls if not node.row["finished_at_s"] > read_at_s]
        trajectories = [trajectory for trajectory in trajectories if trajectory.row["group_id"] not in late]
    return RunData(run_dir=run_dir, settings=read_settings(run_dir), calls=calls, trajectories=trajectories, read_at_s=read_at_s, **rows)


def _as_of(
    rows: Mapping[str, list[Mapping[str, Any]]], read_at_s: float, late: set[str], *, went_on: bool
) -> dict[str, list[Mapping[str, Any]]]:
    """Leave out what was written while the tables were read: groups admitted and assessments made, and steps that were committed."""
    found = dict(rows)
    found["executions"] = [row for row in rows["executions"] if row["group_id"] not in late]
    found["assessments"] = [row for row in rows["assessments"] if not row["created_at_s"] > read_at_s]
    if went_on:
        version = max((row["version"] for row in rows["steps"]), default=0)
        found["events"] = [row for row in rows["events"] if row["kind"] not in ("updated", "published") or _version_of(row) <= version]
        found["publications"] = [row for row in rows["publications"] if row["version"] <= version]
        found["consumption"] = [row for row in rows["consumption"] if row["step_version"] <= version]
    return found


def _version_of(event: Mapping[str, Any]) -> int:
    version = (parse_detail(event["detail"]) or {}).get("version")
    return version if isinstance(version, int) else 0


def parse_detail(text: str) -> Mapping[str, Any] | None:
    """Read an event's detail; None where it is not a JSON object."""
    try:
        detail = json.loads(text)
    except ValueError:
        return None
    return detail if isinstance(detail, dict) else None


def _score(assessment: Mapping[str, Any] | None) -> float | None:
    return assessment["score"] if assessment is not None and assessment["valid"] else None


def _grouped(rows: Any, key: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def _lists(table: pa.Table, name: str, dtype: type[np.generic]) -> list[np.ndarray]:
    # Chunk by chunk: together, the tokens of a large run are more than the 32-bit offsets of one list column can count.
    lists: list[np.ndarray] = []
    for chunk in table.column(name).chunks:
        values = chunk.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        lists += [values[start:end] for start, end in itertools.pairwise(chunk.offsets.to_numpy())]
    return lists


def _call_nodes(table: pa.Table) -> list[CallNode]:
    if not table.num_rows:
        return []
    rows = table.drop_columns(["input_ids", "output_ids", "output_logprobs", "message_digests", "sampling"]).to_pylist()
    inputs, outputs = _lists(table, "input_ids", np.int32), _lists(table, "output_ids", np.int32)
    logprobs = _lists(table, "output_logprobs", np.float32)
    mixed = [MIXED_MARK in sampling for sampling in table.column("sampling").to_pylist()]
    return [
        CallNode(row=row, input_ids=i, output_ids=o, logprobs=p, is_mixed=m)
        for row, i, o, p, m in zip(rows, inputs, outputs, logprobs, mixed, strict=True)
    ]


def _trajectory_rows(table: pa.Table) -> list[TrajectoryRow]:
    if not table.num_rows:
        return []
    rows = table.drop_columns(["input_ids", "target_mask", "behavior_logprobs"]).to_pylist()
    inputs, masks = _lists(table, "input_ids", np.int32), _lists(table, "target_mask", np.bool_)
    logprobs = _lists(table, "behavior_logprobs", np.float32)
    return [
        TrajectoryRow(row=row, input_ids=i, target_mask=m, logprobs=p) for row, i, m, p in zip(rows, inputs, masks, logprobs, strict=True)
    ]
