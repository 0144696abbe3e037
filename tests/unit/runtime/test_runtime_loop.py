"""The control room and the conductor with cells, harnesses and an evaluation that only pretend, in one event loop and without Ray."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gyre.errors import RunError, TransferError
from gyre.ops.dispatch import execution_ids
from gyre.records import Batch, Execution, MicroStep
from gyre.runtime.conductor import Conductor
from gyre.runtime.control import ControlRoom, Door
from gyre.runtime.doors import EngineRoutes
from gyre.scheduler.config import SchedulerConfig


class MemoryStore:
    """The `Store` protocol in memory."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}

    @property
    def run_dir(self) -> Path:
        return Path("run")

    def append(self, table: str, rows: Any) -> None:
        self.tables.setdefault(table, []).extend(dict(row) for row in rows)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.tables.get(table, [])


class FakeCell:
    """Answers the conductor's calls after a moment; claims micro-steps like a real cell."""

    def __init__(self, index: int, rng: random.Random, failing: Mapping[str, Exception]) -> None:
        self.index, self.rng, self.failing = index, rng, dict(failing)
        self.room: Any = None
        self.calls: list[str] = []

    async def call(self, method: str, *args: Any) -> Any:
        self.calls.append(method)
        await asyncio.sleep(self.rng.uniform(0, 0.002))
        if method in self.failing:
            raise self.failing[method]
        match method:
            case "expose":
                return {"version": args[0]}
            case "load_published":
                return args[0]["version"]
            case "train":
                return await self._train(args[0])
            case "update":
                return 1.0
        return None

    async def _train(self, version: int) -> int:
        count = 0
        while (claim := await self.room.claim(self.index, version)) is not None:
            await asyncio.sleep(self.rng.uniform(0, 0.003))
            result = {"loss_sum": 1.0, "target_tokens": 3, "clipped": []}
            await self.room.microstep_done(self.index, claim["item_id"], result)
            count += 1
        return count


class World:
    """Everything around the control room that a run has."""

    def __init__(self, config: SchedulerConfig, *, seed: int = 0, failing: Mapping[str, Exception] | None = None, **room: Any) -> None:
        self.rng = random.Random(seed)
        self.config = config
        self.store = MemoryStore()
        self.cells = [FakeCell(i, self.rng, failing or {}) for i in range(len(config.cells))]
        conductor = Conductor(
            cells=self.cells,
            engines={f"cell{i}": cell for i, cell in enumerate(self.cells)},
            reroute=self.reroute,
            put_object=lambda row: row,
            store=self.store,
            clip_bounds=(0.995, 1.005),
            keep_checkpoints=None,
        )
        self.room = ControlRoom(config=config, store=self.store, conductor=conductor, resume=None, **room)
        for cell in self.cells:
            cell.room = self.room
        self.open: dict[str, int] = {}

    async def reroute(self, moves: Mapping[str, str]) -> None:
        await asyncio.sleep(0)

    async def run(self) -> None:
        tasks = [asyncio.ensure_future(c) for c in (self.room.run(), self.dispatch(), self.launch(), self.consume(), self.versions())]
        await self.room.start()
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def dispatch(self) -> None:
        while (order := await self.room.next_dispatch()) is not None:
            for index in range(order["first_group_index"], order["first_group_index"] + order["num_groups"]):
                ids = execution_ids(index, self.config.executions_per_group)
                self.open[f"g{index:06d}"] = len(ids)
                await self.room.admitted(self._admission(index, ids, order["version"]))

    def _admission(self, index: int, ids: list[str], version: int) -> pa.Table:
        common = {
            "group_id": f"g{index:06d}",
            "group_index": index,
            "group_size": len(ids),
            "group_surplus": 0,
            "query_id": "q",
            "attempt": 1,
            "dispatch_version": version,
            "dispatched_at_s": 0.0,
            "instruction": "",
            "task_path": "",
            "config": "{}",
            "restored": False,
        }
        return Batch.of(Execution, [{**common, "execution_id": i} for i in ids]).table

    async def launch(self) -> None:
        running: set[asyncio.Task[None]] = set()
        while (launch := await self.room.next_launch()) is not None:
            task = asyncio.ensure_future(self.execute(launch["execution_id"]))
            running.add(task)
            task.add_done_callback(running.discard)

    async def execute(self, execution_id: str) -> None:
        await self.room.launched(execution_id, f"workspaces/{execution_id}")
        await asyncio.sleep(self.rng.uniform(0, 0.004))
        await self.room.finished(execution_id, "completed", "it ended")
        group_id = execution_id.rpartition("-")[0]
        self.open[group_id] -= 1
        if not self.open[group_id]:
            outcome = {"unresolved": 0, "placeholders": 0, "cancelled": 0, "reward_sum": 1.0}
            await self.room.group_ready({"group_id": group_id, "valid": self.config.group_size, **outcome})

    async def consume(self) -> None:
        while (order := await self.room.next_group()) is not None:
            rows = [self._microstep(f"{order['group_id']}/{i}") for i in range(self.rng.randrange(3))]
            if rows:
                await self.room.enqueue(Batch.of(MicroStep, rows).table)
            if order["last"]:
                await self.room.close_stream(order["version"])

    @staticmethod
    def _microstep(microstep_id: str) -> dict[str, Any]:
        segment = {"execution_id": "e", "trajectory_id": "t", "advantage": 1.0, "execution_targets": 1, "whole": True}
        return {
            "microstep_id": microstep_id,
            "kind": "gradient",
            "input_ids": [1, 2],
            "cu_seqlens": [0, 2],
            "target_mask": [False, True],
            "behavior_logprobs": [0.0, -1.0],
            "segments": [segment],
        }

    async def versions(self) -> None:
        while await self.room.next_version() is not None:
            pass


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "elastic", "phi": 0.5, "mu": 2},
        {"policy": "async", "phi": 1.0, "mu": 1},
        {"policy": "colocate", "phi": 0.0, "mu": 3},
    ],
    ids=["elastic", "async", "colocate"],
)
async def test_a_run_trains_every_group_once(settings: dict[str, Any], seed: int) -> None:
    config = SchedulerConfig(groups_per_step=2, group_size=2, steps=5, cells=(2, 2, 2), **settings)
    world = World(config, seed=seed)
    await world.run()
    status = world.room.status()
    assert status["dispatched"] == status["launched"] == status["finished"] == 20
    assert [row["version"] for row in world.store.rows("steps")] == [1, 2, 3, 4, 5]
    consumed = [row["group_id"] for row in world.store.rows("consumption")]
    assert sorted(consumed) == [f"g{i:06d}" for i in range(10)]
    assert world.room.scheduler.published_version == 5


async def test_every_finished_microstep_counts_once() -> None:
    config = SchedulerConfig(groups_per_step=3, group_size=2, steps=4, mu=2, phi=0.5, cells=(2, 2, 2))
    world = World(config, seed=7)
    await world.run()
    for step in world.store.rows("steps"):
        assert step["loss"] * step["executions"] * 3 == pytest.approx(step["target_tokens"])


async def test_a_failed_publication_leaves_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyre.runtime.conductor.PUBLISH_BACKOFF_S", 0.0)
    config = SchedulerConfig(groups_per_step=1, group_size=1, steps=2, cells=(1, 1))
    world = World(config, failing={"load_published": TransferError("the peer is gone")})
    with pytest.raises(TransferError, match="could not be published"):
        await world.run()
    assert world.room.scheduler.published_version == 0
    assert [row["version"] for row in world.store.rows("steps")] == [1]
    assert not any(row["confirmed"] for row in world.store.rows("publications"))
    assert not any(row["kind"] == "published" for row in world.store.rows("events"))


@pytest.mark.parametrize("method", ["train", "reduce", "update", "save_checkpoint", "to_training"])
async def test_a_failing_cell_ends_the_run_before_anything_is_committed(method: str) -> None:
    config = SchedulerConfig(groups_per_step=1, group_size=1, steps=2, cells=(1, 1))
    world = World(config, failing={method: RunError("a process is gone")})
    with pytest.raises(RunError, match="a process is gone"):
        await world.run()
    assert world.store.rows("steps") == []
    assert world.store.rows("consumption") == []


async def test_a_checkpoint_is_told_which_version_the_engines_serve() -> None:
    """Its cell deletes old checkpoints, and the published one must outlive the burst."""
    config = SchedulerConfig(groups_per_step=1, group_size=1, steps=4, mu=3, cells=(1, 1))
    world = World(config)
    told: list[tuple[int, int]] = []
    core = world.cells[0]
    perform = core.call

    async def call(method: str, *args: Any) -> Any:
        if method == "save_checkpoint":
            told.append((args[0], args[-1]))
        return await perform(method, *args)

    core.call = call
    await world.run()
    assert told == [(1, 0), (2, 0), (3, 0), (4, 3)]


async def test_stopping_closes_every_door() -> None:
    config = SchedulerConfig(groups_per_step=1, group_size=1, steps=None, cells=(1, 1))
    world = World(config)
    runner = asyncio.ensure_future(world.run())
    while not world.store.rows("steps"):
        await asyncio.sleep(0.001)
    await world.room.stop()
    await runner
    assert world.room.status()["is_over"]
    assert not world.room.status()["is_complete"]


async def test_an_open_horizon_ends_at_its_last_step_with_groups_outstanding() -> None:
    config = SchedulerConfig(groups_per_step=1, group_size=1, steps=None, phi=2.0, cells=(1, 1))
    world = World(config, last_step=3)
    await world.run()
    assert [row["version"] for row in world.store.rows("steps")] == [1, 2, 3]
    status = world.room.status()
    assert status["is_complete"]
    assert status["dispatched"] > 3
    assert [row["version"] for row in world.room.status(2)["steps"]] == [3]


async def test_a_move_that_overtakes_the_launch_it_follows_is_kept() -> None:
    """Launches and role changes come over different doors: the engine that a late launch names may have left rollout."""
    routes = EngineRoutes(model_dir=Path("model"), urls={"cell0": "http://0", "cell1": "http://1", "cell2": "http://2"})
    routes.reroute({"g000000-00": "cell1"})
    routes.assign("g000000-00", "cell0")
    assert await routes.route("g000000-00") == "http://1"
    routes.reroute({"g000000-00": "cell2"})
    assert await routes.route("g000000-00") == "http://2"
    routes.forget("g000000-00")
    routes.assign("g000000-00", "cell0")
    assert await routes.route("g000000-00") == "http://0"


class IdleCell(FakeCell):
    """Never claims anything."""

    async def _train(self, version: int) -> int:
        await asyncio.Event().wait()
        return 0


async def test_stopping_frees_whoever_waits_for_room_in_the_queue() -> None:
    """Micro-steps that no cell claims any more must not hold their operator, and with it the run, for ever."""
    config = SchedulerConfig(groups_per_step=4, group_size=1, steps=1, cells=(4, 4))
    world = World(config)
    conductor = world.room.conductor
    conductor._cells = [IdleCell(i, world.rng, {}) for i in range(2)]
    conductor._max_unclaimed = 0
    runner = asyncio.ensure_future(world.run())
    while conductor._step is None or not conductor._step.training:
        await asyncio.sleep(0.001)
    await world.room.stop()
    await asyncio.wait_for(runner, 10)
    assert world.store.rows("steps") == []


async def test_nothing_is_handed_out_that_comes_to_a_closed_door() -> None:
    door: Door[str] = Door()
    door.put("before")
    door.close()
    door.put("after")
    assert [await door.get(), await door.get()] == ["before", None]
