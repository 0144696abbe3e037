"""The unmodified clients at their pinned versions do whole tasks through the proxy; what is recorded is exact.

Each play checks, besides what it names: every call is in the store, each with exactly the tokens that the engine received as its context;
every sampled token is a target exactly once; the client reached the proxy and tried nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.harness_play import Play, check_records, describe, play

pytestmark = pytest.mark.harness

CLIENTS = ("claude-code", "codex", "qwen-code", "mini-swe-agent")


def check(played: Play, roles: dict[str, str]) -> None:
    """The task is done, the records are exact, and whoever speaks has the role that it should."""
    assert played.result.status == "completed", describe(played)
    assert played.verdict.score == 1.0, describe(played)
    assert {speaker: role for speaker, role in played.roles() if speaker in roles} == roles, describe(played)
    assert all(role == roles.get(speaker, role) for speaker, role in played.roles()), describe(played)
    check_records(played)


def find_calls(played: Play, mark: str) -> list[int]:
    """Calls whose answer bears a mark."""
    return [number for number, text in enumerate(played.texts) if text.startswith(mark)]


def summaries(played: Play) -> Counter[str]:
    """Roles of the unmarked calls: those that a client asked to sum up."""
    return Counter(role for speaker, role in played.roles() if speaker == "memory")


def num_parallel(played: Play, mark: str) -> int:
    """Most tool calls in one answer that bears a mark."""
    return max(len(re.findall("<tool_call>", played.texts[number])) for number in find_calls(played, mark))


async def test_claude_code_works_with_helpers_and_compacts(tmp_path: Path) -> None:
    played = await play("claude-code", "colours", tmp_path, extend="{ env+: { CLAUDE_CODE_AUTO_COMPACT_WINDOW: '100000' } }")
    check(played, {"main": "main", "sorter": "sub-agent", "counter": "sub-agent"})
    nodes = played.tree.nodes

    assert num_parallel(played, "[main 1]") == 2, "parallel tools"
    twins = find_calls(played, "[sorter 1]")
    assert [nodes[n].parent_node_id for n in twins] == [None, None], "two helpers in the foreground begin trees of their own"
    assert nodes[twins[0]].input_ids.tolist() == nodes[twins[1]].input_ids.tolist(), "although their first requests are the same"
    assert sorted(nodes[n].parent_node_id or 0 for n in find_calls(played, "[sorter 2]")) == twins
    (joined,) = find_calls(played, "[main 3]")
    assert all(nodes[n].finished_at_s <= nodes[joined].started_at_s for n in find_calls(played, "[sorter 2]"))

    (meanwhile,), (report,) = find_calls(played, "[main 5]"), find_calls(played, "[counter 5]")
    assert nodes[meanwhile].finished_at_s < nodes[report].started_at_s, "the helper in the background works while the main agent goes on"

    assert summaries(played) == {"main-summary": 1, "sub-agent-summary": 1}, describe(played)
    (last,), (behind,) = find_calls(played, "[main 9]"), find_calls(played, "[counter 4]")
    assert nodes[last].parent_node_id is None and nodes[behind].parent_node_id is None, "a compacted history begins anew"


async def test_codex_works_with_a_helper_and_compacts(tmp_path: Path) -> None:
    played = await play("codex", "colours", tmp_path, extend="{ settings+:: { model_auto_compact_token_limit: 22000 } }")
    check(played, {"main": "main", "sorter": "sub-agent"})
    assert num_parallel(played, "[main 1]") == 2, "parallel tools"
    assert len(find_calls(played, "[sorter")) == 2, describe(played)
    assert summaries(played) == {"main-summary": 1}, describe(played)


async def test_qwen_code_works_with_a_helper_and_compacts(tmp_path: Path) -> None:
    limits = "{ chatCompression: { contextPercentageThreshold: 0.2 }, generationConfig: { contextWindowSize: 100000 } }"
    played = await play("qwen-code", "colours", tmp_path, extend=f"{{ settings+:: {{ model: {limits} }} }}")
    check(played, {"main": "main", "helper": "sub-agent"})
    assert num_parallel(played, "[main 1]") == 2, "parallel tools"
    assert len(find_calls(played, "[helper")) == 2, describe(played)
    assert summaries(played) == {"main-summary": 1}, describe(played)


async def test_mini_swe_agent_works_alone(tmp_path: Path) -> None:
    played = await play("mini-swe-agent", "colours", tmp_path)
    check(played, {"main": "main"})
    assert num_parallel(played, "[main 2]") == 2, "parallel tools"
    assert [node.parent_node_id for node in played.tree.nodes] == [None, 0, 1, 2], "one unbroken history"


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_refusal_is_an_answer_like_any_other(client: str, tmp_path: Path) -> None:
    played = await play(client, "refusal", tmp_path)
    check(played, {"decline": "main"})
    assert len(played.texts) == 1, describe(played)
