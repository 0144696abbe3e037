"""The execution of Appendix C: its published counts, and the admission rule applied to it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from appendix_c import play
from trajectory_toys import ToyProxy

from gyre.trajectory.audit import check_contexts, check_disjoint_targets, check_logprobs, check_provenance, read_trajectories
from gyre.trajectory.sampling import draw_trajectories, find_candidates, materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

NUM_SEEDS = 10_000
CHI_SQUARE_5_DF = 20.515
"""Exceeded with probability 1e-3 by a chi-square variable of five degrees of freedom (six sub-agent paths)."""


@pytest.fixture(scope="module")
def proxy() -> ToyProxy:
    return play(np.random.default_rng(0))


@pytest.fixture(scope="module")
def tree(proxy: ToyProxy) -> TrajectoryTree:
    return proxy.tree


def num_messages(tree: TrajectoryTree, leaf: int) -> int:
    return sum(len(tree.nodes[node].message_digests) for node in tree.path(leaf))


def path_targets(tree: TrajectoryTree, leaf: int) -> int:
    return sum(tree.nodes[node].num_targets for node in tree.path(leaf))


def unique_messages(tree: TrajectoryTree) -> int:
    """Messages when the paths are merged message by message, as the paper's figure merges them (system prompts are shared)."""
    prefixes: set[tuple[str, ...]] = set()
    for leaf in tree.leaves():
        digests = [digest for node in tree.path(leaf) for digest in tree.nodes[node].message_digests]
        prefixes |= {tuple(digests[:end]) for end in range(1, len(digests) + 1)}
    return len(prefixes)


def test_the_published_counts(tree: TrajectoryTree) -> None:
    leaves = tree.leaves()
    lengths = [num_messages(tree, leaf) for leaf in leaves]
    assert len(tree) == 636
    assert len(leaves) == 10
    assert (min(lengths), max(lengths)) == (53, 293)
    assert sum(lengths) == 1716
    assert unique_messages(tree) == 1347
    assert Counter(tree.nodes[leaf].role for leaf in leaves) == {"main": 2, "main-summary": 1, "sub-agent": 6, "sub-agent-summary": 1}
    assert 1716 - 1347 == 168 + 193 + 8
    # Eight calls at the root carry one of the two system prompts; the message-wise merge shares them, our tree their tokens.
    assert sum(len(node.message_digests) for node in tree.nodes) == 1347 + 6


def test_another_interleaving_has_the_same_lineages() -> None:
    tree = play(np.random.default_rng(1)).tree
    assert sorted(num_messages(tree, leaf) for leaf in tree.leaves()) == [53, 138, 146, 150, 171, 171, 196, 196, 202, 293]


def test_every_call_got_the_context_that_is_stored(proxy: ToyProxy) -> None:
    for node, engine_input in zip(proxy.tree.nodes, proxy.engine_inputs, strict=True):
        stored = proxy.tree.context(node.node_id)
        assert stored[: len(stored) - len(node.output_ids)].tolist() == engine_input


def test_four_trajectories_are_both_main_the_summary_and_one_sub_agent_in_proportion(tree: TrajectoryTree) -> None:
    sub_agents = [leaf for leaf in tree.leaves() if tree.nodes[leaf].role == "sub-agent"]
    weights = np.array([path_targets(tree, leaf) for leaf in sub_agents])
    seen: Counter[int] = Counter()
    candidates = find_candidates(tree)
    for seed in range(NUM_SEEDS):
        drawn = draw_trajectories(candidates, j_max=4, seed=seed, execution_id=tree.execution_id)
        assert [item.role for item in drawn] == ["main", "main", "main-summary", "sub-agent"]
        assert len({item.leaf_node_id for item in drawn}) == 4
        seen[drawn[3].leaf_node_id] += 1
    assert drawn == select_trajectories(tree, j_max=4, seed=NUM_SEEDS - 1, execution_id=tree.execution_id)
    expected = NUM_SEEDS * weights / weights.sum()
    observed = np.array([seen[leaf] for leaf in sub_agents])
    assert ((observed - expected) ** 2 / expected).sum() < CHI_SQUARE_5_DF


def test_all_ten_train_every_sampled_token_once(tree: TrajectoryTree) -> None:
    drawn = select_trajectories(tree, j_max=None, seed=0, execution_id=tree.execution_id)
    assert len(drawn) == 10
    assert sum(item.num_targets for item in drawn) == sum(node.num_targets for node in tree.nodes)
    rows = read_trajectories(materialize(tree, drawn, group_id="g000042", advantage=1.0))
    for check in (check_contexts, check_disjoint_targets, check_provenance, check_logprobs):
        assert check(tree, rows) == []
    # A summary that shares its prefix with a main path trains its own answer only.
    summaries = [item for item in drawn if item.role.endswith("-summary")]
    assert [len(item.target_node_ids) for item in summaries] == [1, 1]
