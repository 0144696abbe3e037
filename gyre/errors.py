"""The error tree of gyre.

Every error that a person may see is one of these; the command line turns them into sentences and exit codes.

    GyreError
    ├── UserError            exit 2: the user's mistake, found before work starts
    │   └── SpecError        all problems of a pipeline at once, each with path and hint
    ├── RunError             exit 1: a run failed or a check does not hold; resumable where it was running
    │   ├── EngineError      a rollout engine did not answer, or answered nonsense
    │   ├── TransferError    weights did not arrive; the version was not raised
    │   ├── StoreError       a table of the run could not be written or read
    │   └── SimulationError  a simulated run cannot go on; names who waits for what
    └── RecordError          one record is bad: it is quarantined with its reason and the run goes on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong in the user's object."""

    path: str
    """Where, as a dotted path in the user's pipeline object, e.g. ``ops.score.args.budget_s``."""
    message: str
    """What is wrong with the value found there."""
    hint: str
    """What to write instead."""


class GyreError(Exception):
    """Root of all errors that gyre raises on purpose."""


class UserError(GyreError):
    """The user's mistake, found before work starts (exit code 2)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SpecError(UserError):
    """Every problem of a pipeline at once."""

    def __init__(self, problems: list[Problem]) -> None:
        if not problems:
            raise ValueError("a SpecError names at least one problem")
        super().__init__("\n".join(f"{p.path}: {p.message}" for p in problems))
        self.problems = problems


class RunError(GyreError):
    """A run failed or a check does not hold (exit code 1); a run that was going can be resumed."""


class EngineError(RunError):
    """A rollout engine did not answer, or answered outside its contract."""


class TransferError(RunError):
    """Weights did not arrive whole. The version stays what it was."""


class StoreError(RunError):
    """A table of the run could not be written or read."""


class SimulationError(RunError):
    """A simulated run cannot go on. Names who waits for what."""


@dataclass(slots=True)
class RecordError(GyreError):
    """One record is bad. It is quarantined with this reason; the run goes on."""

    operator: str
    record_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator}: record {self.record_id}: {self.reason}"
