"""`tree_select`: ready groups to trajectories (paper section 5.3): advantages, draws, masks.

One batch in is one ready group, so nothing is remembered between batches. The trees come from the `Trees` resource; they are
dropped once their group has been selected.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pyarrow as pa

from gyre.records import Batch, ScoredExecution, Trajectory, Trees, op
from gyre.trajectory.advantage import group_advantages
from gyre.trajectory.sampling import ROLE_ORDER, materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

Role = Literal["main", "main-summary", "sub-agent", "sub-agent-summary", "side"]
"""What a call may be; `gyre.trajectory.node.ROLES` in a form that a pipeline's settings are checked with."""


@op("tree_select")
class TreeSelect:
    """Select at most `j_max` trajectories per execution, by role priority, with on-tree masking."""

    def __init__(
        self,
        *,
        j_max: int | None = 5,
        role_order: list[Role] | None = None,
        normalize_std: bool = True,
        seed: int = 0,
        trees: Trees,
    ) -> None:
        """Take the settings of selection.

        Args:
            j_max: most trajectories admitted per execution; None admits all.
            role_order: classes by falling priority; roles that are not listed are never trained. None: main, main-summary,
                sub-agent, sub-agent-summary.
            normalize_std: divide advantages by the group's standard deviation.
            seed: seed of the draws, together with the execution's id.
            trees: trajectory trees by execution.
        """
        self.j_max = j_max
        self.role_order = tuple(role_order or ROLE_ORDER)
        self.normalize_std = normalize_std
        self.seed = seed
        self.trees = trees

    async def run(self, scored: Batch[ScoredExecution]) -> Batch[Trajectory]:
        """Select the trajectories of one ready group."""
        rows = scored.rows()
        advantages = group_advantages([row["reward"] for row in rows], normalize_std=self.normalize_std)
        usable = [(row, a) for row, a in zip(rows, advantages, strict=True) if row["reward"] is not None]
        selected = await asyncio.gather(*(self._select(row, advantage) for row, advantage in usable))
        await asyncio.gather(*(self.trees.drop(row["execution_id"]) for row in rows))
        return Batch(pa.concat_tables([Trajectory.schema().empty_table(), *selected]))

    async def _select(self, scored: dict[str, Any], advantage: float) -> pa.Table:
        calls = await self.trees.calls(scored["execution_id"], scored["attempt"])
        if not calls.num_rows:
            return Trajectory.schema().empty_table()
        tree = TrajectoryTree.from_table(calls)
        drawn = select_trajectories(tree, j_max=self.j_max, seed=self.seed, execution_id=tree.execution_id, role_order=self.role_order)
        return materialize(tree, drawn, group_id=scored["group_id"], advantage=advantage)
