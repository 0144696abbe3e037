"""The claim queue: every micro-step in exactly one living cell's sum, whatever is lost; ratios fixed once."""

from __future__ import annotations

import random
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.scheduler.claims import ClaimQueue


def fill(queue: ClaimQueue, rng: random.Random, num_rows: int) -> dict[str, dict[str, float]]:
    """Rows with whole executions, and pairs of rows over which an execution spans."""
    spans: dict[str, dict[str, float]] = {}
    for number in range(num_rows):
        spanning = {f"e{number // 2}": 1.0} if rng.random() < 0.5 else {}
        if spanning:
            spans[f"r{number}"] = spanning
            queue.enqueue(f"r{number}", kind="ratio", spanning=spanning)
        spans[f"m{number}"] = spanning
    for item_id, spanning in spans.items():
        if item_id.startswith("m"):
            queue.enqueue(item_id, spanning=spanning)
    return spans


@given(seed=st.integers(0, 2**32), num_rows=st.integers(0, 8), num_cells=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_each_micro_step_ends_in_one_living_cell(seed: int, num_rows: int, num_cells: int) -> None:
    rng = random.Random(seed)
    queue = ClaimQueue()
    queue.open(1)
    spans = fill(queue, rng, num_rows)
    queue.close()
    cells, held = list(range(num_cells)), {}
    accumulated: dict[int, set[str]] = {cell: set() for cell in cells}
    while not queue.is_drained:
        cell = rng.choice(cells)
        if len(cells) > 1 and rng.random() < 0.1:
            lost = rng.choice(cells[1:])
            queue.lose_from(lost)
            for gone in [c for c in cells if c >= lost]:
                accumulated.pop(gone)
                held.pop(gone, None)
            cells = [c for c in cells if c < lost]
            continue
        if cell not in held:
            held[cell] = queue.claim(cell)
        item = held.pop(cell)
        if item is None:
            continue
        if item.kind == "ratio":
            for execution_id in spans[item.item_id]:
                queue.report_ratio(execution_id, row_id=item.item_id, sum_log_r=0.5, count=2)
        elif item.masks:
            assert item.masks.keys() == spans[item.item_id].keys()
        assert queue.finish(cell, item.item_id)
        if item.kind == "gradient":
            accumulated[cell].add(item.item_id)
    assert queue.is_exhausted
    done = [item_id for items in accumulated.values() for item_id in items]
    assert sorted(done) == sorted(item_id for item_id in spans if item_id.startswith("m"))
    assert all(sorted(queue.finished_by(cell)) == sorted(items) for cell, items in accumulated.items())


@given(seed=st.integers(0, 2**32), parts=st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 9)), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_a_ratio_is_fixed_once_in_any_order_of_reports(seed: int, parts: list[tuple[float, int]]) -> None:
    queue = ClaimQueue()
    queue.open(1)
    for number in range(len(parts)):
        queue.enqueue(f"r{number}", kind="ratio", spanning={"e": 1.0})
    queue.enqueue("m", spanning={"e": 1.0})
    reports = [number for number in range(len(parts)) for _ in range(2)]
    random.Random(seed).shuffle(reports)
    fixed = [queue.report_ratio("e", row_id=f"r{n}", sum_log_r=parts[n][0], count=parts[n][1]) for n in reports]
    (ratio,) = [x for x in fixed if x is not None]
    expected = exp(sum(part[0] for part in parts) / sum(part[1] for part in parts))
    assert ratio.ratio == pytest.approx(expected)
    assert ratio == queue.ratios.fixed["e"]


def test_work_of_a_cell_that_lost_its_claim_does_not_count() -> None:
    queue = ClaimQueue()
    queue.open(1)
    queue.enqueue("m0")
    queue.close()
    assert queue.claim(1) is not None
    assert queue.lose_from(1) == ["m0"]
    assert not queue.finish(1, "m0")
    assert not queue.is_exhausted
    assert queue.claim(0) is not None
    assert queue.finish(0, "m0")
    assert queue.is_drained
