"""Cases from public bug reports of peers, as far as they concern runtime, without Ray; numbers are the list's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_runtime_loop import FakeCell, World

from gyre.errors import TransferError
from gyre.ops.dispatch import QueryOrder
from gyre.records import Batch, MicroStep, PolicyVersion, Task
from gyre.runtime.conductor import Conductor
from gyre.runtime.control import ControlRoom
from gyre.runtime.edges import GroupGate, Inbox, Outbox
from gyre.runtime.resume import FINISHED, ResumeState, reconcile
from gyre.scheduler.config import SchedulerConfig
from gyre.store.run_store import RunStore
from gyre.training.checkpoint import write_checkpoint

TASKS = [{"query_id": f"q{i}", "config": "{}"} for i in range(5)]


class SavingCell(FakeCell):
    """A cell whose checkpoints are on the disk."""

    run_dir: Path

    async def call(self, method: str, *args: Any) -> Any:
        if method == "save_checkpoint":
            version, state, *_ = args
            write_checkpoint(self.run_dir, version, save=lambda folder: None, state=state)
        return await super().call(method, *args)


class StoredWorld(World):
    """A world whose store and checkpoints outlive it; `kill` it and make the next one from what they say."""

    def __init__(self, config: SchedulerConfig, run_dir: Path, *, seed: int, resume: ResumeState | None) -> None:
        super().__init__(config, seed=seed)
        self.store = RunStore(run_dir, writer=f"control{seed}")  # pyright: ignore[reportAttributeAccessIssue]
        self.order = QueryOrder(TASKS, seed=0)
        self.cells = [SavingCell(i, self.rng, {}) for i in range(len(config.cells))]
        conductor = Conductor(
            cells=self.cells,
            engines={f"cell{i}": cell for i, cell in enumerate(self.cells)},
            reroute=self.reroute,
            put_object=lambda row: row,
            store=self.store,
            clip_bounds=(0.995, 1.005),
            keep_checkpoints=None,
        )
        self.room = ControlRoom(config=config, store=self.store, conductor=conductor, resume=resume)
        for cell in self.cells:
            cell.room, cell.run_dir = self.room, run_dir

    def _admission(self, index: int, ids: list[str], version: int) -> pa.Table:
        rows = super()._admission(index, ids, version).to_pylist()
        query_id = self.order.task_of(index)["query_id"]
        return pa.Table.from_pylist([{**row, "query_id": query_id} for row in rows], schema=super()._admission(index, ids, version).schema)

    async def dispatch(self) -> None:
        while (order := await self.room.next_dispatch()) is not None:
            for index in range(order["first_group_index"], order["first_group_index"] + order["num_groups"]):
                await self._admit(index, order["version"])

    async def _admit(self, index: int, version: int) -> None:
        ids = [f"g{index:06d}-{number:02d}" for number in range(self.config.executions_per_group)]
        states = [self.room.executions.get(execution_id) for execution_id in ids]
        self.open[f"g{index:06d}"] = sum(1 for state in states if state is None or state["status"] not in FINISHED)
        await self.room.admitted(self._admission(index, ids, version))
        if not self.open[f"g{index:06d}"]:
            # What the evaluation does with a group whose executions had all ended before the kill.
            outcome = {"unresolved": 0, "placeholders": 0, "cancelled": 0, "reward_sum": 1.0}
            await self.room.group_ready({"group_id": f"g{index:06d}", "valid": self.config.group_size, **outcome})

    async def live(self, *, num_steps: int, moment_s: float) -> None:
        """Run until so many steps were committed and a moment more, then stop as a killed process does."""
        others = asyncio.all_tasks()
        running = asyncio.ensure_future(self.run())
        async with asyncio.timeout(60):
            while len(self.room.conductor.steps) < num_steps:
                await asyncio.sleep(0.001)
        await asyncio.sleep(moment_s)
        for task in asyncio.all_tasks() - others:
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self.store.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("seed", [0, 1])
async def test_case_30_no_group_is_skipped_or_repeated_across_kill_and_restore(tmp_path: Path, seed: int) -> None:
    config = SchedulerConfig(groups_per_step=2, group_size=2, steps=6, mu=2, phi=1.0, cells=(2, 2))
    rng = random.Random(seed)
    resume = None
    for life in range(2):
        await StoredWorld(config, tmp_path, seed=10 * seed + life, resume=resume).live(num_steps=1, moment_s=rng.uniform(0, 0.01))
        resume = reconcile(tmp_path, RunStore(tmp_path, writer=f"resume{life}"), config)
        # Groups in flight and groups that were ready and untrained are all still there.
        consumed = set(RunStore(tmp_path, writer="r").read("consumption").column("group_id").to_pylist())
        admitted = {row["group_id"] for row in resume.executions}
        assert {group.group_id for group in resume.outstanding} == admitted - consumed
    last = StoredWorld(config, tmp_path, seed=10 * seed + 9, resume=resume)
    await last.run()
    store = RunStore(tmp_path, writer="reader")
    assert sorted(store.read("consumption").column("group_id").to_pylist()) == [f"g{i:06d}" for i in range(12)]
    assert sorted(store.read("steps").column("version").to_pylist()) == [1, 2, 3, 4, 5, 6]
    executions = store.read("executions").to_pylist()
    assert len(executions) == 24
    assert {row["status"] for row in executions} == {"completed"}
    # Each group still has the query that an uninterrupted run would have given it.
    assert all(row["query_id"] == last.order.task_of(row["group_index"])["query_id"] for row in executions)


async def test_case_35_a_cells_gate_is_closed_before_its_calls_are_routed_elsewhere() -> None:
    config = SchedulerConfig(groups_per_step=1, group_size=2, steps=3, mu=1, phi=1.0, cells=(4, 4, 4))
    world = World(config, seed=3)
    seen: list[str] = []

    async def reroute(moves: Mapping[str, str]) -> None:
        seen.append("reroute")

    world.room.conductor._reroute = reroute
    core = world.cells[0]
    perform = core.call

    async def call(method: str, *args: Any) -> Any:
        seen.append(method)
        return await perform(method, *args)

    core.call = call  # pyright: ignore[reportAttributeAccessIssue]
    await world.run()
    leaves = [i for i, name in enumerate(seen) if name == "close_gate"]
    assert leaves
    # Nothing that arrives in between can be parked: refused behind the gate, it finds the new route; only then is the rest cut.
    assert all(seen[i : i + 3] == ["close_gate", "reroute", "to_training"] for i in leaves)
    assert world.room.status()["is_complete"]


class StubbornCell(FakeCell):
    """Loads a published version only at the given try."""

    def __init__(self, *args: Any, confirms_at: int, fails: Exception | None = None) -> None:
        super().__init__(*args)
        self.confirms_at, self.fails, self.tries = confirms_at, fails, 0

    async def call(self, method: str, *args: Any) -> Any:
        if method != "load_published":
            return await super().call(method, *args)
        self.tries += 1
        if self.tries < self.confirms_at:
            if self.fails is not None:
                raise self.fails
            return args[0]["version"] - 1
        return await super().call(method, *args)


def stubborn_world(monkeypatch: pytest.MonkeyPatch, *, confirms_at: int, fails: Exception | None) -> World:
    monkeypatch.setattr("gyre.runtime.conductor.PUBLISH_BACKOFF_S", 0.0)
    world = World(SchedulerConfig(groups_per_step=1, group_size=1, steps=2, mu=1, cells=(1, 1)))
    cell = StubbornCell(1, world.rng, {}, confirms_at=confirms_at, fails=fails)
    cell.room = world.room
    world.cells[1] = cell
    world.room.conductor._cells[1] = cell
    world.room.conductor._engines["cell1"] = cell
    return world


FAILURES = [TransferError("the peer is gone"), None]


@pytest.mark.parametrize("fails", FAILURES, ids=["write fails", "old version confirmed"])
async def test_case_37_a_failed_write_leaves_the_version_and_poisons_the_run(monkeypatch, fails: Exception | None) -> None:
    world = stubborn_world(monkeypatch, confirms_at=99, fails=fails)
    with pytest.raises(TransferError, match="version 1 could not be published to cell1"):
        await world.run()
    assert (world.room.scheduler.published_version, world.room.scheduler.version) == (0, 1)
    assert not any(row["kind"] == "published" for row in world.store.rows("events"))
    assert not any(row["confirmed"] for row in world.store.rows("publications") if row["engine"] == "cell1")
    # Nothing is trained or published behind the failure.
    assert [row["version"] for row in world.store.rows("steps")] == [1]


@pytest.mark.parametrize("fails", FAILURES, ids=["write fails", "old version confirmed"])
async def test_case_37_a_failed_try_never_publishes_what_a_later_one_has_not_confirmed(monkeypatch, fails: Exception | None) -> None:
    world = stubborn_world(monkeypatch, confirms_at=3, fails=fails)
    await world.run()
    assert world.room.scheduler.published_version == 2
    confirmed = [row["confirmed"] for row in world.store.rows("publications") if row["engine"] == "cell1" and row["version"] == 1]
    assert confirmed == [False, False, True]


def task(number: int) -> Batch[Task]:
    row = {"query_id": f"q{number}", "instruction": "", "task_path": "", "config": "{}"}
    return Batch.of(Task, [{name: row.get(name, "") for name in Task.schema().names}])


async def test_case_42_a_slow_sink_slows_its_source_and_wedges_nothing() -> None:
    """A chain with a fork, every edge of the smallest capacity, one sink much slower than the other."""
    middle, fast, slow = Inbox(1), Inbox(1), Inbox(1)
    taken: dict[str, list[str]] = {"fast": [], "slow": []}
    num_sent, most_ahead = 0, 0

    async def source() -> None:
        nonlocal num_sent, most_ahead
        out = Outbox([middle.put])
        for number in range(30):
            await out.put(task(number))
            num_sent += 1
            most_ahead = max(most_ahead, num_sent - len(taken["slow"]))
        await out.put(None)

    async def fork() -> None:
        out = Outbox([fast.put, slow.put])
        async for batch in middle:
            await out.put(batch)
        await out.put(None)

    async def sink(name: str, inbox: Inbox, pauses: int) -> None:
        async for batch in inbox:
            for _ in range(pauses):
                await asyncio.sleep(0)
            taken[name].append(batch.rows()[0]["query_id"])

    async with asyncio.timeout(20):
        await asyncio.gather(source(), fork(), sink("fast", fast, 0), sink("slow", slow, 25))
    assert taken["fast"] == taken["slow"] == [f"q{i}" for i in range(30)]
    assert most_ahead <= 5  # one in each edge and one in each operator's hands


async def test_case_42_operators_that_wait_for_each_other_over_a_feedback_edge_go_on() -> None:
    """`dispatch` needs all tasks before it admits, while whoever brings them waits for room on the feedback edge."""
    from gyre.ops.dispatch import Dispatch

    orders = [{"num_groups": 1, "first_group_index": i, "version": i, "restored": False} for i in range(20)]

    class Doors:
        async def next_dispatch(self) -> Mapping[str, Any] | None:
            return orders.pop(0) if orders else None

        async def admitted(self, executions: pa.Table) -> None: ...

    tasks, versions, executions = Inbox(1), Inbox(1), Inbox(1)

    async def train() -> None:
        for version in range(1, 20):
            await versions.put(Batch.of(PolicyVersion, [{"version": version, "time_s": 0.0}]))
        for number in range(5):
            await tasks.put(task(number))
        await tasks.put(None)

    async def admit() -> None:
        doors: Any = Doors()
        async for batch in Dispatch(group_size=1, control=doors).run(tasks, versions):  # pyright: ignore[reportArgumentType]
            await executions.put(batch)
        await executions.put(None)

    async def count() -> int:
        return len([batch async for batch in executions])

    async with asyncio.timeout(20):
        assert (await asyncio.gather(train(), admit(), count()))[2] == 20


class PackingWorld(World):
    """A world whose packing buffer is always fuller than the queue takes, with executions that span rows."""

    async def consume(self) -> None:
        gate = GroupGate(self.room)  # pyright: ignore[reportArgumentType]
        arrived: set[str] = set()

        async def bring() -> None:
            while True:
                for row in list(self.room.groups.values()):
                    if "valid" in row and row["group_id"] not in arrived:
                        arrived.add(row["group_id"])
                        await gate.put(Batch(pa.table({"group_id": [row["group_id"]]})))
                await asyncio.sleep(0.001)

        bringing = asyncio.ensure_future(bring())
        try:
            async for group in gate:
                assert group.step is not None
                await self.room.enqueue(self._rows(group.table.column("group_id")[0].as_py()))
                if group.step.last:
                    await self.room.close_stream(group.step.version)
        finally:
            bringing.cancel()

    def _rows(self, group_id: str) -> pa.Table:
        kinds = ["ratio", "ratio", "gradient", "gradient", "gradient"]
        rows = [{**self._microstep(f"{group_id}/{i}"), "kind": kind} for i, kind in enumerate(kinds)]
        for row in rows[:4]:
            row["segments"] = [{**row["segments"][0], "execution_id": f"{group_id}-00", "whole": False}]
        return Batch.of(MicroStep, rows).table


class RatioCell(FakeCell):
    """Answers ratio items, too, and takes its time over everything."""

    async def _train(self, version: int) -> int:
        count = 0
        while (claim := await self.room.claim(self.index, version)) is not None:
            await asyncio.sleep(0.004)
            item_id = claim["item_id"]
            ratios = {"ratios": {f"{item_id.split('/')[0]}-00": (0.0, 1)}}
            result = ratios if claim["kind"] == "ratio" else {"loss_sum": 1.0, "target_tokens": 3, "clipped": []}
            await self.room.microstep_done(self.index, item_id, result)
            count += 1
        return count


async def test_case_42_slow_cells_and_a_full_queue_do_not_stop_the_run() -> None:
    config = SchedulerConfig(groups_per_step=3, group_size=2, steps=3, mu=1, phi=0.5, cells=(2, 2))
    world = PackingWorld(config, seed=5)
    world.cells = [RatioCell(i, world.rng, {}) for i in range(2)]
    conductor = world.room.conductor
    conductor._cells, conductor._engines, conductor._max_unclaimed = world.cells, dict(zip(("cell0", "cell1"), world.cells, strict=True)), 1
    for cell in world.cells:
        cell.room = world.room
    await world.run()
    assert [row["version"] for row in world.store.rows("steps")] == [1, 2, 3]
    assert [row["target_tokens"] for row in world.store.rows("steps")] == [3 * 3 * 3] * 3
    assert sorted(row["group_id"] for row in world.store.rows("consumption")) == [f"g{i:06d}" for i in range(9)]


async def test_case_42_groups_that_come_in_another_order_than_they_are_consumed_pass_the_gate() -> None:
    orders = [{"group_id": f"g{i}", "version": 1, "last": i == 3} for i in (2, 0, 3, 1)]

    class Doors:
        async def next_group(self) -> Mapping[str, Any] | None:
            await asyncio.sleep(0)
            return orders.pop(0) if orders else None

    doors: Any = Doors()
    gate = GroupGate(doors)

    async def come() -> AsyncIterator[None]:
        for i in (0, 1, 2, 3):
            await gate.put(Batch(pa.table({"group_id": [f"g{i}"]})))
            yield

    passed: list[str] = []

    async def leave() -> None:
        async for group in gate:
            passed.append(group.table.column("group_id")[0].as_py())

    async with asyncio.timeout(10):
        leaving = asyncio.ensure_future(leave())
        async for _ in come():
            await asyncio.sleep(0)
        await leaving
    assert passed == ["g2", "g0", "g3", "g1"]
