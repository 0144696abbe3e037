"""The harness profiles that are shipped: sound data, and role rules that tell the requests of each client apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.graph.jsonnet import evaluate_file
from gyre.rollout.engines.scripted import read_script
from gyre.rollout.profile import find_profile_problems
from gyre.rollout.tasks import find_task_problems
from gyre.trajectory.roles import RequestFacts, RoleRules

PIPELINES = Path(__file__).parents[3] / "pipelines"
CLIENTS = ("claude-code", "codex", "mini-swe-agent", "qwen-code")

HELPER = {"x-claude-code-agent-id": "a1"}
SUMMARY = "CRITICAL: Respond with TEXT ONLY. Sum the session up."
COMPACTION = {"x-codex-turn-metadata": '{"request_kind":"compaction","sandbox":"none"}'}
TURN = {"x-codex-turn-metadata": '{"request_kind":"turn","sandbox":"none"}'}
CHILD = {"x-codex-parent-thread-id": "t0", "x-openai-subagent": "collab_spawn"}


def load(name: str) -> dict[str, Any]:
    return evaluate_file(PIPELINES / "harness" / f"{name}.libsonnet", {}).document


def facts(
    *, headers: dict[str, str] | None = None, last: str = "Go.", system: str = "", tools: bool = True, forced: bool = False
) -> RequestFacts:
    return RequestFacts(
        headers=headers or {}, system_text=system, first_user_text="Go.", last_user_text=last, has_tools=tools, has_forced_tool=forced
    )


@pytest.mark.parametrize("name", CLIENTS)
def test_a_profile_lacks_at_most_the_installed_client(name: str) -> None:
    problems = find_profile_problems(load(name), base_dir=PIPELINES / "harness")
    assert all(problem.path == "harness.install" and "make harnesses" in problem.hint for problem in problems)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_has_its_script(name: str) -> None:
    read_script(PIPELINES / "harness" / "scripts" / f"{name}.json")


def test_the_errands_are_tasks() -> None:
    assert find_task_problems(PIPELINES / "tasks" / "errands") == []


def test_any_command_becomes_a_harness(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonnet"
    path.write_text(f"(import '{PIPELINES}/harness/command.libsonnet') + {{ command: ['/usr/bin/true', '{{instruction}}'] }}")
    assert find_profile_problems(evaluate_file(path, {}).document, base_dir=tmp_path) == []


@pytest.mark.parametrize(
    ("client", "role", "request_facts"),
    [
        ("claude-code", "main", facts()),
        ("claude-code", "main-summary", facts(last=SUMMARY)),
        ("claude-code", "sub-agent", facts(headers=HELPER)),
        ("claude-code", "sub-agent-summary", facts(headers=HELPER, last=SUMMARY)),
        ("claude-code", "side", facts(tools=False)),
        ("claude-code", "side", facts(forced=True)),
        ("codex", "main", facts(headers=TURN)),
        ("codex", "main-summary", facts(headers=COMPACTION, tools=False)),
        ("codex", "sub-agent", facts(headers=TURN | CHILD)),
        ("codex", "sub-agent-summary", facts(headers=COMPACTION | CHILD, tools=False)),
        ("qwen-code", "main", facts(system="You are Qwen Code, in a terminal.")),
        ("qwen-code", "main-summary", facts(system="You are what summarizes internal chat history.", tools=False)),
        ("qwen-code", "sub-agent", facts(system="You look things up.")),
        ("qwen-code", "side", facts(system="You name sessions.", tools=False)),
        ("qwen-code", "side", facts(system="You are now acting as the managed memory keeper.")),
        ("mini-swe-agent", "main", facts()),
    ],
)
def test_rules_tell_roles_from_one_request(client: str, role: str, request_facts: RequestFacts) -> None:
    assert RoleRules.from_profile(load(client)).classify(request_facts) == role
