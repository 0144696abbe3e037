"""`dispatch`: admits groups of executions when the scheduler says so (paper section 4.2, boundary dispatch).

How many groups and when is the scheduler's decision (`gyre.scheduler`); which query a group gets is decided here, from the seed and
the group's index alone, so that a resumed run admits the same groups. One pass over the tasks takes one query of each family
(`[metadata] family` of a Harbor task; tasks without one are families of their own), in an order drawn anew for each pass.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gyre.records import Batch, Control, Execution, PolicyVersion, Stream, Task, op


def execution_ids(group_index: int, size: int) -> list[str]:
    """Ids of the executions of a group; all ids of a run have the same length (engines match ids by prefix)."""
    return [f"g{group_index:06d}-{number:02d}" for number in range(size)]


class QueryOrder:
    """Which task the group of an index gets.

    >>> order = QueryOrder([{"query_id": q, "config": "{}"} for q in "abc"], seed=0)
    >>> sorted(order.task_of(i)["query_id"] for i in range(3))
    ['a', 'b', 'c']
    """

    def __init__(self, tasks: Sequence[Mapping[str, Any]], *, seed: int) -> None:
        self._seed = seed
        self._families: dict[str, list[Mapping[str, Any]]] = {}
        for task in sorted(tasks, key=lambda t: t["query_id"]):
            family = json.loads(task["config"]).get("metadata", {}).get("family") or task["query_id"]
            self._families.setdefault(family, []).append(task)
        self._names = sorted(self._families)

    def _permutation(self, *key: int, size: int) -> np.ndarray:
        return np.random.default_rng([self._seed, *key]).permutation(size)

    def task_of(self, group_index: int) -> Mapping[str, Any]:
        """The task of a group: without replacement over families in a pass, and over a family's tasks in its passes."""
        number, place = divmod(group_index, len(self._names))
        family = int(self._permutation(1, number, size=len(self._names))[place])
        members = self._families[self._names[family]]
        round_, member = divmod(number, len(members))
        return members[int(self._permutation(2, family, round_, size=len(members))[member])]


@op("dispatch", state="store")
class Dispatch:
    """Admit groups: at start `(phi + mu) * B`, after each publication `mu * B` more.

    State across batches: none of its own; the scheduler repeats the admitted groups of a resumed run.
    """

    def __init__(
        self,
        *,
        phi: float = 0.0,
        mu: int = 1,
        groups_per_step: int = 8,
        group_size: int = 8,
        steps: int | None = None,
        seed: int = 0,
        horizon: Literal["closed", "open"] = "closed",
        oversample: int = 0,
        launch_order: Literal["fifo", "longest_first"] = "fifo",
        control: Control,
    ) -> None:
        """Take the settings of boundary dispatch.

        Args:
            phi: extra dispatch, in units of `groups_per_step` groups.
            mu: steps between two weight publications.
            groups_per_step: B, groups per optimizer update.
            group_size: N, executions per group.
            steps: optimizer updates of the run; None runs until it is stopped.
            seed: seed of the order of queries.
            horizon: 'closed' admits exactly steps * B groups; 'open' does not cut (the first steps of a longer run).
            oversample: executions admitted per group beyond N; the surplus is cancelled when N have valid outcomes.
            launch_order: 'fifo', or 'longest_first' within a burst.
            control: the scheduler's doors.
        """
        self.group_size = group_size
        self.oversample = oversample
        self.seed = seed
        self.control = control

    async def run(self, tasks: Stream[Task], versions: Stream[PolicyVersion] | None = None) -> Stream[Execution]:
        """Admit groups as ordered, each under the version that was published last; without training there is only version 0."""
        # The feedback edge is emptied from the first moment: whoever fills it must never wait for this operator to be elsewhere.
        published = _Newest(versions)
        try:
            listed = [row async for batch in tasks for row in batch.rows()]
            order = QueryOrder(listed, seed=self.seed)
            while (wanted := await self.control.next_dispatch()) is not None:
                if not wanted["restored"]:
                    await published.at_least(wanted["version"])
                batch = Batch.of(Execution, self._rows(order, wanted))
                await self.control.admitted(batch.table)
                yield batch
        finally:
            published.stop()

    def _rows(self, order: QueryOrder, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for index in range(wanted["first_group_index"], wanted["first_group_index"] + wanted["num_groups"]):
            task = order.task_of(index)
            rows += [
                {
                    "execution_id": execution_id,
                    "group_id": f"g{index:06d}",
                    "group_index": index,
                    "group_size": self.group_size,
                    "group_surplus": self.oversample,
                    "query_id": task["query_id"],
                    "attempt": 1,
                    "dispatch_version": wanted["version"],
                    "dispatched_at_s": time.time(),
                    "instruction": task["instruction"],
                    "task_path": task["task_path"],
                    "config": task["config"],
                    "restored": wanted["restored"],
                }
                for execution_id in execution_ids(index, self.group_size + self.oversample)
            ]
        return rows


class _Newest:
    """The newest version that came over the feedback edge."""

    def __init__(self, versions: Stream[PolicyVersion] | None) -> None:
        self._version = 0
        self._came = asyncio.Event()
        self._reader = asyncio.ensure_future(self._read(versions))

    async def _read(self, versions: Stream[PolicyVersion] | None) -> None:
        if versions is None:
            return
        async for batch in versions:
            self._version = max(self._version, *(row["version"] for row in batch.rows()))
            self._came.set()

    async def at_least(self, version: int) -> None:
        while self._version < version:
            self._came.clear()
            await self._came.wait()

    def stop(self) -> None:
        self._reader.cancel()
