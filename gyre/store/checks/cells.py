"""Checks of what cells did (semantics.md, section 3): table `events`, against `steps`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gyre.store.checks.data import Breach, RunData, parse_detail

EVENT_KINDS = (
    "dispatched", "to_training", "to_rollout", "joined", "core_retained", "window_closed", "updated", "published", "rerouted",
    "discarded_output", "quarantined", "engine_down", "engine_up", "cell_lost", "resumed",
)  # fmt: skip
"""Kinds that every reader may rely on; a run may have more."""


def check_event_rows(data: RunData) -> Iterator[Breach]:
    """Check each event by itself."""
    for row in data.events:
        key = f"{row['kind']} at {row['time_s']:.3f}"
        if not row["kind"] or not math.isfinite(row["time_s"]) or row["cell"] < -1:
            yield Breach("events", key, "is no event: it lacks a kind or a time, or names a cell that cannot be")
        if parse_detail(row["detail"]) is None:
            yield Breach("events", key, "has a detail that is not a JSON object")


def check_roles(data: RunData) -> Iterator[Breach]:
    """Check that each cell leaves rollout and comes back in turn, and joins a batch only while it is in training."""
    in_training: set[int] = set()
    for row in sorted(data.events, key=lambda row: row["time_s"]):
        kind, cell = row["kind"], row["cell"]
        key = f"{kind} of cell {cell} at {row['time_s']:.3f}"
        if kind == "resumed":
            in_training.clear()
        elif kind == "cell_lost":
            in_training.discard(cell)
        elif kind == "to_training":
            if cell in in_training:
                yield Breach("events", key, "sends a cell to training that is there already")
            in_training.add(cell)
        elif kind == "to_rollout":
            if cell not in in_training:
                yield Breach("events", key, "sends a cell to rollout that is there already")
            in_training.discard(cell)
        elif kind == "joined" and cell not in in_training:
            yield Breach("events", key, "lets a cell join a batch that is not in training")


def check_places(data: RunData) -> Iterator[Breach]:
    """Check that no more executions ran at any time than the engines in rollout had places for."""
    cells = data.settings.cell_places
    if cells is None:
        return
    # At one instant places come free before they are taken.
    changes = [(row["finished_at_s"], 0, "finished", row["execution_id"]) for row in data.executions if _has_run(row) and _has_ended(row)]
    changes += [(row["launched_at_s"], 2, "launched", row["execution_id"]) for row in data.executions if _has_run(row)]
    changes += [(row["time_s"], 1, row["kind"], row["cell"]) for row in data.events if row["kind"] in _ROLE_EVENTS]
    running, away = 0, set[int]()
    changes = [change for change in changes if change[0] <= data.read_at_s]
    for time_s, _, kind, subject in sorted(changes, key=lambda change: change[:2]):
        running += {"launched": 1, "finished": -1}.get(kind, 0)
        if kind == "resumed":
            away.clear()
        elif kind in ("to_training", "cell_lost"):
            away.add(subject)
        elif kind == "to_rollout":
            away.discard(subject)
        places = data.settings.standalone_places + sum(count for cell, count in enumerate(cells) if cell not in away)
        if running > places and kind == "launched":
            yield Breach("executions", subject, f"is one of {running} that run at once, but the engines in rollout have {places} places")
        elif running > places and kind == "to_training":
            key = f"to_training of cell {subject} at {time_s:.3f}"
            yield Breach("events", key, f"leaves {places} places for {running} executions that run")


_ROLE_EVENTS = ("to_training", "to_rollout", "cell_lost", "resumed")


def _has_run(row: Mapping[str, Any]) -> bool:
    return row["launched_at_s"] is not None


def _has_ended(row: Mapping[str, Any]) -> bool:
    return row["finished_at_s"] is not None


def check_step_events(data: RunData) -> Iterator[Breach]:
    """Check that each committed step was noted as updated once, and that its satellites had joined by then."""
    updated = Counter(detail["version"] for _, detail in data.events_of("updated") if "version" in detail)
    versions = {row["version"] for row in data.steps}
    for version in sorted(updated.keys() - versions - ({data.version + 1} if not data.is_finished else set())):
        yield Breach("events", f"updated {version}", "names a version that no step made")
    if not data.was_resumed:
        # The newest may just have been committed.
        for version in sorted(versions - updated.keys() - {data.version} if updated else ()):
            yield Breach("events", f"updated {version}", "is missing, although that step was committed")
        for version, count in updated.items():
            if count > 1:
                yield Breach("events", f"updated {version}", f"stands {count} times")
        yield from _joins(data)


def _joins(data: RunData) -> Iterator[Breach]:
    if data.settings.policy not in (None, "elastic"):
        return
    joins = [(row["cell"], row["time_s"]) for row, _ in data.events_of("joined")]
    leaves = [(row["cell"], row["time_s"]) for row, _ in data.events_of("to_training")]
    for step in data.steps:
        for cell in step["cells"][1:]:
            began_s = max((t for c, t in leaves if c == cell and t <= step["time_s"]), default=None)
            if began_s is None or not any(c == cell and began_s <= t <= step["time_s"] for c, t in joins):
                yield Breach("steps", f"version {step['version']}", f"counts cell {cell}, which had not joined (no 'joined' event)")
