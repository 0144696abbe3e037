"""Resources as operators see them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from gyre.errors import RunError
from gyre.records import Batch, ScoredExecution, StepMark
from gyre.runtime.doors import ControlClient, RunTrees
from gyre.runtime.pools import NodeRunner, NodeSpec, PortSpec
from gyre.store.run_store import RunStore


async def is_gone(*_: Any) -> None:
    raise RayActorError


async def test_a_lost_process_ends_the_run_and_costs_no_group(tmp_path: Path) -> None:
    """`tree_select` asks a pool that is gone; as a bad record of its own, the group would be trained without its trajectories."""
    pool = SimpleNamespace(operator=SimpleNamespace(remote=is_gone), control=SimpleNamespace(remote=is_gone))
    store = RunStore(tmp_path, writer="materialize")
    spec = NodeSpec(
        node="select",
        target="gyre.ops.tree_select:TreeSelect",
        settings={},
        resources={"trees": "Trees"},
        inputs={"scored": PortSpec(record=ScoredExecution, is_stream=False)},
    )
    resources = {"Trees": RunTrees(pool=pool, node="rollout", store=store)}
    runner = NodeRunner(spec, resources=resources, store=store, control=ControlClient(pool))
    names = {"execution_id": "e0", "group_id": "g0", "query_id": "q", "outcome": "scored"}
    row = {**names, "attempt": 1, "dispatch_version": 0, "reward": 1.0}
    await runner.inboxes["scored"].put(Batch.of(ScoredExecution, [row], step=StepMark(1, True)))
    with pytest.raises(RunError, match="a process of the run is gone"):
        await runner.run()
    assert not (tmp_path / "quarantine.jsonl").exists()
