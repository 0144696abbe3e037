"""What the scheduler may decide: small frozen records, each with a reason for the log and the events table.

A live runtime and the simulator perform the same decisions, in the order in which an event returns them, and answer with the events
of `scheduler.Scheduler`. Which event must follow which decision is in that class's docstring; nothing else is ever awaited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Move(NamedTuple):
    """One running execution and the engine in which its place is reserved."""

    execution_id: str
    """The execution whose model calls are rerouted."""
    engine: str
    """Name of the engine that serves it from now on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Root of all decisions."""

    reason: str
    """Why, in one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch(Decision):
    """Admit groups `first_group_index … first_group_index + num_groups − 1` under the published `version`."""

    num_groups: int
    """Groups to admit."""
    first_group_index: int
    """Index of the first of them."""
    version: int
    """v_d of these groups: the last published version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Decision):
    """Start the harness of an execution; its place on `engine` is reserved."""

    execution_id: str
    """The execution to start."""
    engine: str
    """Engine that serves it first."""
    attempt: int
    """Number of the attempt, from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel(Decision):
    """End an execution whose group has enough valid outcomes; where it is still queued no harness is started."""

    execution_id: str
    """The surplus execution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reroute(Decision):
    """Change the routes of executions whose engine is gone."""

    moves: tuple[Move, ...]
    """Executions and their new engines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToTraining(Decision):
    """Take a cell out of rollout: stop accepting, change the routes in `moves`, cancel at the source, switch the memory."""

    cell: int
    """The cell."""
    moves: tuple[Move, ...]
    """Every execution it serves, with the engine that has a place reserved for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginStep(Decision):
    """Start the step that makes `version`: the core exposes its snapshot, the stream and the join window open."""

    version: int
    """Version after the step."""
    cells: tuple[int, ...]
    """Cells that hold the current weights and may claim at once; the core is the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Join(Decision):
    """Let a satellite pull the core's snapshot and claim micro-steps of the running step."""

    cell: int
    """The satellite."""
    version: int
    """Version that the running step makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consume(Decision):
    """Take a ready group into the running step."""

    group_id: str
    """The group."""
    version: int
    """Version that the step makes; `v_t = version − 1`."""
    last: bool
    """True for the B-th group of the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseWindow(Decision):
    """No satellite joins the running step any more."""

    version: int
    """Version that the step makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discard(Decision):
    """A cell left a running step: `ClaimQueue.lose_from(cells[0])`, and throw away what these cells have accumulated."""

    version: int
    """Version that the step makes."""
    cells: tuple[int, ...]
    """The lost cell and every later participant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduce(Decision):
    """Sum the gradients of the participants in the core, divide once, clip, update, and commit the step."""

    version: int
    """Version that the step makes."""
    cells: tuple[int, ...]
    """Participating prefix of the living cells; the core is the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Broadcast(Decision):
    """Give the new weights of a nonfinal update to the satellites in training."""

    version: int
    """The new version."""
    cells: tuple[int, ...]
    """Core and satellites that take part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToRollout(Decision):
    """Bring a cell back to rollout: release the learner, restore the engine with the newest published weights."""

    cell: int
    """The cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publish(Decision):
    """Bring the core's weights to every rollout engine, those of returning satellites included."""

    version: int
    """The version that ends the burst."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainCore(Decision):
    """The core stays in training: supply and capacity hold right after the dispatch."""

    version: int
    """The version that was just published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fail(Decision):
    """The run cannot go on: stop it, resumable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Decision):
    """The run is complete: d = p = f, every group consumed (or closed), the last version published."""
