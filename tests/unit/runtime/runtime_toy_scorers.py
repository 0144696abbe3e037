"""Scorers that the tests of the runtime find as `runtime_toy_scorers:name`; none of them scores."""

from __future__ import annotations

from gyre.records import Assessment, Batch, ClosedExecution, Engines, Task, op


@op("failing")
def failing(closed: Batch[ClosedExecution]) -> Batch[Assessment]:
    """Fail."""
    raise RuntimeError("no luck")


@op("mistaken")
def mistaken(closed: Batch[ClosedExecution]) -> Batch[Assessment]:
    """Answer with records of another kind."""
    return Batch.of(Task, [])  # pyright: ignore[reportReturnType]


@op("needy")
def needy(closed: Batch[ClosedExecution], *, engines: Engines) -> Batch[Assessment]:
    """Ask for engines."""
    raise NotImplementedError
