"""The packing buffer's shared queue of micro-steps, claimed atomically by the training cells (paper section 4.4).

One queue serves one step after another. Items are claimed in the order of enqueueing, ratio items before gradient items; an item with
executions that span rows waits until their ratios are fixed. When a cell is lost, every gradient item that it or a later cell had
claimed returns, finished ones too, because their accumulation is thrown away; finished ratio items stay, their reports are here.

Feeds: the packing buffer (`enqueue`, `close`), the cells (`claim`, `finish`, `report_ratio`). Eats: the scheduler, which is told once
each step when the queue is `is_exhausted` and when it is `is_drained`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gyre.scheduler.ratios import ExecutionRatios, FixedRatio

Kind = Literal["gradient", "ratio"]
State = Literal["waiting", "claimable", "claimed", "finished"]


class ClaimedItem(NamedTuple):
    """What a cell is to do next."""

    item_id: str
    """The micro-step."""
    kind: Kind
    """'ratio': forward only."""
    masks: dict[str, int]
    """M_i of the executions in it that span rows."""


@dataclass(slots=True)
class _Item:
    item_id: str
    place: int
    """Position in the order of enqueueing."""
    kind: Kind
    cost: float
    spanning: frozenset[str]
    """Executions in it whose targets lie in several rows."""
    state: State = "waiting"
    cell: int | None = None


class ClaimQueue:
    """Micro-steps of the running step.

    >>> queue = ClaimQueue()
    >>> queue.open(version=1)
    >>> queue.enqueue("r0", kind="ratio", spanning={"e": 1.0})
    >>> queue.enqueue("m0", kind="gradient", spanning={"e": 1.0})
    >>> queue.enqueue("m1", kind="gradient")
    >>> queue.close()
    >>> [queue.claim(cell) for cell in (0, 1, 2)]
    [ClaimedItem(item_id='r0', kind='ratio', masks={}), ClaimedItem(item_id='m1', kind='gradient', masks={}), None]
    >>> queue.report_ratio("e", row_id="r0", sum_log_r=0.0, count=4), queue.finish(0, "r0")
    (FixedRatio(ratio=1.0, mask=1), True)
    >>> queue.claim(2), queue.is_exhausted, queue.is_drained
    (ClaimedItem(item_id='m0', kind='gradient', masks={'e': 1}), True, False)
    >>> queue.lose_from(1)
    ['m0', 'm1']
    >>> queue.claim(0), queue.claim(0)
    (ClaimedItem(item_id='m0', kind='gradient', masks={'e': 1}), ClaimedItem(item_id='m1', kind='gradient', masks={}))
    """

    def __init__(self, *, clip_low: float = 0.995, clip_high: float = 1.005) -> None:
        self.version = 0
        """Version that the step makes."""
        self.is_closed = True
        """True once every micro-step of the step has been enqueued."""
        self._clip_low, self._clip_high = clip_low, clip_high
        self._items: dict[str, _Item] = {}
        self._claimable: list[tuple[bool, int, str]] = []
        """Heap: ratio items first, then in the order of enqueueing."""
        self._num_unclaimed = 0
        self._num_unfinished = 0
        self.ratios = ExecutionRatios(clip_low=clip_low, clip_high=clip_high)
        """Ratios of the executions that span rows."""

    # ---- packing buffer --------------------------------------------------------------------------------------------------------

    def open(self, version: int) -> None:
        """Start the stream of the step that makes `version`."""
        assert self.is_drained, f"step {self.version} still has {self._num_unfinished} micro-steps"
        self.version = version
        self.is_closed = False
        self._items = {}
        self.ratios = ExecutionRatios(clip_low=self._clip_low, clip_high=self._clip_high)

    def enqueue(self, item_id: str, *, kind: Kind = "gradient", cost: float = 1.0, spanning: Mapping[str, float] | None = None) -> None:
        """Add a micro-step.

        Args:
            item_id: unique in the run.
            kind: 'ratio' for a forward-only item; the ratio items of an execution come before its gradient items.
            cost: expected work, e.g. tokens.
            spanning: advantage of each execution in it whose targets lie in several rows.
        """
        assert not self.is_closed, f"{item_id} came after the stream of step {self.version} was closed"
        assert item_id not in self._items, f"{item_id} was enqueued twice"
        spans = dict(spanning or {})
        item = _Item(item_id, len(self._items), kind, cost, frozenset(spans))
        if kind == "ratio":
            self.ratios.expect(item_id, spans)
        self._items[item_id] = item
        self._num_unclaimed += 1
        self._num_unfinished += 1
        self._admit(item)

    def _admit(self, item: _Item) -> None:
        if item.kind == "ratio" or item.spanning <= self.ratios.fixed.keys():
            self._offer(item)

    def _offer(self, item: _Item) -> None:
        item.state, item.cell = "claimable", None
        heapq.heappush(self._claimable, (item.kind != "ratio", item.place, item.item_id))

    def close(self) -> None:
        """Every micro-step of the step's B groups has been enqueued."""
        self.is_closed = True

    # ---- cells -----------------------------------------------------------------------------------------------------------------

    def claim(self, cell: int) -> ClaimedItem | None:
        """Give the next item to a cell; None while there is none that it could start."""
        if not self._claimable:
            return None
        item = self._items[heapq.heappop(self._claimable)[2]]
        item.state, item.cell = "claimed", cell
        self._num_unclaimed -= 1
        masks = {} if item.kind == "ratio" else {e: self.ratios.fixed[e].mask for e in sorted(item.spanning)}
        return ClaimedItem(item.item_id, item.kind, masks)

    def finish(self, cell: int, item_id: str) -> bool:
        """A cell has done an item; what it found in a ratio item was reported before.

        Returns:
            False where the item is no longer the cell's own, so that its work must not count.
        """
        item = self._items.get(item_id)
        if item is None or item.state != "claimed" or item.cell != cell:
            return False
        item.state = "finished"
        self._num_unfinished -= 1
        return True

    def report_ratio(self, execution_id: str, *, row_id: str, sum_log_r: float, count: int) -> FixedRatio | None:
        """Take a ratio item's result for one execution, once per row; the fixed ratio when it was the last part."""
        fixed = self.ratios.report(execution_id, row_id=row_id, sum_log_r=sum_log_r, count=count)
        if fixed is not None:
            for item in self._items.values():
                if item.state == "waiting":
                    self._admit(item)
        return fixed

    def lose_from(self, cell: int) -> list[str]:
        """Return the items that a lost cell and all later ones had claimed, in the order of enqueueing."""
        returned = [item for item in self._items.values() if item.cell is not None and item.cell >= cell and self._is_undone(item)]
        for item in returned:
            self._num_unfinished += item.state == "finished"
            self._num_unclaimed += 1
            self._offer(item)
        return [item.item_id for item in returned]

    @staticmethod
    def _is_undone(item: _Item) -> bool:
        return item.state == "claimed" or (item.state == "finished" and item.kind == "gradient")

    # ---- scheduler -------------------------------------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """True when the stream is closed and every item claimed."""
        return self.is_closed and self._num_unclaimed == 0

    @property
    def is_drained(self) -> bool:
        """True when the stream is closed and every item finished."""
        return self.is_closed and self._num_unfinished == 0

    def finished_by(self, cell: int) -> list[str]:
        """Gradient items whose accumulation a cell holds."""
        return [i.item_id for i in self._items.values() if i.cell == cell and i.state == "finished" and i.kind == "gradient"]

    @property
    def num_unclaimed(self) -> int:
        """Items that no cell has claimed: the fill of the packing buffer."""
        return self._num_unclaimed

    @property
    def unclaimed_cost(self) -> float:
        """Expected work that no cell has claimed."""
        return sum(item.cost for item in self._items.values() if item.state in ("waiting", "claimable"))
