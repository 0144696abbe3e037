"""The workload of a pipeline: what its executions and steps cost, for `gyre simulate` and `gyre tune`. A live run ignores it.

Times are in seconds of the simulated cluster. An execution's length is drawn as *query length times execution noise*, both
lognormal; it runs at speed 1 in a full engine and faster in an emptier one, until it is done or reaches the harness deadline. The
defaults are a small workload for trying things out; `gyre simulate P --from RUN` fits all of them to a finished run and prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from gyre.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """How long executions run, what training costs, how long cells take to switch."""

    execution_s: float = 60.0
    """Mean length of an execution in a full engine, before any deadline."""
    query_spread: float = 0.3
    """Standard deviation of the logarithm of a query's length: how much queries differ."""
    execution_spread: float = 0.3
    """Standard deviation of the logarithm of an execution's length around its query's: how much executions of one query differ."""
    hard_share: float = 0.0
    """Share of queries that are hard: the heavy tail of query lengths."""
    hard_times: float = 1.0
    """How many times as long a hard query is."""
    launch_s: float = 0.0
    """From the launch of an execution to its first model call: workspace and harness start. It is part of the execution's duration."""
    deadline_s: float | None = None
    """Harness deadline from the launch on; an execution that reaches it is scored as it is. Null: none."""
    budget_s: float | None = None
    """Overall budget from the launch on; when no valid score has come by then, an execution is unresolved. Null: as the deadline."""
    unresolved_share: float = 0.0
    """Share of executions whose evaluation fails until the budget is spent. Their group waits; no slot is held."""
    unresolved_groups: float = 1.0
    """Share of groups that such executions come from, the hard ones first: 1 spreads them evenly, less clusters them by group."""
    evaluation_s: float = 0.0
    """One evaluation."""
    evaluation_slots: int | None = None
    """Evaluations at a time; the others wait for their turn. Null: as many as there are."""
    load_share: float = 0.0
    """Share of an execution's length in a full engine that vanishes in an empty one; in between it falls with the load."""
    contention: float = 0.0
    """What each other busy cell adds to the time of rollout and training: 0 where cells share nothing, 1 where they share one machine."""
    train_rank_s: float = 1.0
    """Forward and backward of an execution of mean length, in seconds of one rank; a cell's ranks share the work evenly."""
    train_spread_by_length: float = 1.0
    """How training follows length: 1 in proportion, 0 the same for every execution."""
    microsteps_per_group: int = 8
    """Micro-steps that a group is packed into."""
    step_s: float = 0.0
    """Fixed time of a step after its last micro-step: pipeline drain, reduction, update, checkpoint."""
    join_s: float = 0.0
    """Until a satellite has pulled the core's snapshot."""
    broadcast_s: float = 0.0
    """Until satellites have the weights of a nonfinal update."""
    publish_s: float = 0.0
    """Until every engine has confirmed a published version."""
    to_training_s: float = 0.0
    """Switch of a cell from rollout to training."""
    to_rollout_s: float = 0.0
    """Switch of a cell from training to rollout."""
    estimate_spread: float = 0.3
    """Standard deviation of the logarithm of the error of a query's estimated length, which 'longest_first' orders by; 0: known exactly."""


_SHARES = ("hard_share", "unresolved_share", "unresolved_groups", "load_share", "train_spread_by_length")
_POSITIVE = ("execution_s", "hard_times", "deadline_s", "budget_s", "microsteps_per_group", "unresolved_groups", "evaluation_slots")


def check_workload(workload: WorkloadSettings) -> Iterator[Problem]:
    """Name every number of a workload that is out of range."""
    for field in fields(workload):
        value = getattr(workload, field.name)
        if value is None:
            continue
        path = f"resources.workload.{field.name}"
        if field.name in _POSITIVE and value <= 0:
            yield Problem(path, f"{value} is out of range", "give a number above 0")
        elif field.name in _SHARES and not 0 <= value <= 1:
            yield Problem(path, f"{value} is out of range", "give a share between 0 and 1")
        elif value < 0:
            yield Problem(path, f"{value} is out of range", "give a number that is 0 or more")
    if workload.load_share == 1:
        yield Problem("resources.workload.load_share", "1 makes an empty engine infinitely fast", "give a share below 1")
    if workload.unresolved_share > workload.unresolved_groups:
        message = f"{workload.unresolved_share:g} of the executions do not fit into {workload.unresolved_groups:g} of the groups"
        yield Problem("resources.workload.unresolved_groups", message, "give at least unresolved_share")
