"""`tree_select`: ready groups to trajectories (paper section 5.3): advantages, draws, masks.

One batch in is one ready group, so nothing is remembered between batches. The trees come from the `Trees` resource; they are
dropped once their group has been selected.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gyre.records import Batch, ScoredExecution, Trajectory, Trees, op

ROLE_ORDER = ("main", "main-summary", "sub-agent", "sub-agent-summary")


@op("tree_select")
class TreeSelect:
    """Select at most `j_max` trajectories per execution, by role priority, with on-tree masking."""

    def __init__(
        self,
        *,
        j_max: int | None = 5,
        role_order: list[str] | None = None,
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
        from gyre.trajectory.advantage import group_advantages

        rows = scored.rows()
        advantages = group_advantages([row["reward"] for row in rows], normalize_std=self.normalize_std)
        usable = [(row, a) for row, a in zip(rows, advantages, strict=True) if row["reward"] is not None]
        selected = await asyncio.gather(*(self._select(row, advantage) for row, advantage in usable))
        await asyncio.gather(*(self.trees.drop(row["execution_id"]) for row in rows))
        return Batch.of(Trajectory, [row for rows in selected for row in rows])

    async def _select(self, scored: dict[str, Any], advantage: float) -> list[dict[str, Any]]:
        from gyre.trajectory.sampling import materialize, select_trajectories
        from gyre.trajectory.tree import TrajectoryTree

        execution_id, attempt = scored["execution_id"], scored["attempt"]
        table = await self.trees.calls(execution_id, attempt)
        if not table.num_rows:
            return []
        tree = TrajectoryTree.from_table(table)
        drawn = select_trajectories(tree, j_max=self.j_max, role_order=self.role_order, seed=self.seed, execution_id=execution_id)
        return [
            {
                "execution_id": execution_id,
                "group_id": scored["group_id"],
                "attempt": attempt,
                "advantage": advantage,
                **row,
            }
            for row in materialize(tree, drawn)
        ]
