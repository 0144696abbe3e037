"""Prefix groups: sums arrive at the core, weights at the satellites, and a lost cell poisons one generation only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from gyre.training.groups import GroupError, PrefixGroups, open_rendezvous

pytestmark = pytest.mark.torch


def on_cells(num_cells: int, action: Callable[[int], Any]) -> list[Any]:
    """Run an action for each cell at once, as its process would."""
    with ThreadPoolExecutor(num_cells) as pool:
        return list(pool.map(action, range(num_cells)))


def join(port: int, num_cells: int, generation: int, timeout_s: float = 20.0) -> list[PrefixGroups]:
    return on_cells(
        num_cells,
        lambda cell: PrefixGroups("127.0.0.1", port, cell=cell, num_cells=num_cells, generation=generation, timeout_s=timeout_s),
    )


def test_sum_and_broadcast_over_each_prefix():
    store, port = open_rendezvous()
    groups = join(port, 3, generation=0)
    for size in (2, 3, 2):
        own = [torch.full((5,), 10.0**cell) for cell in range(3)]
        sums = on_cells(size, lambda cell, own=own, size=size: groups[cell].reduce_to_core(own[cell], size))
        assert sums[0] is not None
        assert sums[0].tolist() == [{2: 11.0, 3: 111.0}[size]] * 5
        assert sums[1:] == [None] * (size - 1)
        assert [t[0].item() for t in own] == [1.0, 10.0, 100.0]
        on_cells(size, lambda cell, own=own, size=size: groups[cell].broadcast(own[cell], size))
        assert [t[0].item() for t in own] == [1.0, 1.0, 1.0 if size == 3 else 100.0]
    del store


def test_one_cell_needs_nobody():
    groups = PrefixGroups("127.0.0.1", 1, cell=0, num_cells=1, generation=0, timeout_s=1.0)
    tensor = torch.ones(3)
    reduced = groups.reduce_to_core(tensor, 1)
    assert reduced is not None
    assert reduced.tolist() == [1.0, 1.0, 1.0]
    assert reduced.data_ptr() != tensor.data_ptr()


def test_a_cell_that_stays_away_fails_the_reduction_and_the_survivors_regroup():
    store, port = open_rendezvous()
    groups = join(port, 3, generation=0, timeout_s=1.0)
    own = torch.ones(4)

    def reduce(cell: int) -> str:
        try:
            groups[cell].reduce_to_core(own, 3)
        except GroupError as error:
            return str(error)
        return "done"

    assert "the sum of gradients over cells 0 to 2 failed on cell 0" in on_cells(2, reduce)[0]
    assert own.tolist() == [1.0] * 4
    survivors = join(port, 2, generation=1)
    sums = on_cells(2, lambda cell: survivors[cell].reduce_to_core(own, 2))
    assert sums[0].tolist() == [2.0] * 4
    del store


def test_a_prefix_the_cell_is_not_in():
    store, port = open_rendezvous()
    groups = join(port, 2, generation=0)
    with pytest.raises(GroupError, match="cell 1 of 2 is in no group of 3 cells"):
        groups[1].reduce_to_core(torch.ones(1), 3)
    del store
