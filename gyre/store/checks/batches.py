"""Checks of outcomes and training batches (semantics.md, sections 2, 4, 7): tables `assessments`, `consumption`, `steps`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.store.checks.data import CLOSED, Breach, RunData

TOLERANCE = 1e-9
"""Relative: means are recomputed in float64 from the same numbers, in another order."""


def check_assessments(data: RunData) -> Iterator[Breach]:
    """Check that a score stands exactly where an assessment is valid, and one designated row per closed execution."""
    for row in data.assessments:
        key = f"{row['execution_id']} attempt {row['attempt']} try {row['try']}"
        execution = data.execution.get(row["execution_id"])
        if execution is None:
            yield Breach("assessments", key, "is of an execution that was never dispatched")
        elif row["attempt"] > max(execution["attempts"], 1):
            yield Breach("assessments", key, f"is of an attempt that never was; there were {execution['attempts']}")
        if row["valid"] != (row["score"] is not None and math.isfinite(row["score"])):
            yield Breach("assessments", key, f"is {'valid' if row['valid'] else 'not valid'} with the score {row['score']}")
        if row["reason"] == "placeholder" and not (row["valid"] and row["score"] == 0):
            yield Breach("assessments", key, "is a placeholder, which is a valid 0, but says otherwise")
    for row in data.executions:
        designated = len(data.designated.get(row["execution_id"], ()))
        is_due = row["status"] in CLOSED and (data.is_finished or row["group_id"] in data.consumed_in)
        is_surplus = row["status"] == "cancelled" or data.settings.oversample > 0
        if designated > 1 or (is_due and designated == 0 and not is_surplus):
            yield Breach("assessments", row["execution_id"], f"has {designated} designated assessments; a closed execution has exactly one")


def check_consumption(data: RunData) -> Iterator[Breach]:
    """Check that every group is consumed by exactly one step, with its own v_d, v_t and outcomes."""
    for group_id, count in Counter(row["group_id"] for row in data.consumption).items():
        if count > 1:
            yield Breach("consumption", group_id, f"was consumed {count} times")
    for row in data.consumption:
        for sentence in _consumed(data, row):
            yield Breach("consumption", row["group_id"], sentence)
    if data.is_finished:
        for group_id in sorted(data.groups.keys() - data.consumed_in.keys()):
            yield Breach("consumption", group_id, "was never consumed, although the run is finished")


def _consumed(data: RunData, row: Mapping[str, Any]) -> Iterator[str]:
    members = data.groups.get(row["group_id"])
    if members is None:
        yield "was consumed but never admitted"
        return
    if row["v_t"] != row["step_version"] - 1:
        yield f"has v_t {row['v_t']}, but the step that consumed it made version {row['step_version']}"
    if row["v_d"] != members[0]["dispatch_version"]:
        yield f"has v_d {row['v_d']}, but was dispatched under version {members[0]['dispatch_version']}"
    if row["v_d"] > row["v_t"]:
        yield f"has a staleness below 0 (v_t {row['v_t']}, v_d {row['v_d']})"
    still_open = [member["execution_id"] for member in members if member["status"] not in CLOSED]
    if still_open and not data.settings.oversample:
        yield f"was consumed while {still_open[0]} is not closed"
    found = count_outcomes(data, row["group_id"])
    for name in ("valid", "unresolved", "placeholders", "cancelled"):
        if row[name] != found[name]:
            yield f"says {name} = {row[name]}, but its executions give {found[name]}"


def count_outcomes(data: RunData, group_id: str) -> dict[str, int]:
    """Count a group's outcomes; each execution has one, and a placeholder is a valid 0."""
    counts: dict[str, int] = {"valid": 0, "unresolved": 0, "placeholders": 0, "cancelled": 0}
    for member in data.groups[group_id]:
        assessment = next(iter(data.designated.get(member["execution_id"], ())), None)
        if assessment is None:
            counts["cancelled" if member["status"] == "cancelled" or data.settings.oversample else "unresolved"] += 1
        elif assessment["valid"]:
            counts["valid"] += 1
            counts["placeholders"] += assessment["reason"] == "placeholder"
        else:
            counts["cancelled" if assessment["reason"] == "cancelled" else "unresolved"] += 1
    return counts


def check_steps(data: RunData) -> Iterator[Breach]:
    """Check that versions follow each other without a gap and that each step's figures follow from its groups."""
    versions = sorted(row["version"] for row in data.steps)
    if versions != list(range(1, len(versions) + 1)):
        odd = next(got for want, got in enumerate(versions, start=1) if got != want)
        yield Breach("steps", f"version {odd}", "breaks the sequence of versions: each follows the one before, once")
    consumed: dict[int, list[str]] = defaultdict(list)
    for row in data.consumption:
        consumed[row["step_version"]].append(row["group_id"])
    for version in sorted(consumed.keys() - set(versions)):
        yield Breach("consumption", consumed[version][0], f"was consumed by the step of version {version}, which was never committed")
    targets: dict[int, int] = defaultdict(int)
    for trajectory in data.trajectories:
        targets[trajectory.row["step_version"]] += int(trajectory.target_mask.sum()) if trajectory.row["advantage"] else 0
    for row in data.steps:
        sentences = [*_groups_of_step(data, row, consumed[row["version"]]), *_figures_of_step(data, row, targets[row["version"]])]
        for sentence in sentences:
            yield Breach("steps", f"version {row['version']}", sentence)


def _groups_of_step(data: RunData, row: Mapping[str, Any], consumed: list[str]) -> Iterator[str]:
    if sorted(row["group_ids"]) != sorted(consumed):
        odd = sorted(set(row["group_ids"]) ^ set(consumed)) or sorted(row["group_ids"])
        yield f"lists other groups than `consumption` has for it ({odd[0]})"
    wanted = data.settings.groups_per_step
    if wanted is not None and len(row["group_ids"]) != wanted:
        yield f"has {len(row['group_ids'])} groups, but a step takes {wanted}"
    if not row["cells"] or len(set(row["cells"])) != len(row["cells"]) or any(cell < 0 for cell in row["cells"]):
        yield f"names the cells {row['cells']}, which is no list of cells"


def _figures_of_step(data: RunData, row: Mapping[str, Any], targets: int) -> Iterator[str]:
    members = [member for group_id in row["group_ids"] for member in data.groups.get(group_id, [])]
    rewards = [r for r in (data.rewards[member["execution_id"]] for member in members) if r is not None]
    stale = [row["version"] - 1 - data.groups[g][0]["dispatch_version"] for g in row["group_ids"] if g in data.groups]
    if row["executions"] != len(rewards):
        yield f"says |E| = {row['executions']}, but its groups have {len(rewards)} valid rewards"
    # Rows of an execution whose clip was fixed at 0 before its gradient need not be computed, hence not counted.
    if row["target_tokens"] > targets or (row["target_tokens"] < targets and row["clipped"] == 0):
        yield f"says {row['target_tokens']} target tokens, but its trajectories with an advantage have {targets}"
    if not _is_mean(row["reward_mean"], rewards):
        yield f"says a mean reward of {row['reward_mean']}, but its valid rewards give {_mean(rewards)}"
    if not _is_mean(row["staleness_mean"], stale):
        yield f"says a mean staleness of {row['staleness_mean']}, but its groups give {_mean(stale)}"
    for name in ("loss", "grad_norm", "duration_s"):
        if not math.isfinite(row[name]) or (row[name] < 0 and name != "loss"):
            yield f"has the {name} {row[name]}"


def _mean(values: list[Any]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _is_mean(value: float | None, values: list[Any]) -> bool:
    mean = _mean(values)
    if value is None or mean is None:
        return value is None and mean is None
    return math.isclose(value, mean, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
