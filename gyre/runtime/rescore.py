"""`gyre rescore`: another scorer on the preserved workspaces of a run.

Its assessments are stored beside the designated ones, each with the artifact that it speaks of; the run's rewards stay what they are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from gyre.errors import RunError, UserError
from gyre.graph.registry import find_operator, look_beside
from gyre.graph.rundir import read_kept
from gyre.graph.settings import bind_settings
from gyre.ops.evaluate import ask_scorer, make_assessment
from gyre.ops.harness_proxy import FINISHED
from gyre.records import Batch, Task
from gyre.runtime.doors import BoundScorer
from gyre.runtime.wiring import RunningPipeline, build_scorer
from gyre.store.lock import RunLock
from gyre.store.run_store import RunStore

SHARED_COLUMNS = (
    "execution_id",
    "group_id",
    "query_id",
    "dispatch_version",
    "status",
    "workspace",
    "reason",
    "launched_at_s",
    "finished_at_s",
)
"""Columns that the executions table and a closed execution have in common."""


def rescore(run: Path, *, scorer: str, as_json: bool = False) -> int:
    """Score every closed execution of a run again and print the mean beside the designated one.

    Raises:
        UserError: there is no run, or no such scorer.
    """
    run = run.resolve()
    document = read_kept(run)
    base_dir = Path(document["base_dir"])
    look_beside(base_dir)
    store = RunStore(run, writer="rescore")
    closed = closed_executions(store, read_tasks_of(document))
    if not closed:
        raise UserError(f"{run} has no closed execution to score", hint="wait until a harness has ended")
    resources: Mapping[str, Any] = {"Store": store, "Pipeline": RunningPipeline(base_dir=base_dir, trains=False)}
    bound = BoundScorer(build_scorer(scorer, {}, resources, base_dir=base_dir))
    with RunLock(run) as lock:
        lock.acquire_shared()
        found = asyncio.run(_score_all(bound, scorer, closed))
        store.append("assessments", found)
        store.close()
    return _report(store, scorer, found, as_json)


def read_tasks_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Tasks of a run by query id, read again by the operators that read them."""
    base_dir = Path(document["base_dir"])
    tasks: dict[str, dict[str, Any]] = {}
    for node, declared in document["pipeline"]["ops"].items():
        operator = find_operator(declared["op"])
        if [port.record for port in operator.outputs.values()] != [Task] or operator.inputs:
            continue
        bound = bind_settings(node, document["settings"][node], operator.settings, base_dir=base_dir, owner=operator.name)
        read: Any = operator.target
        batch: Batch[Task] = read(**bound.values)
        tasks |= {row["query_id"]: row for row in batch.rows()}
    return tasks


def closed_executions(store: RunStore, tasks: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `closed_execution.v1` for every execution whose workspace was preserved."""
    designated = {row["execution_id"]: row for row in store.read("assessments", where="designated").to_pylist()}
    rows = []
    for row in store.read("executions").sort_by("execution_id").to_pylist():
        if row["status"] not in FINISHED or not row["workspace"] or row["query_id"] not in tasks:
            continue
        task = tasks[row["query_id"]]
        rows.append(
            {
                **{name: row[name] for name in SHARED_COLUMNS},
                "group_size": 1,
                "group_surplus": 0,
                "attempt": max(1, row["attempts"]),
                "task_path": task["task_path"],
                "config": task["config"],
                "artifact_version": designated.get(row["execution_id"], {}).get("artifact_version", ""),
                "assessable": (store.run_dir / row["workspace"]).is_dir(),
            }
        )
    return [row for row in rows if row["assessable"]]


async def _score_all(scorer: BoundScorer, name: str, closed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in track(closed, description=f"scoring with {name}", console=Console(stderr=True), transient=True):
        found += [{**a, "designated": False, "reason": f"{name}: {a['reason']}"} for a in await _ask(scorer, row)]
    if not found:
        raise RunError(f"scorer {name} answered for no execution")
    return found


async def _ask(scorer: BoundScorer, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask once; one that fails, as in a run, gives an invalid assessment."""
    answered, failure = await ask_scorer(scorer, row)
    return [make_assessment(row, valid=False, score=None, reason=failure, tries=1)] if failure else answered


def _report(store: RunStore, name: str, found: list[dict[str, Any]], as_json: bool) -> int:
    scores = [row["score"] for row in found if row["valid"] and row["score"] is not None]
    designated = store.read("assessments", where="designated and valid").column("score").to_pylist()
    result = {
        "scorer": name,
        "executions": len(found),
        "valid": len(scores),
        "score_mean": sum(scores) / len(scores) if scores else None,
        "designated_mean": sum(designated) / len(designated) if designated else None,
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        mean = "no valid score" if not scores else f"mean {result['score_mean']:.3f}"
        click.echo(f"{name}: {mean} over {len(scores)} of {len(found)} executions; designated mean {result['designated_mean'] or 0.0:.3f}")
    return 0
