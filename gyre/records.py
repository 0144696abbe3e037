"""What travels between operators: record classes bound to `schemas/`, `Batch[R]`, `@op`, and the resource protocols.

An operator's signature is its declaration. `Batch[R]` parameters are input ports, the return annotation is the output port (a
NamedTuple of batches where there are several), keyword-only parameters are settings, and a keyword annotated with a resource
protocol is a resource. A class operator takes its settings and resources in `__init__`, its ports in `run`.

Two shapes of ports:

- `Batch[R]`: `run` is called once per incoming batch (sync or async).
- `Stream[R]`: `run` is an async generator over async iterators of batches, called once per run; it may emit whenever it likes.

A record class is declared next to its schema's name; the columns are in `schemas/<noun>.v<N>.json`, the only place that has them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}


def parse_arrow_type(text: str) -> pa.DataType:
    """Read a type as pyarrow prints it, e.g. `list<item: struct<version: int64, start: int32, end: int32>>`."""
    text = text.strip()
    if text in _PRIMITIVES:
        return _PRIMITIVES[text]
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(_parse_field(text[5:-1]))
    if text.startswith("struct<") and text.endswith(">"):
        return pa.struct([_parse_field(part) for part in _split_top(text[7:-1])])
    raise ValueError(f"unknown Arrow type {text!r}")


def _parse_field(text: str) -> pa.Field:
    name, _, rest = text.strip().partition(":")
    rest = rest.strip()
    nullable = not rest.endswith(" not null")
    return pa.field(name, parse_arrow_type(rest.removesuffix(" not null")), nullable=nullable)


def _split_top(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def schemas_dir() -> Path:
    """Folder of the schema files: beside the package in a checkout, inside it in a wheel."""
    inside = Path(str(resources.files("gyre"))) / "schemas"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent / "schemas"


@cache
def load_columns(schema_name: str) -> tuple[dict[str, Any], ...]:
    """The columns of `<noun>.v<N>` as its file has them: name, type, nullable, doc."""
    path = schemas_dir() / f"{schema_name}.json"
    return tuple(json.loads(path.read_text(encoding="utf-8")))


@cache
def load_schema(schema_name: str) -> pa.Schema:
    """The Arrow schema of `<noun>.v<N>`; its name travels in the schema's metadata under `gyre.schema`."""
    fields = [
        pa.field(c["name"], parse_arrow_type(c["type"]), nullable=c["nullable"], metadata={"doc": c["doc"]})
        for c in load_columns(schema_name)
    ]
    return pa.schema(fields, metadata={"gyre.schema": schema_name})


class Record:
    """Base of record classes. `R.schema_name` names the file in `schemas/`; rows are plain dictionaries of its columns."""

    schema_name: ClassVar[str]

    @classmethod
    def schema(cls) -> pa.Schema:
        """Arrow schema of this record."""
        return load_schema(cls.schema_name)


class Task(Record):
    """One query: a task folder and its instruction."""

    schema_name = "task.v1"


class Execution(Record):
    """One admitted execution on its way to launch."""

    schema_name = "execution.v1"


class ClosedExecution(Record):
    """An execution whose harness has ended and whose records are frozen."""

    schema_name = "closed_execution.v1"


class Assessment(Record):
    """What a scorer says of one artifact version of one execution."""

    schema_name = "assessment.v1"


class ScoredExecution(Record):
    """One execution of a ready group with its outcome."""

    schema_name = "scored_execution.v1"


class Trajectory(Record):
    """One selected root-to-leaf path with its fixed targets."""

    schema_name = "trajectory.v1"


class MicroStep(Record):
    """One packed row of trajectories: the unit that a cell claims."""

    schema_name = "microstep.v1"


class PolicyVersion(Record):
    """A policy version that was published to the engines."""

    schema_name = "policy_version.v1"


R = TypeVar("R", bound=Record)


class StepMark(NamedTuple):
    """Which training batch a batch of records belongs to; the last one of a step closes its stream (semantics.md, section 4)."""

    version: int
    """The version that the step makes: v_t + 1."""
    last: bool
    """True on the batch that ends the step, also when it holds no row."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[R]):
    """A table of records on an edge."""

    table: pa.Table
    """Rows in the record's schema."""
    step: StepMark | None = None
    """Set from the selection of a group on; None before. The runtime copies it from an operator's input to its output."""

    @classmethod
    def of(cls, record: type[R], rows: Iterable[Mapping[str, Any]], *, step: StepMark | None = None) -> Batch[R]:
        """Build a batch from rows; a missing column is null, an unknown one an error.

        Raises:
            ValueError: a row does not fit the record's schema.
        """
        schema = record.schema()
        listed = [dict(row) for row in rows]
        unknown = {name for row in listed for name in row} - set(schema.names)
        if unknown:
            raise ValueError(f"{record.schema_name} has no column {', '.join(sorted(unknown))}")
        table = pa.Table.from_pylist(listed, schema=schema)
        for column in schema:
            if not column.nullable and table.column(column.name).null_count:
                raise ValueError(f"{record.schema_name}.{column.name} must not be null")
        return cls(table, step)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries."""
        return self.table.to_pylist()

    def __len__(self) -> int:
        return self.table.num_rows


class Stream(Protocol[R]):
    """A port over which batches come one after another, as long as the run lasts."""

    def __aiter__(self) -> AsyncIterator[Batch[R]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInfo:
    """What `@op` hangs on an operator."""

    name: str
    """Name under which a pipeline finds it, without the package."""
    state: str = "none"
    """How a class operator's state is kept: 'none', or 'store' when it is rebuilt from the run's tables on resume."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Free notes of the operator's author."""


F = TypeVar("F", bound=Callable[..., Any])


def op(name: str, *, state: str = "none", **extra: Any) -> Callable[[F], F]:
    """Declare a function or a class with `run` as an operator called `name`."""

    def mark(target: F) -> F:
        target.__gyre_op__ = OperatorInfo(name=name, state=state, extra=extra)  # pyright: ignore[reportFunctionMemberAccess]
        return target

    return mark


# Resources. An operator names one by annotating a keyword-only parameter with its protocol; the runtime supplies it.


@runtime_checkable
class Control(Protocol):
    """The doors of the actor that owns the scheduler's state."""

    async def next_dispatch(self) -> Mapping[str, Any] | None:
        """Wait for the next order to admit groups; None when no more will come.

        {num_groups, first_group_index, version, restored}; `restored` orders repeat groups that a resumed run had admitted.
        """
        ...

    async def execution_state(self, execution_id: str) -> Mapping[str, Any] | None:
        """What the run knows of an execution (`executions.v1`); None where it was never admitted."""
        ...

    async def admitted(self, executions: pa.Table) -> None:
        """Tell of admitted executions (`execution.v1`)."""
        ...

    async def next_launch(self) -> Mapping[str, Any] | None:
        """Wait until an execution may start: {execution_id, engine, attempt}; None when no more will come."""
        ...

    async def launched(self, execution_id: str, workspace: str) -> None:
        """Tell that the harness of an execution was started, and where its workspace is (relative to the run)."""
        ...

    async def finished(self, execution_id: str, status: str, reason: str) -> None:
        """Tell that the harness of an execution ended: completed, failed, timeout or cancelled, and how, for people."""
        ...

    async def assessed(self, execution_id: str, valid: bool) -> None:
        """Tell of the designated assessment of an execution (under oversampling, N valid ones cancel the surplus)."""
        ...

    async def group_ready(self, group: Mapping[str, Any]) -> None:
        """Tell that every execution of a group has its outcome: {group_id, valid, unresolved, placeholders, cancelled, reward_sum}."""
        ...

    async def next_group(self) -> Mapping[str, Any] | None:
        """Wait for the next group to consume: {group_id, version, last}; None when no more will come."""
        ...

    async def enqueue(self, microsteps: pa.Table) -> None:
        """Put micro-steps (`microstep.v1`) into the running step's queue."""
        ...

    async def close_stream(self, step_version: int) -> None:
        """Tell that every micro-step of a step's groups has been enqueued."""
        ...

    async def next_cancelled(self) -> str | None:
        """Wait for the id of an execution that is to be cancelled (surplus); None when no more will come."""
        ...

    async def next_version(self) -> Mapping[str, Any] | None:
        """Wait for the next published version: {version, time_s}; None when no more will come."""
        ...

    async def tick(self) -> None:
        """Let the policy look at the clock (hold times)."""
        ...

    async def over(self) -> bool:
        """True when the run is complete or being stopped."""
        ...

    async def record_event(self, kind: str, cell: int, detail: Mapping[str, Any]) -> None:
        """Write an event of the run."""
        ...


@runtime_checkable
class Engines(Protocol):
    """Where model calls go."""

    @property
    def model_dir(self) -> Path:
        """Hugging Face folder of the policy: tokenizer, chat template, configuration."""
        ...

    def assign(self, execution_id: str, engine: str) -> None:
        """Serve an execution that is launched from an engine, unless a role change has moved it on already."""
        ...

    async def route(self, execution_id: str) -> str:
        """Base URL of the engine that serves this execution now; waits while none is routable."""
        ...

    def forget(self, execution_id: str) -> None:
        """Drop the route of an execution that has ended."""
        ...


@runtime_checkable
class Trees(Protocol):
    """Trajectory trees by execution: the proxy's memory while the run lives, the `calls` table after a resume."""

    async def calls(self, execution_id: str, attempt: int) -> pa.Table:
        """The nodes of one execution's tree, columns of `calls.v1`, in node order."""
        ...

    async def drop(self, execution_id: str) -> None:
        """Forget a tree whose group has been selected."""
        ...


@runtime_checkable
class Pipeline(Protocol):
    """The pipeline that runs."""

    @property
    def base_dir(self) -> Path:
        """Folder of its file, which relative paths in it start from."""
        ...

    @property
    def trains(self) -> bool:
        """Whether anything is trained on what it rolls out."""
        ...


class Scorer(Protocol):
    """A scorer operator with its settings and resources bound."""

    async def __call__(self, closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        """Score each closed execution once."""
        ...


@runtime_checkable
class Scorers(Protocol):
    """Operators that score, by name."""

    def find(self, name: str, settings: Mapping[str, Any]) -> Scorer:
        """The scorer `name` with these settings."""
        ...


@runtime_checkable
class Store(Protocol):
    """The tables of the run."""

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a table; durable when it returns."""
        ...

    def read(self, table: str, *, where: str | None = None) -> pa.Table:
        """Read a table as it is now; `where` is an SQL condition over its columns."""
        ...

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        ...
