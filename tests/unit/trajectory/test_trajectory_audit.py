from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from trajectory_toys import add_node

from gyre.trajectory.audit import (
    Finding,
    StoredTrajectory,
    check_contexts,
    check_disjoint_targets,
    check_logprobs,
    check_provenance,
    read_trajectories,
)
from gyre.trajectory.sampling import materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

CHECKS: dict[str, Callable[[TrajectoryTree, list[StoredTrajectory]], list[Finding]]] = {
    "contexts": check_contexts,
    "disjoint": check_disjoint_targets,
    "provenance": check_provenance,
    "logprobs": check_logprobs,
}


@pytest.fixture
def tree() -> TrajectoryTree:
    tree = TrajectoryTree("g000000-00", 1)
    add_node(tree, None, role="main", num_input=2, num_output=2)
    add_node(tree, 0, role="main", num_input=1, num_output=2)
    add_node(tree, 0, role="main-summary", num_input=1, num_output=1)
    add_node(tree, 2, role="main-summary", num_input=1, num_output=1, trainable=False)
    return tree


@pytest.fixture
def rows(tree: TrajectoryTree) -> list[StoredTrajectory]:
    drawn = select_trajectories(tree, j_max=5, seed=0, execution_id=tree.execution_id)
    return read_trajectories(materialize(tree, drawn, group_id="g000000", advantage=1.0))


def findings(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> dict[str, list[str]]:
    found = {name: [finding.sentence for finding in check(tree, rows)] for name, check in CHECKS.items()}
    return {name: sentences for name, sentences in found.items() if sentences}


def changed(array: np.ndarray, index: int, value: object) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


def test_what_was_drawn_passes(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    assert len(rows) == 2
    assert findings(tree, rows) == {}


def test_an_altered_token_is_named(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    rows[0] = replace(rows[0], input_ids=changed(rows[0].input_ids, 3, 99))
    assert findings(tree, rows) == {"contexts": ["token 3 is 99, along its path it is 501"]}


def test_a_path_of_another_length_and_an_unknown_leaf_are_named(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    rows = [replace(rows[0], leaf_node_id=0), replace(rows[1], leaf_node_id=77)]
    assert findings(tree, rows) == {"contexts": ["has 7 tokens, its path has 4", "leaf 77 is no node of the execution's tree"]}


def test_lists_of_unequal_length_are_named(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    rows[0] = replace(rows[0], target_mask=rows[0].target_mask[:-1])
    assert list(findings(tree, rows)) == ["contexts"]


def test_a_target_of_two_rows_is_named(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    mask, logprobs = changed(rows[1].target_mask, 2, True), changed(rows[1].logprobs, 2, -0.5)
    rows[1] = replace(rows[1], target_mask=mask, logprobs=logprobs)
    assert findings(tree, rows) == {"disjoint": ["output token 0 of node 0 is a target of g000000-00/0 as well"]}


def test_a_supplied_and_an_untrainable_target_are_named(tree: TrajectoryTree, rows: list[StoredTrajectory]) -> None:
    rows[0] = replace(rows[0], target_mask=changed(rows[0].target_mask, 0, True))
    assert findings(tree, rows)["provenance"] == ["a target in node 0 was supplied, not sampled"]
    rows[1] = replace(rows[1], target_mask=changed(rows[1].target_mask, -1, True))
    assert "a target in node 3 was sampled in a call that may not train" in findings(tree, rows)["provenance"]


@pytest.mark.parametrize(("index", "value"), [(2, -0.25), (2, np.nan), (0, -0.5)])
def test_a_log_probability_that_was_not_recorded_is_named(
    tree: TrajectoryTree, rows: list[StoredTrajectory], index: int, value: float
) -> None:
    rows[0] = replace(rows[0], logprobs=changed(rows[0].logprobs, index, value))
    (sentence,) = findings(tree, rows)["logprobs"]
    assert sentence.startswith(f"token {index} has log-probability")
