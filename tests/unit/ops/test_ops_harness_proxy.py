"""Launches and cancellations that meet in `harness_proxy`: they come over different doors, in any order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gyre.ops.harness_proxy import HarnessProxy
from gyre.records import Batch, Execution

IDS = [f"g000000-{number:02d}" for number in range(3)]


class FakeProxy:
    """Serves nothing; an execution can be opened and closed."""

    async def start(self, *, host: str) -> str:
        return "http://proxy"

    async def stop(self) -> None: ...

    def open_execution(self, execution_id: str, *, attempt: int, role_rules: Any) -> str:
        return "key"

    async def close_execution(self, execution_id: str) -> int:
        return 0

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop_tree(self, execution_id: str) -> None:
        self.dropped.append(execution_id)

    async def wait_failure(self) -> Exception:
        return await asyncio.Future()


class FakeRunner:
    """Harnesses that run until they are told to end."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}

    async def run(self, row: Mapping[str, Any], **_: Any) -> Any:
        await self.running.setdefault(row["execution_id"], asyncio.Event()).wait()
        return SimpleNamespace(status="completed", reason="it ended", workspace=Path(), is_assessable=False, finished_at_s=2.0)


class Doors:
    """The control room as far as executions go."""

    def __init__(self) -> None:
        self.launches: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled: asyncio.Queue[Any] = asyncio.Queue()
        self.status: dict[str, str] = {}
        self.is_telling = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def launch(self, execution_id: str) -> None:
        self.launches.put_nowait({"execution_id": execution_id, "engine": "cell0", "attempt": 1})

    async def next_launch(self) -> Any:
        return await self.launches.get()

    async def next_cancelled(self) -> Any:
        return await self.cancelled.get()

    async def launched(self, execution_id: str, workspace: str) -> None:
        self.status[execution_id] = "running"

    async def finished(self, execution_id: str, status: str, reason: str) -> None:
        if self.status.get(execution_id) in (None, "running"):
            self.status[execution_id] = status
        self.is_telling.set()
        await self.may_answer.wait()

    async def execution_state(self, execution_id: str) -> Mapping[str, Any]:
        times = {"launched_at_s": None, "finished_at_s": 1.0, "attempts": 0, "workspace": "", "reason": ""}
        return {"status": self.status.get(execution_id, "queued"), **times}


class Bench:
    """The operator with fakes around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy = FakeProxy()
        monkeypatch.setattr("gyre.rollout.proxy.Proxy.for_model", lambda *_, **__: self.proxy)
        self.doors, self.runner = Doors(), FakeRunner()
        engines = SimpleNamespace(model_dir=Path("model"), assign=lambda *_: None, forget=lambda *_: None)
        parts: dict[str, Any] = {
            "engines": engines,
            "control": self.doors,
            "store": SimpleNamespace(run_dir=Path("run")),
            "pipeline": SimpleNamespace(base_dir=Path(), trains=True),
        }
        self.operator = HarnessProxy(harness={"name": "none", "command": ["true"]}, sandbox="process", **parts)
        self.operator.runner = self.runner  # pyright: ignore[reportAttributeAccessIssue]
        self.closed: dict[str, str] = {}
        self.arrivals: asyncio.Queue[list[str]] = asyncio.Queue()

    async def executions(self) -> AsyncIterator[Batch[Execution]]:
        while True:
            rows = [self._row(execution_id) for execution_id in await self.arrivals.get()]
            yield Batch.of(Execution, rows)

    @staticmethod
    def _row(execution_id: str) -> dict[str, Any]:
        numbers = {"group_index": 0, "group_size": 2, "group_surplus": 1, "attempt": 1, "dispatch_version": 0, "dispatched_at_s": 0.0}
        texts = {"query_id": "q", "instruction": "", "task_path": "", "config": "{}"}
        return {"execution_id": execution_id, "group_id": execution_id[:7], **numbers, **texts, "restored": False}

    async def run(self) -> None:
        async for batch in self.operator.run(self.executions()):  # pyright: ignore[reportArgumentType]
            self.closed |= {row["execution_id"]: row["status"] for row in batch.rows()}

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                await asyncio.sleep(0)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    made = Bench(monkeypatch)
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_cancellation_that_overtakes_the_launch_stops_no_other_launch(bench: Bench) -> None:
    bench.arrivals.put_nowait(IDS)
    bench.doors.cancelled.put_nowait(IDS[0])
    await bench.until(lambda: bench.closed)
    bench.doors.launch(IDS[0])
    bench.doors.launch(IDS[1])
    await bench.until(lambda: IDS[1] in bench.runner.running)
    assert bench.closed == {IDS[0]: "cancelled"}
    assert IDS[0] not in bench.runner.running


async def test_a_cancellation_that_overtakes_the_execution_is_kept_for_it(bench: Bench) -> None:
    bench.doors.launch(IDS[0])
    bench.doors.cancelled.put_nowait(IDS[0])
    await bench.until(bench.doors.cancelled.empty)
    bench.arrivals.put_nowait(IDS)
    await bench.until(lambda: bench.closed)
    assert bench.closed == {IDS[0]: "cancelled"}
    assert not bench.runner.running


async def test_an_execution_that_has_ended_is_not_lost_to_a_cancellation(bench: Bench) -> None:
    bench.arrivals.put_nowait(IDS)
    bench.doors.launch(IDS[0])
    await bench.until(lambda: IDS[0] in bench.runner.running)
    bench.doors.may_answer.clear()
    bench.runner.running[IDS[0]].set()
    await bench.until(bench.doors.is_telling.is_set)
    bench.doors.cancelled.put_nowait(IDS[0])
    await bench.until(bench.doors.cancelled.empty)
    bench.doors.may_answer.set()
    await bench.until(lambda: bench.closed)
    assert bench.closed == {IDS[0]: "completed"}
    assert bench.proxy.dropped == [IDS[0]]


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_the_execution_whose_end_completes_the_run_still_leaves(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """The end of the last one completes an evaluation: every door is closed before the operator has heard the answer."""
    bench = Bench(monkeypatch)
    running = asyncio.ensure_future(bench.run())
    bench.arrivals.put_nowait(IDS[:1])
    bench.doors.launch(IDS[0])
    await bench.until(lambda: IDS[0] in bench.runner.running)
    bench.doors.may_answer.clear()
    if status == "completed":
        bench.runner.running[IDS[0]].set()
    else:
        bench.doors.cancelled.put_nowait(IDS[0])
    await bench.until(bench.doors.is_telling.is_set)
    bench.doors.launches.put_nowait(None)
    bench.doors.cancelled.put_nowait(None)
    await bench.until(bench.doors.launches.empty)
    for _ in range(20):
        await asyncio.sleep(0)
    bench.doors.may_answer.set()
    await asyncio.wait_for(running, 10)
    assert bench.closed == {IDS[0]: status}


async def test_model_calls_go_on_while_a_large_workspace_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench, loop, went_on = Bench(monkeypatch), asyncio.get_running_loop(), threading.Event()

    def read_for_long(workspace: Path) -> str:
        loop.call_soon_threadsafe(went_on.set)
        return "went on" if went_on.wait(5) else "stood still"

    monkeypatch.setattr("gyre.rollout.harness.artifact_version", read_for_long)
    bench.operator.store = SimpleNamespace(run_dir=tmp_path)  # pyright: ignore[reportAttributeAccessIssue]
    row = bench._row(IDS[0])
    ended = {"status": "completed", "reason": "", "launched_at_s": 1.0, "finished_at_s": 2.0}
    closed = await bench.operator._closed_row(row, attempt=1, workspace=tmp_path, **ended)
    assert closed["artifact_version"] == "went on"
