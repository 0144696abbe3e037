from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_toys import ROLES, add_node, trees

from gyre.records import load_schema
from gyre.trajectory.audit import check_contexts, check_disjoint_targets, check_logprobs, check_provenance, read_trajectories
from gyre.trajectory.sampling import execution_rng, materialize, select_trajectories, trainable_leaves
from gyre.trajectory.tree import TrajectoryTree

J_MAX = st.none() | st.integers(0, 6)


def forked_tree() -> TrajectoryTree:
    """Main 0-1, summary 0-2 sharing node 0; a sub-agent 3-4; a side call under node 1."""
    tree = TrajectoryTree("g000000-00", 1)
    add_node(tree, None, role="main", num_input=2, num_output=3)
    add_node(tree, 0, role="main", num_input=1, num_output=2)
    add_node(tree, 0, role="main-summary", num_input=1, num_output=4)
    add_node(tree, None, role="sub-agent", num_input=1, num_output=1)
    add_node(tree, 3, role="sub-agent", num_input=1, num_output=1)
    add_node(tree, 1, role="side", num_input=1, num_output=9)
    return tree


def test_a_worked_execution() -> None:
    tree = forked_tree()
    drawn = select_trajectories(tree, j_max=5, seed=0, execution_id=tree.execution_id)
    assert [(s.leaf_node_id, s.role, s.target_node_ids, s.num_targets) for s in drawn] == [
        (1, "main", (0, 1), 5),
        (2, "main-summary", (2,), 4),
        (4, "sub-agent", (3, 4), 2),
    ]
    rows = materialize(tree, drawn, group_id="g000000", advantage=0.5).to_pylist()
    assert [row["trajectory_id"] for row in rows] == [f"g000000-00/{draw}" for draw in range(3)]
    assert rows[1]["input_ids"] == [0, 1, 500, 501, 502, 2000, 2500, 2501, 2502, 2503]
    assert rows[1]["target_mask"] == [False] * 6 + [True] * 4
    assert rows[1]["behavior_logprobs"][:6] == [None] * 6
    assert rows[1]["behavior_logprobs"][6:] == pytest.approx([-2.5, -2.501, -2.502, -2.503])
    assert rows[1]["weight_versions"] == [{"version": 0, "start": 6, "end": 10}]
    assert {(row["execution_targets"], row["num_trajectories"], row["advantage"]) for row in rows} == {(11, 3, 0.5)}


def test_the_order_of_classes_is_a_setting_and_what_it_leaves_out_never_trains() -> None:
    tree = forked_tree()
    order = ["side", "sub-agent"]
    drawn = select_trajectories(tree, j_max=None, seed=0, execution_id=tree.execution_id, role_order=order)
    assert [(s.leaf_node_id, s.target_node_ids) for s in drawn] == [(5, (5,)), (4, (3, 4))]


def test_a_side_call_does_not_take_the_leaf_of_the_path_it_hangs_on() -> None:
    assert trainable_leaves(forked_tree()) == [1, 2, 4]


def test_the_draw_depends_on_seed_and_execution_alone() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    for _ in range(4):
        add_node(tree, None, role="main", num_input=1, num_output=5)
    draws = [
        [s.leaf_node_id for s in select_trajectories(tree, j_max=None, seed=seed, execution_id=execution_id)]
        for seed, execution_id in itertools.product(range(3), ("g000000-00", "g000000-01"))
    ]
    assert all(sorted(draw) == [0, 1, 2, 3] for draw in draws)
    assert len({tuple(draw) for draw in draws}) > 1
    assert draws[0] == [s.leaf_node_id for s in select_trajectories(tree, j_max=None, seed=0, execution_id="g000000-00")]
    # Written down, so that a change of generator, platform or numpy is seen: it would break the reproduction of old runs.
    assert execution_rng(0, "g000000-00").integers(1_000_000, size=3).tolist() == [331542, 680728, 193]


@given(trees(), J_MAX, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_targets_are_disjoint_sampled_and_in_their_own_context(tree: TrajectoryTree, j_max: int | None, seed: int) -> None:
    drawn = select_trajectories(tree, j_max=j_max, seed=seed, execution_id=tree.execution_id)
    table = materialize(tree, drawn, group_id="g", advantage=1.0)
    assert table.schema.equals(load_schema("trajectory.v1"))
    rows = read_trajectories(table)
    for check in (check_contexts, check_disjoint_targets, check_provenance, check_logprobs):
        assert check(tree, rows) == []
    assert len(drawn) <= (len(tree) if j_max is None else j_max)
    assert all(item.num_targets > 0 for item in drawn)
    assert [int(row.target_mask.sum()) for row in rows] == [item.num_targets for item in drawn]
    for spans, row in zip(table["weight_versions"].to_pylist(), rows, strict=True):
        covered = np.zeros(len(row.input_ids), dtype=bool)
        for span in spans:
            covered[span["start"] : span["end"]] = True
        assert covered.tolist() == row.target_mask.tolist()
    if j_max is None:
        trainable = {node.node_id for node in tree.nodes if node.num_targets and node.role in ROLES}
        assert {node for item in drawn for node in item.target_node_ids} == trainable


@given(trees(), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_more_trajectories_only_add_to_the_draws_and_classes_go_by_priority(tree: TrajectoryTree, seed: int) -> None:
    def draw(j_max: int | None) -> list[int]:
        return [item.leaf_node_id for item in select_trajectories(tree, j_max=j_max, seed=seed, execution_id=tree.execution_id)]

    everything = draw(None)
    assert [draw(j) for j in range(4)] == [everything[:j] for j in range(4)]
    classes = [ROLES.index(tree.nodes[leaf].role) for leaf in everything]
    assert classes == sorted(classes)
