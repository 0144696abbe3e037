"""Cases from public bug reports of peers, as far as they concern operators; numbers are the list's."""

from __future__ import annotations

from typing import Any, get_args

import pyarrow as pa

from gyre.ops.tree_select import Role, TreeSelect
from gyre.records import Batch, ScoredExecution
from gyre.trajectory.node import ROLES
from gyre.trajectory.tree import TrajectoryTree


class HeldTrees:
    """The `Trees` protocol over trees in memory."""

    def __init__(self, trees: dict[str, TrajectoryTree]) -> None:
        self.trees = trees

    async def calls(self, execution_id: str, attempt: int) -> pa.Table:
        return self.trees[execution_id].to_table()

    async def drop(self, execution_id: str) -> None:
        self.trees.pop(execution_id, None)


def scored_row(execution_id: str, reward: float | None) -> dict[str, Any]:
    empty: dict[Any, Any] = {pa.string(): "", pa.bool_(): False, pa.int32(): 0, pa.int64(): 0, pa.float64(): 0.0}
    row = {field.name: None if field.nullable else empty.get(field.type) for field in ScoredExecution.schema()}
    return {**row, "execution_id": execution_id, "group_id": "g000000", "attempt": 1, "reward": reward}


def one_call(execution_id: str) -> TrajectoryTree:
    tree = TrajectoryTree(execution_id, 1)
    fields: dict[str, Any] = {"role": "main", "finish_reason": "stop", "started_at_s": 0.0, "finished_at_s": 1.0}
    tree.add(None, ["user", "answer"], [1, 2], [3, 4], [-0.1, -0.2], [(0, 0, 2)], **fields)
    return tree


async def test_case_17_trees_of_a_group_are_dropped_whatever_became_of_its_members() -> None:
    ids = [f"g000000-{number:02d}" for number in range(4)]
    # Scored, scored, unresolved or cancelled, and one whose workspace never started: no call was ever made.
    trees = HeldTrees({execution_id: one_call(execution_id) for execution_id in ids[:3]} | {ids[3]: TrajectoryTree(ids[3], 1)})
    rewards = [1.0, 0.0, None, 0.0]
    rows = [scored_row(execution_id, reward) for execution_id, reward in zip(ids, rewards, strict=True)]
    selected = await TreeSelect(trees=trees).run(Batch.of(ScoredExecution, rows))
    assert trees.trees == {}
    assert selected.table.column("execution_id").to_pylist() == ids[:2]


def test_the_roles_of_a_pipelines_order_are_those_that_a_call_may_have() -> None:
    assert get_args(Role) == ROLES
