"""Small operators that the graph's tests find as `graph_toy_ops:name`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from gyre.errors import Problem
from gyre.records import Assessment, Batch, ClosedExecution, Control, Engines, Execution, Record, Store, Stream, Task, Trees, op


class NarrowTask(Record):
    """A task without its configuration, whose id may be null and whose path is a number."""

    schema_name = "narrow_task.v1"

    @classmethod
    def schema(cls) -> pa.Schema:
        return pa.schema(
            [
                pa.field("query_id", pa.string()),
                pa.field("instruction", pa.string(), nullable=False),
                pa.field("task_path", pa.int64(), nullable=False),
            ]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """A nested settings object."""

    cpu_s: float
    """CPU seconds."""
    memory_mb: int = 512
    """Memory."""


def check_tasks(settings: Mapping[str, Any], base_dir: Path) -> Iterable[Problem]:
    if settings["count"] > 99:
        yield Problem("count", f"{settings['count']} tasks are too many", "give at most 99")


@op("tasks", check=check_tasks)
def tasks(*, count: int = 3, folder: Path = Path("nowhere")) -> Batch[Task]:
    """Emit tasks.

    Args:
        count: how many, at most 99;
            the rest is cut.
        folder: where they are.
    """
    raise NotImplementedError


@op("touchy", check=lambda settings, base_dir: settings["nothing"])
def touchy() -> Batch[Task]:
    """Have a check that fails."""
    raise NotImplementedError


@op("chatty", check=lambda settings, base_dir: ["this is no problem"])
def chatty() -> Batch[Task]:
    """Have a check that answers with texts."""
    raise NotImplementedError


@op("quiet", check=lambda settings, base_dir: None)
def quiet() -> Batch[Task]:
    """Have a check that answers nothing where nothing is wrong."""
    raise NotImplementedError


class Nameless(Record):
    """A record whose schema nobody wrote."""

    schema_name = "nameless.v1"


@op("nameless")
def nameless() -> Batch[Nameless]:
    """Emit records without a schema."""
    raise NotImplementedError


@op("narrow_tasks")
def narrow_tasks() -> Batch[NarrowTask]:
    """Emit tasks that lack a column."""
    raise NotImplementedError


class RunOutputs(NamedTuple):
    """Ports of `Runner`."""

    closed: Batch[ClosedExecution]
    started: Batch[Execution]


@op("runner", state="store")
class Runner:
    """Run tasks."""

    def __init__(
        self,
        *,
        mode: Literal["fast", "slow"],
        ratio: float = 0.5,
        limits: Limits | None = None,
        levels: tuple[int, ...] = (),
        is_loud: bool = False,
        control: Control,
        engines: Engines,
        store: Store | None = None,
    ) -> None:
        """Take the settings.

        Args:
            mode: how.
            ratio: how much.
            limits: most it may use.
            levels: which.
            is_loud: whether.
            control: doors.
            engines: engines.
            store: tables.
        """

    def run(self, tasks: Stream[Task], hints: Stream[Assessment] | None = None) -> AsyncIterator[RunOutputs]:
        raise NotImplementedError


@op("judge")
def judge(closed: Batch[ClosedExecution], *, weight: float = 1.0) -> Batch[Assessment]:
    """Score."""
    raise NotImplementedError


def check_weight(settings: Mapping[str, Any], base_dir: Path) -> Iterable[Problem]:
    if settings["weight"] == 0:
        yield Problem("weight", "this is 0, so every score is", "give another number")


@op("strict", check=check_weight)
def strict(closed: Batch[ClosedExecution], *, weight: float = 1.0) -> Batch[Assessment]:
    """Score, and look at the weight before a run starts."""
    raise NotImplementedError


class Database(Protocol):
    """No resource of gyre."""


@op("needy")
def needy(*, database: Database) -> Batch[Task]:
    """Ask for a resource that nobody supplies."""
    raise NotImplementedError


@op("climber")
def climber(tasks: Batch[Task], *, trees: Trees) -> None:
    """Ask for trees."""


@op("score_with", output="scores")
async def score_with(closed: Batch[ClosedExecution], *, scorer: str, scorer_args: dict[str, Any] | None = None) -> Batch[Assessment]:
    """Score with an operator found by name."""
    raise NotImplementedError


@op("sink")
def sink(assessed: Batch[Assessment]) -> None:
    """Take assessments."""


@op("relay")
def relay(tasks: Batch[Task]) -> Batch[Task]:
    """Pass tasks on."""
    return tasks


def unmarked(tasks: Batch[Task]) -> None:
    """Lack the mark."""


@op("untyped")
def untyped(tasks: Batch[Task], *, setting=3) -> None:  # pyright: ignore[reportMissingParameterType]
    """Have a setting without a type."""


@op("positional")
def positional(count: int) -> Batch[Task]:
    """Have a parameter that is neither port nor setting."""
    raise NotImplementedError


@op("odd_return")
def odd_return() -> int:
    """Return no port."""
    return 1
