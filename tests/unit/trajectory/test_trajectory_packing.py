from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.records import Batch, Trajectory, load_schema
from gyre.trajectory.packing import build_microsteps, pack_lengths

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


def test_first_fit_decreasing() -> None:
    assert pack_lengths([5, 7, 3, 2, 4, 1], 10) == [[1, 2], [0, 4, 5], [3]]
    assert pack_lengths([], 10) == []
    assert pack_lengths([11], 10) == [[0]]


@given(LENGTHS, st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_every_item_once_no_empty_bin_no_bin_over_the_cap(lengths: list[int], cap: int) -> None:
    bins = pack_lengths(lengths, cap)
    assert sorted(item for row in bins for item in row) == list(range(len(lengths)))
    assert all(row and (len(row) == 1 or sum(lengths[i] for i in row) <= cap) for row in bins)
    fitting = [row for row in bins if sum(lengths[i] for i in row) <= cap]
    # No two bins could be one: the bound that first-fit keeps, hence at most twice the optimum.
    assert all(sum(lengths[i] for i in one + two) > cap for n, one in enumerate(fitting) for two in fitting[n + 1 :])


@pytest.mark.parametrize(("lengths", "cap"), [([0], 5), ([3, -1], 5), ([1], 0)])
def test_lengths_and_cap_are_positive(lengths: list[int], cap: int) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack_lengths(lengths, cap)


def test_log_normal_rows_fill_their_bins() -> None:
    rng = np.random.default_rng(0)
    cap = 262_144
    for _ in range(3):
        lengths = np.maximum(rng.lognormal(10.5, 1.0, 512), 1).astype(int).tolist()
        fitting = [length for length in lengths if length <= cap]
        least = math.ceil(sum(fitting) / cap)
        bins = pack_lengths(lengths, cap)
        assert len(bins) - (len(lengths) - len(fitting)) <= least + math.ceil(0.01 * least)


def trajectories(executions: dict[str, tuple[float, list[tuple[int, int]]]]) -> pa.Table:
    """Rows of `trajectory.v1`: execution id to (advantage, (tokens, of which targets) per trajectory)."""
    rows: list[dict[str, Any]] = []
    for execution_id, (advantage, parts) in executions.items():
        for draw, (length, targets) in enumerate(parts):
            mask = [False] * (length - targets) + [True] * targets
            rows.append(
                {
                    "execution_id": execution_id,
                    "group_id": "g",
                    "attempt": 1,
                    "trajectory_id": f"{execution_id}/{draw}",
                    "leaf_node_id": draw,
                    "role": "main",
                    "input_ids": list(range(length)),
                    "target_mask": mask,
                    "behavior_logprobs": [-float(t + 1) if is_target else None for t, is_target in enumerate(mask)],
                    "advantage": advantage,
                    "execution_targets": sum(t for _, t in parts),
                    "num_trajectories": len(parts),
                    "weight_versions": [],
                }
            )
    return Batch.of(Trajectory, rows).table


def segments(row: dict[str, Any]) -> list[tuple[dict[str, Any], slice]]:
    return [(segment, slice(a, b)) for segment, (a, b) in zip(row["segments"], pairwise(row["cu_seqlens"]), strict=True)]


def gradient_mass(rows: list[dict[str, Any]], num_executions: int) -> dict[str, float]:
    """What each execution's targets weigh in the loss, per unit of |advantage|, as the objective sums it over gradient rows."""
    mass: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["kind"] == "gradient":
            for segment, cut in segments(row):
                mass[segment["execution_id"]] += sum(row["target_mask"][cut]) / segment["execution_targets"] / num_executions
    return dict(mass)


def test_an_execution_stays_in_one_row_where_it_fits() -> None:
    table = trajectories({"a": (1.0, [(4, 2), (4, 2)]), "b": (-1.0, [(6, 1)])})
    rows = build_microsteps(table, max_tokens=10, prefix="v1").to_pylist()
    assert [(row["microstep_id"], row["kind"], row["cu_seqlens"]) for row in rows] == [
        ("v1/000", "gradient", [0, 4, 8]),
        ("v1/001", "gradient", [0, 6]),
    ]
    assert all(segment["whole"] for row in rows for segment in row["segments"])
    assert rows[0]["behavior_logprobs"] == [0.0, 0.0, -3.0, -4.0] * 2


def test_an_execution_that_spans_rows_has_ratio_rows_first() -> None:
    table = trajectories({"a": (1.0, [(6, 2), (6, 3), (3, 1)]), "b": (-1.0, [(4, 1)])})
    rows = build_microsteps(table, max_tokens=10, prefix="v1").to_pylist()
    assert [row["kind"] for row in rows] == ["ratio", "ratio", "gradient", "gradient"]
    for kind in ("ratio", "gradient"):
        found = [s["trajectory_id"] for row in rows if row["kind"] == kind for s in row["segments"] if s["execution_id"] == "a"]
        assert sorted(found) == ["a/0", "a/1", "a/2"]
    whole = {s["execution_id"]: s["whole"] for row in rows for s in row["segments"]}
    assert whole == {"a": False, "b": True}
    assert {s["execution_id"] for row in rows if row["kind"] == "ratio" for s in row["segments"]} == {"a"}


def test_an_oversized_trajectory_stands_alone_and_whole() -> None:
    rows = build_microsteps(trajectories({"a": (1.0, [(30, 3)]), "b": (1.0, [(2, 1)])}), max_tokens=10, prefix="v").to_pylist()
    assert [(len(row["input_ids"]), [s["whole"] for s in row["segments"]]) for row in rows] == [(30, [True]), (2, [True])]


def test_what_cannot_move_a_weight_is_left_out() -> None:
    packed = build_microsteps(trajectories({"a": (0.0, [(4, 2)]), "b": (1.0, [(4, 0)])}), max_tokens=10, prefix="v")
    assert packed.num_rows == 0
    assert packed.schema.equals(load_schema("microstep.v1"))


def test_half_an_execution_is_refused() -> None:
    table = trajectories({"a": (1.0, [(4, 2), (4, 2)])}).slice(0, 1)
    with pytest.raises(ValueError, match="execution a: 2 of its 4 targets"):
        build_microsteps(table, max_tokens=10, prefix="v")


PARTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)).map(lambda p: (max(p), min(p))), min_size=1, max_size=5)
EXECUTIONS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from([-1.0, 0.5, 2.0]), PARTS), max_size=6)


@given(EXECUTIONS, st.integers(1, 64))
@settings(max_examples=50, deadline=None)
def test_any_split_weighs_every_execution_the_same(executions: dict[str, tuple[float, list[tuple[int, int]]]], cap: int) -> None:
    table = trajectories(executions)
    packed = build_microsteps(table, max_tokens=cap, prefix="v1/0001")
    assert packed.equals(build_microsteps(table, max_tokens=cap, prefix="v1/0001"))
    rows = packed.to_pylist()
    assert len({row["microstep_id"] for row in rows}) == len(rows)
    assert gradient_mass(rows, len(executions)) == pytest.approx(dict.fromkeys(executions, 1 / max(len(executions), 1)))
    by_id = {row["trajectory_id"]: row for row in table.to_pylist()}
    for kind in ("gradient", "ratio"):
        cuts = [(s, row, cut) for row in rows if row["kind"] == kind for s, cut in segments(row)]
        split = {s["execution_id"] for s, _, _ in cuts if not s["whole"]}
        wanted = [t for t, row in by_id.items() if kind == "gradient" or row["execution_id"] in split]
        assert sorted(s["trajectory_id"] for s, _, _ in cuts) == sorted(wanted)
        for segment, row, cut in cuts:
            source = by_id[segment["trajectory_id"]]
            assert row["input_ids"][cut] == source["input_ids"]
            assert row["target_mask"][cut] == source["target_mask"]
            assert row["behavior_logprobs"][cut] == [value or 0.0 for value in source["behavior_logprobs"]]
    assert all(len(row["segments"]) == 1 or len(row["input_ids"]) <= cap for row in rows)
    kinds = [row["kind"] for row in rows]
    assert kinds == sorted(kinds, reverse=True)
    home: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for segment in row["segments"]:
            if row["kind"] == "gradient" and segment["whole"]:
                home[segment["execution_id"]].add(row["microstep_id"])
    assert all(len(found) == 1 for found in home.values())


def test_the_mass_of_an_execution_notices_a_lost_a_doubled_and_a_scaled_row() -> None:
    table = trajectories({"a": (1.0, [(6, 2), (6, 3), (3, 1)]), "b": (-1.0, [(4, 1)])})
    rows = build_microsteps(table, max_tokens=10, prefix="v1").to_pylist()
    right = pytest.approx({"a": 0.5, "b": 0.5})
    assert gradient_mass(rows, 2) == right
    assert gradient_mass(rows[:-1], 2) != right
    assert gradient_mass([*rows, rows[-1]], 2) != right
    assert gradient_mass(rows, 1) != right
