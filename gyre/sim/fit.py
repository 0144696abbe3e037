"""The workload of a finished run, read off its tables: `gyre simulate P --from RUN`.

Lengths are durations with the share of load and of contention taken out: both slow an execution down while others run, and are found
together, as the pair under which executions of one query differ least. Queries' spread, executions' spread around them, evaluation,
training per execution, commit, broadcast, publication and switches are means or medians of what the tables say. What a run does not
show (a deadline that nobody reached, switches of a fixed split) stays as the pipeline's own workload has it. Surplus executions and times
in which the run was interrupted say nothing.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyre.errors import UserError
from gyre.graph.plan import Plan, plan_pipeline
from gyre.graph.registry import look_beside
from gyre.graph.rundir import SPEC_FILE, read_kept
from gyre.graph.spec import Spec, read_document
from gyre.graph.typed import build_graph
from gyre.graph.workload import WorkloadSettings

Floats = NDArray[np.float64]
FINISHED = ("completed", "failed", "timeout")
SURPLUS = "cancelled"
"""Reason of the designated assessment of an execution whose group had enough valid outcomes, also where its harness had ended by itself."""
LOAD_SHARES = np.linspace(0.0, 0.8, 9)
CONTENTIONS = np.linspace(0.0, 1.0, 11)
FEWEST_EXECUTIONS = 8
"""Executions below which spreads mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """What a fit reads of a run."""

    plan: Plan
    executions: Sequence[Mapping[str, Any]]
    """Whose harness has ended."""
    assessments: Mapping[str, Mapping[str, Any]]
    """The designated one of each of them; none where it was surplus."""
    steps: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    """By time; `detail` is an object."""

    def events_of(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Events of some kinds, by time."""
        return [event for event in self.events if event["kind"] in kinds]

    def is_interrupted(self, start_s: float, end_s: float) -> bool:
        """Whether the run was resumed between two times."""
        return any(start_s < event["time_s"] <= end_s for event in self.events_of("resumed"))

    @property
    def start_s(self) -> float:
        """When the first group was dispatched."""
        return min(row["dispatched_at_s"] for row in self.executions)

    @property
    def end_s(self) -> float:
        """When the last version was published, or the last step committed."""
        return max([event["time_s"] for event in self.events_of("updated", "published")] + [step["time_s"] for step in self.steps])


def read_run_spec(run: Path) -> Spec:
    """The pipeline that a run kept.

    Raises:
        UserError: the directory holds no run.
    """
    document = read_kept(run)
    base_dir = Path(document["base_dir"])
    look_beside(base_dir)
    return read_document(document["pipeline"], path=run / SPEC_FILE, base_dir=base_dir, problems=[])


def read_run(run: Path) -> RunTables:
    """Read what a fit needs.

    Raises:
        UserError: the directory holds no run, or one without finished executions and steps.
    """
    from gyre.store.run_store import read_table

    plan = plan_pipeline(build_graph(read_run_spec(run)))
    executions = [row for row in read_table(run, "executions").to_pylist() if row["status"] in FINISHED and row["launched_at_s"]]
    steps = read_table(run, "steps").sort_by("version").to_pylist()
    if len(executions) < FEWEST_EXECUTIONS or not steps:
        message = f"{run} has {len(executions)} finished executions and {len(steps)} steps, too few to fit a workload to"
        raise UserError(message, hint="give a run that has made some steps")
    events = sorted(read_table(run, "events").to_pylist(), key=lambda row: row["time_s"])
    ids = {row["execution_id"] for row in executions}
    assessments = [row for row in read_table(run, "assessments", where="designated").to_pylist() if row["execution_id"] in ids]
    return RunTables(
        plan=plan,
        executions=executions,
        assessments={row["execution_id"]: row for row in assessments if row["reason"] != SURPLUS},
        steps=steps,
        events=[{**event, "detail": json.loads(event["detail"])} for event in events],
    )


def fit_workload(run: Path, base: WorkloadSettings) -> tuple[WorkloadSettings, list[str]]:
    """Fit a workload to a run.

    Args:
        run: directory of a finished run.
        base: what to keep where the run says nothing.

    Returns:
        The workload, and sentences about how it was found.
    """
    tables = read_run(run)
    busy = BusyTimes.of(tables)
    load_share, contention, lengths = _find_lengths(tables, busy)
    query_spread, execution_spread = _find_spreads(tables, lengths)
    fitted = replace(
        base,
        execution_s=float(lengths.mean()),
        query_spread=query_spread,
        execution_spread=execution_spread,
        # Hard queries are in the spread of all of them.
        hard_share=0.0,
        hard_times=1.0,
        launch_s=0.0,
        load_share=load_share,
        contention=contention,
        **_fit_limits(tables, base),
        **_fit_training(tables, busy, contention, base),
        **_fit_switches(tables, base),
    )
    return fitted, [
        f"workload fitted to {len(tables.executions)} executions and {len(tables.steps)} steps of {run}",
        f"load share {load_share:.2f} and contention {contention:.2f} explain the durations best",
    ]


# ---- how busy the cells were -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BusyTimes:
    """Integrals over time of how many cells were busy, and of how full the engines were, so that a mean over any span is two look-ups."""

    times_s: Floats
    busy: Floats
    """Integral of the number of busy cells."""
    load: Floats
    """Integral of the share of places that were taken."""

    @classmethod
    def of(cls, tables: RunTables) -> BusyTimes:
        """Walk through a run's launches, ends and changes of role."""
        config = tables.plan.scheduler
        assert config is not None, "a run with executions has a dispatch"
        capacities, standalone = np.array(config.cells, dtype=float), sum(config.standalone)
        changes = [(row["launched_at_s"], 1, -1) for row in tables.executions]
        changes += [(row["finished_at_s"], -1, -1) for row in tables.executions]
        changes += [(e["time_s"], 0, e["cell"]) for e in tables.events_of("to_training")]
        changes += [(e["time_s"], 0, -2 - e["cell"]) for e in tables.events_of("to_rollout")]
        # A run is resumed with every cell in rollout.
        changes += [(e["time_s"], 0, -2 - cell) for e in tables.events_of("resumed") for cell in range(len(capacities))]
        changes.sort()
        times, busy, load = [changes[0][0]], [0.0], [0.0]
        running, training = 0, np.zeros(len(capacities), dtype=bool)
        for time_s, delta, cell in changes:
            elapsed_s = time_s - times[-1]
            places = float(capacities[~training].sum()) + standalone
            num_serving = (int((~training).sum()) + len(config.standalone)) if running else 0
            times.append(time_s)
            busy.append(busy[-1] + elapsed_s * (min(num_serving, running) + int(training.sum())))
            load.append(load[-1] + elapsed_s * min(1.0, running / max(1.0, places)))
            running += delta
            if delta == 0:
                training[cell if cell >= 0 else -2 - cell] = cell >= 0
        return cls(np.array(times), np.array(busy), np.array(load))

    def means(self, start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
        """Mean number of busy cells and mean load over spans of time."""
        elapsed_s = np.maximum(end_s - start_s, 1e-9)
        busy = np.interp(end_s, self.times_s, self.busy) - np.interp(start_s, self.times_s, self.busy)
        load = np.interp(end_s, self.times_s, self.load) - np.interp(start_s, self.times_s, self.load)
        return busy / elapsed_s, load / elapsed_s


# ---- lengths of executions ---------------------------------------------------------------------------------------------------------


def _find_lengths(tables: RunTables, busy: BusyTimes) -> tuple[float, float, Floats]:
    """The load share and contention under which executions of one query differ least, and the lengths that they leave."""
    start_s = np.array([row["launched_at_s"] for row in tables.executions])
    end_s = np.array([row["finished_at_s"] for row in tables.executions])
    durations = np.maximum(end_s - start_s, 1e-3)
    num_busy, load = busy.means(start_s, end_s)
    _, query = np.unique([row["query_id"] for row in tables.executions], return_inverse=True)
    best: tuple[float, float, float, Floats] | None = None
    for load_share in LOAD_SHARES:
        for contention in CONTENTIONS:
            slow = (1 + contention * np.maximum(num_busy - 1, 0)) * (1 - load_share * (1 - load))
            spread = float(np.mean(_around_mean(np.log(durations / slow), query) ** 2))
            if best is None or spread < best[0] - 1e-9:
                best = (spread, float(load_share), float(contention), durations / slow)
    assert best is not None, "the grid is not empty"
    return best[1], best[2], best[3]


def _around_mean(values: Floats, group: NDArray[np.intp]) -> Floats:
    counts = np.bincount(group)
    return values - (np.bincount(group, weights=values) / counts)[group]


def _find_spreads(tables: RunTables, lengths: Floats) -> tuple[float, float]:
    """Standard deviations of the logarithm between queries and within them (one-way analysis of variance)."""
    _, query = np.unique([row["query_id"] for row in tables.executions], return_inverse=True)
    logs = np.log(lengths)
    counts = np.bincount(query)
    num_queries, num = len(counts), len(logs)
    within = float(np.sum(_around_mean(logs, query) ** 2)) / max(1, num - num_queries)
    means = np.bincount(query, weights=logs) / counts
    between = float(np.var(means, ddof=1)) if num_queries > 1 else 0.0
    return float(np.sqrt(max(0.0, between - within * float(np.mean(1 / counts))))), float(np.sqrt(within))


def _fit_limits(tables: RunTables, base: WorkloadSettings) -> dict[str, Any]:
    settings = {node.operator: node.settings for node in tables.plan.nodes}
    slots = settings.get("evaluate", {}).get("workers")
    unresolved = {e for e, assessment in tables.assessments.items() if not assessment["valid"]}
    groups = {row["group_id"] for row in tables.executions}
    hit = {row["group_id"] for row in tables.executions if row["execution_id"] in unresolved}
    share = len(unresolved) / max(1, len(tables.assessments))
    return {
        "deadline_s": _find_deadline_s(settings.get("harness_proxy", {}).get("harness"), otherwise=base.deadline_s),
        "budget_s": float(settings.get("evaluate", {}).get("budget_s") or base.budget_s or 0) or None,
        "evaluation_s": _find_evaluation_s(tables, slots=slots),
        "evaluation_slots": slots,
        "unresolved_share": share,
        "unresolved_groups": max(share, len(hit) / len(groups)) if hit else 1.0,
    }


def _find_deadline_s(harness: Mapping[str, Any] | None, *, otherwise: float | None) -> float | None:
    """The harness profile's deadline, or its default; `otherwise` where the run had no profile."""
    from gyre.rollout.profile import HarnessProfile

    default = HarnessProfile.__dataclass_fields__["deadline_s"].default
    return otherwise if harness is None else float(harness.get("deadline_s", default))


def _find_evaluation_s(tables: RunTables, *, slots: int | None) -> float:
    """The time of one evaluation under which evaluators that take turns come to the delays that the run had.

    Unresolved executions are left out: theirs is the time to the end of their budget.
    """
    rated = [(row["finished_at_s"], tables.assessments.get(row["execution_id"])) for row in tables.executions]
    scored = [(end_s, a["created_at_s"]) for end_s, a in rated if a is not None and a["valid"]]
    scored = [(end_s, score_s) for end_s, score_s in scored if not tables.is_interrupted(end_s, score_s)]
    ends = np.sort(np.array([end_s for end_s, _ in scored]))
    delay_s = float(np.mean([score_s - end_s for end_s, score_s in scored])) if scored else 0.0
    low_s, high_s = 0.0, max(0.0, delay_s)
    while slots is not None and high_s - low_s > 1e-3 * delay_s:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if _mean_delay_s(ends, middle_s, slots) > delay_s else (middle_s, high_s)
    return high_s


def _mean_delay_s(ends: Floats, evaluation_s: float, slots: int) -> float:
    """Mean time from an end to its score, with evaluations of one length taken in turn."""
    free_s = [0.0] * slots
    delays: list[float] = []
    for end_s in ends.tolist():
        done_s = max(end_s, heapq.heappop(free_s)) + evaluation_s
        heapq.heappush(free_s, done_s)
        delays.append(done_s - end_s)
    return float(np.mean(delays))


# ---- training and switches ---------------------------------------------------------------------------------------------------------


def _fit_training(tables: RunTables, busy: BusyTimes, contention: float, base: WorkloadSettings) -> dict[str, Any]:
    config = tables.plan.scheduler
    assert config is not None, "a run with executions has a dispatch"
    costs = {e["detail"]["version"]: e["detail"] for e in tables.events_of("updated") if "busy_s" in e["detail"]}
    steps = [step for step in tables.steps if step["version"] in costs]
    if not steps:
        raise UserError(
            "the run's events do not say how long its cells worked on micro-steps", hint="fit to a run that this version of gyre has made"
        )
    begun_s = np.array([step["time_s"] - step["duration_s"] for step in steps])
    ended_s = np.array([step["time_s"] - costs[step["version"]]["commit_s"] for step in steps])
    num_busy, _ = busy.means(begun_s, ended_s)
    slow = 1 + contention * np.maximum(num_busy - 1, 0)
    busy_s = np.array([costs[step["version"]]["busy_s"] for step in steps]) / slow
    num_ranks = float(np.mean([np.prod([cell.layout[axis] for axis in ("tp", "pp", "cp", "dp")]) for cell in tables.plan.cells]))
    microsteps = sum(costs[step["version"]]["microsteps"] for step in steps)
    num_groups = len(steps) * config.groups_per_step
    return {
        "train_rank_s": float(busy_s.sum()) * num_ranks / (num_groups * config.group_size),
        "microsteps_per_group": max(1, round(microsteps / num_groups)),
        "step_s": float(np.median([costs[step["version"]]["commit_s"] for step in steps])),
        "broadcast_s": _median([gap for gap, is_burst_end in _gaps_between_steps(tables) if not is_burst_end], base.broadcast_s),
    }


def _gaps_between_steps(tables: RunTables) -> list[tuple[float, bool]]:
    """From each commit to the next step's beginning, and whether a publication lies between."""
    published = {event["detail"]["version"] for event in tables.events_of("published")}
    pairs = [p for p in zip(tables.steps, tables.steps[1:], strict=False) if not tables.is_interrupted(p[0]["time_s"], p[1]["time_s"])]
    return [(max(0.0, late["time_s"] - late["duration_s"] - early["time_s"]), early["version"] in published) for early, late in pairs]


def _fit_switches(tables: RunTables, base: WorkloadSettings) -> dict[str, Any]:
    """A publication's time has the return of the satellites in it, since engines confirm when they are back."""
    committed = {event["detail"]["version"]: event["time_s"] for event in tables.events_of("updated")}
    published = [(e["time_s"], committed.get(e["detail"]["version"])) for e in tables.events_of("published")]
    publish_s = [end_s - start_s for end_s, start_s in published if start_s is not None and not tables.is_interrupted(start_s, end_s)]
    return {
        "publish_s": _median(publish_s, base.publish_s),
        "to_training_s": _median(_core_switches(tables), base.to_training_s),
        "to_rollout_s": 0.0,
        "join_s": base.join_s,
    }


def _core_switches(tables: RunTables) -> list[float]:
    """From the core's departure to the step that it leaves for; a fixed split without streaming leaves long before there is one."""
    config = tables.plan.scheduler
    if config is None or (config.policy == "async" and not config.streaming):
        return []
    begun = sorted(step["time_s"] - step["duration_s"] for step in tables.steps)
    left = [event["time_s"] for event in tables.events_of("to_training") if event["cell"] == 0]
    switches = [(left_s, next((begun_s for begun_s in begun if begun_s >= left_s), None)) for left_s in left]
    return [begun_s - left_s for left_s, begun_s in switches if begun_s is not None and not tables.is_interrupted(left_s, begun_s)]


def _median(values: Sequence[float], otherwise: float) -> float:
    return float(np.median(values)) if values else otherwise
