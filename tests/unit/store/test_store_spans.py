"""Trajectories kept as spans read exactly like trajectories kept whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_run import fake_recompute, make_tiny_run

from gyre.store.checks.data import _lists
from gyre.store.columns import dataset_path
from gyre.store.query import query
from gyre.store.resume import forget_after
from gyre.store.run_store import read_table
from gyre.store.spans import find_ranges
from gyre.store.verify import verify
from gyre.trajectory.columns import list_values


@pytest.mark.parametrize("is_folded", [True, False])
def test_readers_see_no_difference(tmp_path: Path, is_folded: bool) -> None:
    whole, spans = make_tiny_run(tmp_path / "whole"), make_tiny_run(tmp_path / "spans", is_folded=is_folded, trajectories="spans")
    assert dataset_path(spans, "trajectory_spans").exists() == is_folded
    assert read_table(spans, "trajectories").equals(read_table(whole, "trajectories"))
    where = "advantage > 0 AND step_version = 1"
    assert read_table(spans, "trajectories", where=where).equals(read_table(whole, "trajectories", where=where))
    sql = "SELECT trajectory_id, len(input_ids) AS n FROM trajectories ORDER BY ALL"
    assert query(spans, sql).equals(query(whole, sql))
    assert verify(spans, recompute=fake_recompute).breaches == ()


def test_a_large_run_is_expanded_and_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its tokens are more than the offsets of one list column can count, so lists are made and read chunk by chunk."""
    monkeypatch.setattr("gyre.store.spans.PIECE_ROWS", 2)
    whole, spans = make_tiny_run(tmp_path / "whole"), make_tiny_run(tmp_path / "spans", trajectories="spans")
    found = read_table(spans, "trajectories")
    assert found.equals(read_table(whole, "trajectories"))
    chunks = found.column("input_ids").chunks
    assert max(map(len, chunks)) == 2
    places = [chunk.values.to_numpy() for chunk in chunks if len(chunk)]
    for lists in (list_values(found, "input_ids"), _lists(found, "input_ids", np.int32)):
        assert [tokens.tolist() for tokens in lists] == found.column("input_ids").to_pylist()
        assert all(any(np.shares_memory(tokens, place) for place in places) for tokens in lists)


def test_spans_after_a_checkpoint_are_removed(tmp_path: Path) -> None:
    run_dir = make_tiny_run(tmp_path / "run", trajectories="spans")
    assert forget_after(run_dir, 1)["trajectory_spans"] > 0
    assert set(read_table(run_dir, "trajectories").column("step_version").to_pylist()) == {1}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_ranges_cover_a_mask_exactly(mask: list[bool]) -> None:
    ranges = find_ranges(np.array(mask, np.bool_))
    covered = [t for span in ranges for t in range(span["start"], span["end"])]
    assert covered == [t for t, is_target in enumerate(mask) if is_target]
    assert all(a["end"] < b["start"] for a, b in itertools.pairwise(ranges))
