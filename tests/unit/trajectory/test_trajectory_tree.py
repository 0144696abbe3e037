from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_toys import add_node, trees

from gyre.records import load_schema
from gyre.trajectory.path_index import PathIndex
from gyre.trajectory.tree import Match, TrajectoryTree

FIELDS = {"role": "main", "finish_reason": "stop", "started_at_s": 0.0, "finished_at_s": 1.0}


def add(tree: TrajectoryTree, parent: int | None, digests: list[str], *, blank: bool = False) -> int:
    return tree.add(parent, digests, [1], [2], [-0.5], [(0, 0, 1)], is_blank=blank, **FIELDS)


def test_a_request_attaches_to_the_longest_whole_prefix() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    first = add(tree, None, ["sys", "user", "a1"])
    second = add(tree, first, ["tool", "a2"])
    assert tree.match(["sys", "user", "a1", "tool", "a2", "tool2"]) == Match(second, 5)
    assert tree.match(["sys", "user", "a1", "other"]) == Match(first, 3)


def test_a_request_that_diverges_inside_an_increment_attaches_to_the_node_before_it() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    first = add(tree, None, ["sys", "user", "a1"])
    add(tree, first, ["tool1", "tool2", "a2"])
    assert tree.match(["sys", "user", "a1", "tool1", "edited", "a2", "more"]) == Match(first, 3)


def test_no_common_prefix_attaches_to_the_root() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    add(tree, None, ["sys", "user", "a1"])
    assert tree.match(["sys", "summary"]) == Match(None, 0)
    assert tree.match([]) == Match(None, 0)


def test_two_generations_for_one_context_stay_two_nodes_and_each_is_continued() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    add(tree, None, ["sys", "user", "a1"])
    other = add(tree, None, ["sys", "user", "b1"])
    assert tree.match(["sys", "user", "b1", "tool"]) == Match(other, 3)
    assert tree.match(["sys", "user"]) == Match(None, 0)
    assert len(tree.children(None)) == 2


def test_generations_with_equal_answers_are_continued_one_lineage_each() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    first, second = add(tree, None, ["sys", "user", "same"]), add(tree, None, ["sys", "user", "same"])
    history = ["sys", "user", "same", "tool"]
    assert tree.match(history) == Match(first, 3)
    add(tree, first, ["tool", "a2"])
    assert tree.match(history) == Match(second, 3)


def test_an_answer_is_known_by_its_other_form_too() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    first = add(tree, None, ["sys", "user", "a1"])
    tree.alias(first, "a1-as-echoed")
    second = add(tree, first, ["tool", "a2"])
    assert tree.match(["sys", "user", "a1-as-echoed", "tool", "a2", "tool2"]) == Match(second, 5)
    assert tree.match(["sys", "user", "a1-as-echoed", "tool3"]) == Match(first, 3)


def test_a_blank_answer_that_the_harness_left_out_is_no_branch() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    first = add(tree, None, ["sys", "user", "blank"], blank=True)
    assert tree.match(["sys", "user", "go on"]) == Match(first, 2)
    assert tree.match(["sys", "user", "blank", "go on"]) == Match(first, 3)
    # The same request again is a new sample, not a continuation of the blank answer.
    assert tree.match(["sys", "user"]) == Match(None, 0)


def test_a_record_that_does_not_hold_together_is_refused() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    with pytest.raises(ValueError, match="2 sampled tokens but 1 log-probabilities"):
        tree.add(None, ["a"], [1], [2, 3], [-0.5], [(0, 0, 2)], **FIELDS)
    with pytest.raises(ValueError, match="cover 1 of 2 tokens"):
        tree.add(None, ["a"], [1], [2, 3], [-0.5, -0.5], [(0, 0, 1)], **FIELDS)
    with pytest.raises(ValueError, match="not contiguous at token 1"):
        tree.add(None, ["a"], [1], [2, 3], [-0.5, -0.5], [(0, 0, 1), (1, 0, 2)], **FIELDS)
    with pytest.raises(ValueError, match="parent 7 is not in the tree"):
        tree.add(7, ["a"], [1], [2], [-0.5], [(0, 0, 1)], **FIELDS)
    with pytest.raises(ValueError, match="sampled from nothing"):
        tree.add(None, ["a"], [], [2], [-0.5], [(0, 0, 1)], **FIELDS)
    with pytest.raises(ValueError, match="role 'boss'"):
        tree.add(None, ["a"], [1], [2], [-0.5], [(0, 0, 1)], **{**FIELDS, "role": "boss"})
    assert len(tree) == 0


def test_a_tree_is_not_built_from_calls_with_a_gap_or_of_two_attempts() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    add(tree, None, ["a"])
    add(tree, 0, ["b", "c"])
    table = tree.to_table()
    with pytest.raises(ValueError, match="node 0 is missing"):
        TrajectoryTree.from_table(table.slice(1))
    with pytest.raises(ValueError, match="one attempt of one execution, not of 0"):
        TrajectoryTree.from_table(table.slice(0, 0))


@given(trees())
@settings(max_examples=40, deadline=None)
def test_tokens_are_held_once_and_a_context_is_its_path(tree: TrajectoryTree) -> None:
    assert tree.num_tokens == sum(node.num_input_tokens + len(node.output_ids) for node in tree.nodes)
    for node in tree.nodes:
        grown = np.concatenate([tree.context(node.parent_node_id), node.input_ids, node.output_ids])
        assert tree.context(node.node_id).tolist() == grown.tolist()
    assert all(not tree.children(leaf) for leaf in tree.leaves())
    assert {node for leaf in tree.leaves() for node in tree.path(leaf)} == set(range(len(tree)))


@given(trees())
@settings(max_examples=40, deadline=None)
def test_the_table_is_the_tree(tree: TrajectoryTree) -> None:
    table = tree.to_table()
    assert table.schema.equals(load_schema("calls.v1"))
    assert [tree.row(i) for i in range(len(tree))] == table.to_pylist()
    if len(tree):
        shuffled = table.take(list(range(len(tree)))[::-1])
        assert TrajectoryTree.from_table(shuffled).to_table().equals(table)


def brute_force(tree: TrajectoryTree, forms: list[set[str]], blanks: set[int], digests: list[str]) -> int:
    """Length of the longest whole prefix, found by trying every way down every path."""

    def ends(node: int) -> set[int]:
        parent = tree.nodes[node].parent_node_id
        found: set[int] = set()
        for begin in {0} if parent is None else ends(parent):
            *supplied, _ = tree.nodes[node].message_digests
            at = begin + len(supplied)
            if digests[begin:at] != supplied:
                continue
            if at < len(digests) and digests[at] in forms[node]:
                found.add(at + 1)
            elif node in blanks and begin < at < len(digests):
                found.add(at)
        return found

    return max((end for node in range(len(tree)) for end in ends(node)), default=0)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_matching_equals_brute_force_for_any_history(data: st.DataObject) -> None:
    tree = TrajectoryTree("g000000-00", 1)
    forms: list[set[str]] = []
    blanks: set[int] = set()
    supplied, answers = st.sampled_from(["u", "t"]), st.sampled_from(["a", "b"])

    def history() -> list[str]:
        return data.draw(st.lists(supplied | answers | st.just("alias"), max_size=8))

    for _ in range(data.draw(st.integers(1, 10))):
        digests = history()
        found = tree.match(digests)
        assert found.num_messages == brute_force(tree, forms, blanks, digests)
        blank = data.draw(st.booleans())
        answer = data.draw(answers)
        node = add(tree, found.node_id, [*digests[found.num_messages :], answer], blank=blank)
        forms.append({answer})
        if blank:
            blanks.add(node)
        if data.draw(st.booleans()):
            tree.alias(node, "alias")
            forms[node].add("alias")
    for _ in range(5):
        digests = history()
        assert tree.match(digests).num_messages == brute_force(tree, forms, blanks, digests)


def test_a_system_prompt_that_several_agents_begin_with_is_held_once() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    for task in ("one", "two", "three"):
        tree.add(None, ["sys", task, "a"], [7, 8, 9, len(task)], [2], [-0.5], [(0, 0, 1)], **FIELDS)
    # The second agent's input equals the first one's, the third's differs in one token.
    assert tree.num_tokens == 5 + 1 + 2
    assert [tree.context(leaf).tolist() for leaf in tree.leaves()] == [[7, 8, 9, 3, 2], [7, 8, 9, 3, 2], [7, 8, 9, 5, 2]]
    assert TrajectoryTree.from_table(tree.to_table()).num_tokens == 8
    tree.add(None, ["sys", "four", "a"], [1], [2], [-0.5], [(0, 0, 1)], **FIELDS)
    assert tree.context(3).tolist() == [1, 2]


def test_adding_costs_the_increment_not_the_path() -> None:
    tree = TrajectoryTree("g000000-00", 1)
    parent = None
    for _ in range(200):
        parent = add_node(tree, parent, role="main", num_input=3, num_output=2)
    assert tree.num_tokens == 200 * 5
    assert len(tree.context(parent)) == 1000


def test_paths_that_fork_do_not_see_each_others_ends() -> None:
    index = PathIndex()
    trunk = [f"message {number}" for number in range(1000)]
    index.add(None, trunk)
    index.add(0, ["a", "answer"])
    index.add(0, ["b", "answer"])
    index.add(1, ["c", "answer"])
    assert index.find([*trunk, "a", "answer", "more"], 1002) == [1]
    assert index.find([*trunk, "b", "answer"], 1002) == [2]
    assert index.find([*trunk, "a", "answer", "c", "answer"], 1004) == [3]
    assert index.find([*trunk, "b", "answer", "c", "answer"], 1004) == []
    assert index.find(trunk, 999) == []
