"""Checks of dispatch and of the counters d, p, f (semantics.md, section 2): tables `executions` and `publications`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gyre.store.checks.data import CLOSED, Breach, RunData

OPEN = ("queued", "running")


def check_executions(data: RunData) -> Iterator[Breach]:
    """Check each execution by itself: its ids, its status, and 0 <= f <= p <= d at every instant of its life."""
    for name, count in Counter(row["execution_id"] for row in data.executions).items():
        if count > 1:
            yield Breach("executions", name, f"has {count} rows, so it would count more than once in d, p and f")
    for row in data.executions:
        name, index = row["execution_id"], row["group_index"]
        if row["group_id"] != f"g{index:06d}" or name.rpartition("-")[0] != row["group_id"]:
            yield Breach("executions", name, f"belongs to group {row['group_id']} at position {index}, which its id contradicts")
        for sentence in _life(row):
            yield Breach("executions", name, sentence)


def _life(row: Any) -> Iterator[str]:
    status, launched_at_s, finished_at_s = row["status"], row["launched_at_s"], row["finished_at_s"]
    if status not in OPEN + CLOSED:
        yield f"has the status {status!r}, which there is not"
        return
    if status in CLOSED and finished_at_s is None:
        yield f"is {status} but has no time of its end, so f misses it"
    if status in OPEN and finished_at_s is not None and row["attempts"] <= 1:
        yield f"is {status} but has a time of its end, so f counts it too early"
    if status in ("running", "completed", "timeout") and (launched_at_s is None or row["attempts"] < 1):
        yield f"is {status} but was never launched, so p misses it"
    if launched_at_s is not None and launched_at_s < row["dispatched_at_s"]:
        yield "was launched before it was dispatched, so p exceeds d for a while"
    if launched_at_s is not None and finished_at_s is not None and finished_at_s < launched_at_s and status in CLOSED:
        yield "ended before it was launched, so f exceeds p for a while"


def check_groups(data: RunData) -> Iterator[Breach]:
    """Check that a group's executions share query and v_d, that all are there, and that v_d never falls from group to group."""
    size = None if data.settings.group_size is None else data.settings.group_size + data.settings.oversample
    previous = 0
    for group_id, rows in sorted(data.groups.items(), key=lambda item: item[1][0]["group_index"]):
        for column in ("query_id", "dispatch_version", "group_index"):
            values = Counter(row[column] for row in rows)
            if len(values) > 1:
                common = values.most_common(1)[0][0]
                odd = next(row["execution_id"] for row in rows if row[column] != common)
                yield Breach("executions", odd, f"has another {column} than the rest of group {group_id}")
        if size is not None and len(rows) != size:
            yield Breach("executions", group_id, f"has {len(rows)} executions instead of {size}")
        if rows[0]["dispatch_version"] < previous:
            yield Breach("executions", group_id, f"has v_d {rows[0]['dispatch_version']}, but an earlier group has {previous}")
        previous = max(previous, rows[0]["dispatch_version"])


def check_counters(data: RunData) -> Iterator[Breach]:
    """Check that admissions have no gap, that a finished run has d = p = f, and that it admitted S·B groups."""
    indices = sorted({rows[0]["group_index"] for rows in data.groups.values()})
    if indices != list(range(len(indices))):
        missing = min(set(range(len(indices))) - set(indices))
        yield Breach("executions", f"g{missing:06d}", "is missing, although later groups were admitted")
    if data.is_finished:
        for row in data.executions:
            if row["status"] in OPEN:
                yield Breach("executions", row["execution_id"], f"is {row['status']} in a finished run, so d = p = f does not hold")
    steps, per_step = data.settings.steps, data.settings.groups_per_step
    if data.settings.is_horizon_closed and steps is not None and per_step is not None:
        wanted = steps * per_step
        if len(indices) > wanted or (data.is_finished and len(indices) < wanted):
            yield Breach("executions", "d", f"{len(indices)} groups were admitted, but {steps} steps take {wanted}")


def check_dispatch_versions(data: RunData) -> Iterator[Breach]:
    """Check each group's v_d: the version its dispatch was ordered under, published before the group was admitted."""
    ordered = {
        index: detail["version"]
        for _, detail in data.events_of("dispatched")
        if {"first_group_index", "num_groups", "version"} <= detail.keys()
        for index in range(detail["first_group_index"], detail["first_group_index"] + detail["num_groups"])
    }
    published_at_s: dict[int, float] = {0: float("-inf")}
    for row in data.publications:
        published_at_s[row["version"]] = min(row["time_s"], published_at_s.get(row["version"], row["time_s"]))
    for group_id, rows in data.groups.items():
        v_d, index = rows[0]["dispatch_version"], rows[0]["group_index"]
        if index in ordered and ordered[index] != v_d:
            yield Breach("executions", group_id, f"has v_d {v_d}, but was dispatched under version {ordered[index]}")
        if v_d not in published_at_s:
            yield Breach("executions", group_id, f"has v_d {v_d}, which was never published")
        elif published_at_s[v_d] > min(row["dispatched_at_s"] for row in rows):
            yield Breach("executions", group_id, f"was admitted before its v_d {v_d} was published")


def check_publications(data: RunData) -> Iterator[Breach]:
    """Check that only versions that steps made were published, and that each engine which has one ended with a confirmation."""
    last: dict[tuple[str, int], Any] = {}
    newest: dict[str, int] = {}
    for row in sorted(data.publications, key=lambda row: row["time_s"]):
        key = f"{row['engine']} version {row['version']}"
        if data.settings.engines is not None and row["engine"] not in data.settings.engines:
            yield Breach("publications", key, "names an engine that the pipeline does not have")
        if not 0 <= row["version"] <= data.version:
            yield Breach("publications", key, f"was published, but the newest version is {data.version}")
        if row["version"] < newest.get(row["engine"], 0):
            yield Breach("publications", key, f"came after version {newest[row['engine']]} of the same engine")
        newest[row["engine"]] = max(newest.get(row["engine"], 0), row["version"])
        last[row["engine"], row["version"]] = row
    for (engine, version), row in last.items():
        if not row["confirmed"] and newest[engine] == version and not _went_down(data, engine, row["time_s"]):
            yield Breach("publications", f"{engine} version {version}", "was sent to the engine but never confirmed by it")
    confirmed = {row["version"] for row in data.publications if row["confirmed"]}
    announced = {detail["version"] for _, detail in data.events_of("published") if "version" in detail}
    for version in sorted(announced - confirmed - {0}):
        yield Breach("publications", f"version {version}", "has a 'published' event, but no engine has confirmed it")
    if not data.was_resumed:
        # The newest is announced when its last engine has confirmed it.
        for version in sorted(confirmed - announced - {0, data.version}):
            yield Breach("events", f"published {version}", "is missing, although engines have confirmed that version")


def _went_down(data: RunData, engine: str, since_s: float) -> bool:
    kinds = ("engine_down", "cell_lost")
    return any(row["kind"] in kinds and row["time_s"] >= since_s and engine in row["detail"] for row in data.events)
