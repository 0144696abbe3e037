"""Run directories: where a run goes, what it keeps of its pipeline, and whether it may go there.

A run directory belongs to one run: `spec.json` in it is the evaluated pipeline with versions and seed. A new run refuses a directory
that has one, `--resume` refuses one whose pipeline differs, and says what changed. Nothing is written here before that is settled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gyre.errors import UserError
from gyre.graph.plan import plan_pipeline
from gyre.graph.typed import TypedGraph

SPEC_FILE = "spec.json"
LEFT_BEFORE_THE_BEGINNING = frozenset({"lock", "log", "checkpoints", f".{SPEC_FILE}"})
"""What a run can leave that was killed before its `spec.json` was written: nothing that a new start does not write again."""
MOST_CHANGES_LISTED = 10
"""Differences a refusal lists before it stops."""


def default_run_dir(pipeline: str, *, now_utc: datetime) -> Path:
    """Where a run goes that was given no directory: `runs/<pipeline>/<UTC time>`."""
    return Path("runs") / pipeline / now_utc.strftime("%Y%m%dT%H%M%SZ")


def spec_document(graph: TypedGraph, *, versions: Mapping[str, str]) -> dict[str, Any]:
    """What a run keeps of its pipeline: the evaluated object, every setting with its default filled in, versions, seed."""
    plan, spec = plan_pipeline(graph), graph.spec
    settings = {node.name: dict(node.settings) for node in plan.nodes}
    seeds = [node.settings.get("seed") for node in plan.nodes if node.operator == "dispatch"]
    return {
        "pipeline": spec.document,
        "settings": settings,
        "resources": dict(plan.resources),
        "base_dir": str(spec.base_dir),
        "file": spec.path.name,
        "seed": seeds[0] if seeds else None,
        "versions": dict(versions),
    }


def check_run_dir(run_dir: Path, document: Mapping[str, Any], *, resume: bool) -> None:
    """Refuse a directory that a run must not go to.

    Raises:
        UserError: it already holds another run; or, with `resume`, it holds none, or one of another pipeline. A run that was
            killed before it began is no other: it is started again.
    """
    kept = run_dir / SPEC_FILE
    if not resume:
        if kept.exists():
            hint = "choose another --run-dir, or continue it with --resume"
            raise UserError(f"{run_dir} already holds a run", hint=hint)
        if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
            raise UserError(f"{run_dir} is not an empty directory", hint="choose another --run-dir")
        return
    if not has_begun(run_dir) and "lock" in (found := _names_in(run_dir)) and found <= LEFT_BEFORE_THE_BEGINNING:
        return
    if not has_begun(run_dir):
        raise UserError(f"{run_dir} holds no run to resume", hint="give the --run-dir of an interrupted run")
    # Through JSON once, as the kept one went: tuples are lists there.
    changes = list(find_changes(read_kept(run_dir), json.loads(json.dumps(document))))
    if changes:
        shown = "; ".join(changes[:MOST_CHANGES_LISTED])
        more = f"; and {len(changes) - MOST_CHANGES_LISTED} more" if len(changes) > MOST_CHANGES_LISTED else ""
        hint = "resume with the pipeline and the --set values it was started with, or start a new run"
        raise UserError(f"the pipeline of {run_dir} changed: {shown}{more}", hint=hint)


def read_kept(run_dir: Path) -> dict[str, Any]:
    """What a run keeps of its pipeline.

    Raises:
        UserError: the directory holds no run, or something else stands in its `spec.json`.
    """
    kept = run_dir / SPEC_FILE
    try:
        document = json.loads(kept.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"{run_dir} holds no run: it has no {SPEC_FILE}", hint="give the directory that `gyre run` printed first and last"
        ) from None
    except ValueError as error:
        raise UserError(f"{kept} cannot be read: {error}", hint="restore it from a copy") from None
    return document


def has_begun(run_dir: Path) -> bool:
    """Tell whether a directory holds a run that got as far as writing what it keeps of its pipeline."""
    return (run_dir / SPEC_FILE).is_file()


def _names_in(run_dir: Path) -> set[str]:
    return {path.name for path in run_dir.iterdir()} if run_dir.is_dir() else set()


def find_changes(kept: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Name what differs between two run documents in the pipeline, or in a default it relies on; versions and places may differ."""
    yield from _differences("", kept.get("pipeline"), document["pipeline"])
    if kept.get("pipeline") == document["pipeline"]:
        for part in ("settings", "resources"):
            yield from _differences(f"default of {part}", kept.get(part), document[part])


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = f"{path}.{key}".lstrip(".")
            if key not in new:
                yield f"{place} is gone"
            elif key not in old:
                yield f"{place} is new"
            else:
                yield from _differences(place, old[key], new[key])
    elif old != new:
        yield f"{path} was {json.dumps(old)} and is {json.dumps(new)}"
