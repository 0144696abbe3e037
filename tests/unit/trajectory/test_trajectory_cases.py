"""Cases from public bug reports of peers, as far as they concern the trajectory processor; the numbers are those of the list."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_trajectory_packing import gradient_mass, trajectories
from trajectory_toys import ToyProxy, add_node

from gyre.trajectory.advantage import group_advantages
from gyre.trajectory.messages import Message, ToolCall
from gyre.trajectory.outcomes import Designate, GroupOutcomes, GroupReady
from gyre.trajectory.packing import build_microsteps, pack_lengths
from gyre.trajectory.sampling import materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

SYSTEM, USER = Message(role="system", text="agent"), Message(role="user", text="task")


def answer(number: int) -> Message:
    return Message(
        role="assistant",
        text=f"step {number}",
        reasoning=f"I think about {number}",
        tool_calls=(ToolCall(id=f"c{number}", name="run", arguments_json='{ "n": 1.0 }'),),
    )


def result(number: int) -> Message:
    return Message(role="tool", text=f"result {number}", tool_call_id=f"c{number}")


def select_all(tree: TrajectoryTree) -> list[dict[str, object]]:
    drawn = select_trajectories(tree, j_max=None, seed=0, execution_id=tree.execution_id)
    return materialize(tree, drawn, group_id="g000000", advantage=1.0).to_pylist()


@pytest.mark.parametrize("keeps_thinking", [False, True])
def test_case_01_thinking_dropped_from_the_echo_is_one_path_per_lineage(keeps_thinking: bool) -> None:
    proxy, history = ToyProxy(), [SYSTEM, USER]
    for number in range(8):
        proxy.call(history, answer(number))
        echo = answer(number) if keeps_thinking else replace(answer(number), reasoning="")
        history = [*history, echo, result(number)]
    assert len(proxy.tree.leaves()) == 1
    for before, after, node in zip(proxy.engine_inputs, proxy.engine_inputs[1:], proxy.tree.nodes, strict=False):
        assert after[: len(before) + len(node.output_ids)] == before + node.output_ids.tolist()


def test_case_03_missing_reasoning_does_not_demote_earlier_turns() -> None:
    proxy = ToyProxy()
    proxy.call([SYSTEM, USER], answer(0))
    proxy.call([SYSTEM, USER, replace(answer(0), reasoning=""), result(0)], answer(1))
    (row,) = select_all(proxy.tree)
    assert row["execution_targets"] == 6


def test_case_06_a_turn_that_is_not_contiguous_branches_and_the_group_still_closes() -> None:
    proxy = ToyProxy()
    proxy.call([SYSTEM, USER], answer(0))
    proxy.call([SYSTEM, USER, replace(answer(0), text="something else", tool_calls=()), Message(role="user", text="go")], answer(1))
    assert len(proxy.tree.leaves()) == 2
    assert [sum(row["target_mask"]) for row in select_all(proxy.tree)] == [3, 3]
    group = GroupOutcomes("g", size=1)
    group.closed("g-00", "completed", assessable=True, artifact_version="v", budget_until_s=9.0, now_s=0.0)
    actions = group.assessed("g-00", valid=True, score=1.0, reason="", artifact_version="v", now_s=1.0)
    assert isinstance(actions[-1], GroupReady)


def test_case_08_tokens_over_the_packing_cap_stand_alone() -> None:
    assert pack_lengths([9, 12, 1], 10) == [[1], [0, 2]]


def test_case_09_tool_calls_of_the_context_are_kept_and_only_sampled_tokens_are_targets() -> None:
    proxy = ToyProxy()
    proxy.call([SYSTEM, USER], answer(0))
    without_calls = replace(answer(0), tool_calls=())
    # A history without the calls is another history: it may not pass for the one that was sampled.
    proxy.call([SYSTEM, USER, without_calls, Message(role="user", text="go")], answer(1))
    assert proxy.tree.nodes[1].parent_node_id is None
    for row in select_all(proxy.tree):
        sampled = {token for node in proxy.tree.nodes for token in node.output_ids.tolist()}
        targets = [token for token, is_target in zip(row["input_ids"], row["target_mask"], strict=True) if is_target]
        assert targets
        assert set(targets) <= sampled


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_case_12_an_output_that_hit_the_token_maximum_trains_and_is_continued_like_any_other(finish_reason: str) -> None:
    tree = TrajectoryTree("g000000-00", 1)
    fields = {"role": "main", "finish_reason": finish_reason, "started_at_s": 0.0, "finished_at_s": 1.0}
    tree.add(None, ["s", "u", "a"], [1], [2, 3], [-0.1, -0.2], [(0, 0, 2)], **fields)
    assert tree.match(["s", "u", "a", "t"]).node_id == 0
    assert select_all(tree)[0]["target_mask"] == [False, True, True]


def test_case_13_an_identical_body_that_is_sampled_again_is_a_second_node() -> None:
    proxy = ToyProxy()
    first, second = proxy.call([SYSTEM, USER], answer(0)), proxy.call([SYSTEM, USER], answer(1))
    assert [proxy.tree.nodes[node].parent_node_id for node in (first, second)] == [None, None]
    follow_up = proxy.call([SYSTEM, USER, answer(1), result(1)], answer(2))
    assert proxy.tree.nodes[follow_up].parent_node_id == second


def test_case_20_advantages_are_per_execution_whatever_the_number_of_rows() -> None:
    rewards_a, rewards_b = [1.0, 0.0], [1.0, 1.0]
    assert group_advantages(rewards_a, normalize_std=False) == [0.5, -0.5]
    assert group_advantages(rewards_b, normalize_std=False) == [0.0, 0.0]
    tree = TrajectoryTree("a-00", 1)
    for _ in range(3):
        add_node(tree, None, role="main", num_input=1, num_output=1)
    drawn = select_trajectories(tree, j_max=5, seed=0, execution_id="a-00")
    table = materialize(tree, drawn, group_id="a", advantage=0.5)
    assert table["advantage"].to_pylist() == [0.5] * 3


@pytest.mark.parametrize("cap", [40, 100, 1000])
def test_case_21_every_execution_has_the_same_mass(cap: int) -> None:
    table = trajectories({"a": (1.0, [(50, 50), (100, 100)]), "b": (1.0, [(30, 30)] * 3), "c": (1.0, [(40, 40)])})
    rows = build_microsteps(table, max_tokens=cap, prefix="v").to_pylist()
    assert gradient_mass(rows, 3) == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})


def test_case_22_an_execution_over_two_rows_gets_one_ratio() -> None:
    rows = build_microsteps(trajectories({"a": (1.0, [(8, 4), (8, 4)])}), max_tokens=10, prefix="v").to_pylist()
    ratio = [row for row in rows if row["kind"] == "ratio"]
    # Rows with mean log-ratio +0.02 and -0.02 would each be clipped; over all targets of the execution the mean is 0.
    sums = [0.02 * sum(ratio[0]["target_mask"]), -0.02 * sum(ratio[1]["target_mask"])]
    counts = [sum(row["target_mask"]) for row in ratio]
    assert sum(counts) == ratio[0]["segments"][0]["execution_targets"]
    assert sum(sums) / sum(counts) == 0.0
    assert not any(segment["whole"] for row in rows for segment in row["segments"])


def test_case_24_a_valid_reward_without_a_target_stays_in_the_baseline() -> None:
    # gyre's rule, with the paper: a valid score is an outcome of the group whether or not it left a trainable token.
    assert group_advantages([100.0, 1.0], normalize_std=False) == [49.5, -49.5]
    assert group_advantages([100.0, None, 1.0], normalize_std=False) == [49.5, 0.0, -49.5]
    tree = TrajectoryTree("a-00", 1)
    add_node(tree, None, role="main", num_input=1, num_output=2, trainable=False)
    assert select_trajectories(tree, j_max=5, seed=0, execution_id="a-00") == []


@pytest.mark.parametrize("cap", [1, 9, 17, 64])
def test_case_25_any_split_into_rows_weighs_the_same(cap: int) -> None:
    table = trajectories({"a": (1.0, [(8, 8)]), "b": (1.0, [(32, 32)]), "c": (-1.0, [(8, 2), (4, 3)])})
    rows = build_microsteps(table, max_tokens=cap, prefix="v").to_pylist()
    assert gradient_mass(rows, 3) == pytest.approx(dict.fromkeys("abc", 1 / 3))


def test_case_27_an_assessment_speaks_of_one_artifact_version() -> None:
    group = GroupOutcomes("g", size=1)
    group.closed("g-00", "timeout", assessable=True, artifact_version="later", budget_until_s=9.0, now_s=0.0)
    assert group.assessed("g-00", valid=True, score=1.0, reason="", artifact_version="earlier", now_s=1.0) == ()
    found, _ = group.assessed("g-00", valid=True, score=0.0, reason="", artifact_version="later", now_s=1.0)
    assert isinstance(found, Designate)
    assert (found.reward, found.artifact_version) == (0.0, "later")


def test_case_32_a_member_that_is_withheld_does_not_kill_its_group() -> None:
    group = GroupOutcomes("g", size=3)
    group.cancelled("g-00")
    for execution_id in ("g-01", "g-02"):
        group.closed(execution_id, "completed", assessable=True, artifact_version="v", budget_until_s=9.0, now_s=0.0)
        actions = group.assessed(execution_id, valid=True, score=1.0, reason="", artifact_version="v", now_s=1.0)
    assert actions[-1] == GroupReady(group_id="g", scored=2, unresolved=0, placeholders=0, cancelled=1)


def test_case_33_a_group_with_failed_members_closes_with_a_rule() -> None:
    group = GroupOutcomes("g", size=3)
    group.closed("g-00", "failed", assessable=False, artifact_version="", budget_until_s=9.0, now_s=0.0)
    group.closed("g-01", "timeout", assessable=True, artifact_version="v", budget_until_s=9.0, now_s=0.0)
    group.closed("g-02", "failed", assessable=True, artifact_version="v", budget_until_s=9.0, now_s=0.0)
    group.assessed("g-01", valid=True, score=0.5, reason="", artifact_version="v", now_s=1.0)
    *_, ready = group.budget_expired("g-02", now_s=10.0)
    assert ready == GroupReady(group_id="g", scored=1, unresolved=1, placeholders=1, cancelled=0)


def test_case_34_an_execution_reaches_its_outcome_once() -> None:
    group = GroupOutcomes("g", size=2)
    for status in ("timeout", "completed", "failed"):
        group.closed("g-00", status, assessable=True, artifact_version="v", budget_until_s=9.0, now_s=0.0)
    decided = [
        *group.assessed("g-00", valid=True, score=1.0, reason="", artifact_version="v", now_s=1.0),
        *group.assessed("g-00", valid=True, score=0.0, reason="", artifact_version="v", now_s=1.0),
        *group.budget_expired("g-00", now_s=99.0),
        *group.cancelled("g-00"),
    ]
    assert [action.reward for action in decided if isinstance(action, Designate)] == [1.0]


def test_case_39_there_is_no_empty_row() -> None:
    assert all(pack_lengths([5, 5, 5], cap) for cap in (5, 10, 100))
    packed = build_microsteps(trajectories({"a": (1.0, [(5, 1)] * 3)}), max_tokens=5, prefix="v").to_pylist()
    assert all(row["input_ids"] and row["segments"] for row in packed)


def test_case_40_a_first_item_over_the_budget_does_not_leave_an_empty_row_before_it() -> None:
    assert pack_lengths([50, 3], 10) == [[0], [1]]
