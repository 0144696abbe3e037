"""The settings of a run that its tables are read with, from `RUN/spec.json`.

`spec.json` keeps every setting with its default filled in, by node name; here they are found by operator. A run without the file
(one that a test or a person put together) has only what its tables say: every setting is then None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gyre.errors import StoreError
from gyre.scheduler.config import cell_engine, standalone_engine

SPEC_FILE = "spec.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a reader of the tables needs to know of the pipeline."""

    steps: int | None = None
    """Optimizer updates of the run; None: open, or not known."""
    groups_per_step: int | None = None
    """B; None: not known."""
    group_size: int | None = None
    """N, without oversampling; None: not known."""
    oversample: int = 0
    """Executions admitted per group beyond N."""
    is_horizon_closed: bool = True
    """True where a run of S steps admits exactly S·B groups."""
    is_trained: bool = True
    """False for an evaluation without training."""
    policy: str | None = None
    """Scheduling policy: elastic, async or colocate; None: not known."""
    temperature: float = 1.0
    """Sampling temperature of the rollouts."""
    j_max: int | None = None
    """Most trajectories per execution; None: all."""
    role_order: tuple[str, ...] = ("main", "main-summary", "sub-agent", "sub-agent-summary")
    """Roles that may train, by falling priority."""
    normalize_std: bool = True
    """True where advantages are divided by the group's standard deviation."""
    keeps_spans: bool = False
    """True where trajectories are stored as spans."""
    cell_places: tuple[int, ...] | None = None
    """Executions that each cell's engine serves at a time; None: not known."""
    standalone_places: int = 0
    """Executions that all standalone engines serve at a time."""
    engines: frozenset[str] | None = None
    """Names of all engines; None: not known."""


def read_settings(run_dir: Path) -> RunSettings:
    """Read the settings of a run.

    Raises:
        StoreError: `spec.json` is there and is not what a run writes.
    """
    path = run_dir / SPEC_FILE
    if not path.exists():
        return RunSettings()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        nodes: dict[str, Any] = document["pipeline"]["ops"]
        by_op = {node["op"]: node.get("args", {}) | document.get("settings", {}).get(name, {}) for name, node in nodes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is not the document of a run ({error!r}); restore it from a copy") from error
    kept = (document["pipeline"].get("resources") or {}).get("store") or {}
    places = _places_of((document.get("resources") or {}).get("cells") or {})
    return replace(_from_ops(by_op), keeps_spans=kept.get("trajectories") == "spans", **places)


def _places_of(cells: dict[str, Any]) -> dict[str, Any]:
    if not cells:
        return {}
    concurrency = cells["concurrency"]
    places = tuple(concurrency) if isinstance(concurrency, list) else (concurrency,) * cells["count"]
    names = [*map(cell_engine, range(len(places))), *map(standalone_engine, range(cells["standalone"]))]
    return {
        "cell_places": places,
        "standalone_places": cells["standalone"] * (cells["standalone_concurrency"] or places[0]),
        "engines": frozenset(names),
    }


def _from_ops(by_op: dict[str, dict[str, Any]]) -> RunSettings:
    dispatch, select = by_op.get("dispatch", {}), by_op.get("tree_select", {})
    unset = RunSettings()
    return RunSettings(
        steps=dispatch.get("steps"),
        groups_per_step=dispatch.get("groups_per_step"),
        group_size=dispatch.get("group_size"),
        oversample=dispatch.get("oversample", 0),
        is_horizon_closed=dispatch.get("horizon", "closed") == "closed",
        is_trained="train_cell" in by_op,
        policy=by_op.get("elastic", {}).get("policy"),
        temperature=by_op.get("harness_proxy", {}).get("temperature", unset.temperature),
        j_max=select.get("j_max"),
        role_order=tuple(select.get("role_order") or unset.role_order),
        normalize_std=select.get("normalize_std", unset.normalize_std),
    )
