"""`gyre verify`: recompute from a run's tables what gyre promises, and name every row that contradicts it.

Works on finished, interrupted and running runs; what an interruption may leave open is not held against it. Each check is a function of
`gyre/store/checks/` from the tables to breaches. With a way to recompute log-probabilities and with checkpoints, the behaviour
log-probabilities of all targets are compared with the trainer's under each span's version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre.store.checks.admission import (
    check_counters,
    check_dispatch_versions,
    check_executions,
    check_groups,
    check_publications,
)
from gyre.store.checks.batches import check_assessments, check_consumption, check_steps
from gyre.store.checks.cells import check_event_rows, check_places, check_roles, check_step_events
from gyre.store.checks.data import CLOSED, Breach, RunData, load_run
from gyre.store.checks.logprobs import Recompute, compare_logprobs
from gyre.store.checks.targets import check_advantages, check_contexts_and_targets, check_membership
from gyre.store.checks.trees import check_calls, check_trees
from gyre.store.query import require_run

CHECKS: Mapping[str, Callable[[RunData], Iterator[Breach]]] = {
    "each execution lives once, f <= p <= d": check_executions,
    "groups share query and v_d": check_groups,
    "d = p = f at the end": check_counters,
    "v_d is what was published": check_dispatch_versions,
    "publications are confirmed": check_publications,
    "one designated assessment each": check_assessments,
    "every group in exactly one step": check_consumption,
    "versions without a gap, figures of steps": check_steps,
    "events hold together": check_event_rows,
    "cells change roles in turn": check_roles,
    "engines in rollout have a place for all that runs": check_places,
    "updates and joins were noted": check_step_events,
    "trees hold together": check_trees,
    "calls hold together": check_calls,
    "trajectories belong to their step": check_membership,
    "contexts, disjoint targets, provenance, one log-probability each": check_contexts_and_targets,
    "advantages follow from rewards": check_advantages,
}
"""Every check, by what it shows when it finds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found."""

    breaches: tuple[Breach, ...]
    """Rows that contradict a promise."""
    checks: Mapping[str, int]
    """Breaches per check."""
    figures: Mapping[str, float]
    """What was counted and measured."""
    event_kinds: Mapping[str, int]
    """Events of each kind."""
    notes: tuple[str, ...]
    """What could not be checked, and why."""

    @property
    def is_ok(self) -> bool:
        """True where nothing was found."""
        return not self.breaches

    def to_json(self) -> dict[str, object]:
        """The report as one JSON document."""
        return {
            "ok": self.is_ok,
            "breaches": [breach._asdict() for breach in self.breaches],
            "checks": dict(self.checks),
            "figures": dict(self.figures),
            "events": dict(self.event_kinds),
            "notes": list(self.notes),
        }


def verify(run: Path | str, *, recompute: Recompute | None = None, most_per_version: int | None = None) -> VerifyReport:
    """Check a run.

    Args:
        run: the run's directory.
        recompute: computes log-probabilities with a checkpoint; None leaves that check out.
        most_per_version: recompute this many trajectories per version, drawn at random; None: all.

    Raises:
        UserError: there is no run.
        StoreError: a table cannot be read.
    """
    data = load_run(require_run(run))
    found = {name: list(check(data)) for name, check in CHECKS.items()}
    figures, notes = count_run(data), []
    if recompute is not None and not any(found.values()):
        compared = compare_logprobs(data, recompute, most_per_version=most_per_version)
        found["behaviour log-probabilities agree with the trainer's"] = compared.breaches
        figures |= compared.figures
        notes += compared.notes
    elif recompute is not None:
        notes.append("log-probabilities were not recomputed, since the tables contradict each other already")
    return VerifyReport(
        breaches=tuple(breach for breaches in found.values() for breach in breaches),
        checks={name: len(breaches) for name, breaches in found.items()},
        figures=figures,
        event_kinds=dict(sorted(Counter(row["kind"] for row in data.events).items())),
        notes=tuple(notes),
    )


def count_run(data: RunData) -> dict[str, float]:
    """The counters of a run and the means that people look at."""
    closed = sum(row["status"] in CLOSED for row in data.executions)
    launched = sum(row["status"] in CLOSED or row["status"] == "running" for row in data.executions)
    sampled = [node for node in data.calls if node.row["provenance"] == "policy"]
    staleness = [row["v_t"] - row["v_d"] for row in data.consumption]
    return {
        "d": len(data.executions),
        "p": launched,
        "f": closed,
        "groups": len(data.groups),
        "consumed_groups": len(data.consumption),
        "steps": len(data.steps),
        "calls": len(data.calls),
        "trajectories": len(data.trajectories),
        "targets": int(sum(trajectory.target_mask.sum() for trajectory in data.committed)),
        "staleness_mean": sum(staleness) / len(staleness) if staleness else 0.0,
        "mixed_share": sum(len(node.output_ids) for node in sampled if node.is_mixed) / max(sum(len(n.output_ids) for n in sampled), 1),
    }
