from __future__ import annotations

import pytest

from gyre.errors import SpecError
from gyre.trajectory.messages import Message
from gyre.trajectory.roles import RequestFacts, RoleRules, find_rule_problems

PROFILE = {
    "role_rules": [
        {"role": "side", "no_tools": True, "system_contains": ["title", "topic"]},
        {"role": "side", "forced_tool": True},
        {"role": "sub-agent-summary", "header_present": "X-Agent-Id", "last_user_startswith": "Summarize"},
        {"role": "sub-agent", "header_present": ["x-agent-id", "x-parent-id"]},
        {"role": "sub-agent", "field": {"metadata.kind": "review"}},
        {"role": "main-summary", "header": {"x-kind": "compact"}},
        {"role": "main-summary", "last_user_startswith": "Summarize"},
    ]
}


def facts(
    *, system: str = "You are an agent.", last: str = "go", tools: bool = True, forced: bool = False, **parts: object
) -> RequestFacts:
    messages = [
        Message(role="system", text=system),
        Message(role="user", text="task"),
        Message(role="assistant", text="Summarize"),
        Message(role="system", text="title"),
        Message(role="user", text=last),
    ]
    headers, fields = parts.get("headers", {}), parts.get("fields", {})
    assert isinstance(headers, dict)
    assert isinstance(fields, dict)
    return RequestFacts.of(messages, headers=headers, fields=fields, has_tools=tools, has_forced_tool=forced)


@pytest.mark.parametrize(
    ("request_facts", "role"),
    [
        (facts(), "main"),
        (facts(last="  Summarize the work."), "main-summary"),
        (facts(headers={"X-Kind": "please compact"}), "main-summary"),
        (facts(headers={"X-AGENT-ID": "7"}), "sub-agent"),
        (facts(headers={"x-parent-id": "7"}), "sub-agent"),
        (facts(headers={"x-agent-id": "7"}, last="Summarize the work."), "sub-agent-summary"),
        (facts(fields={"metadata": {"kind": "review"}}), "sub-agent"),
        (facts(fields={"metadata": None}), "main"),
        (facts(tools=False, system="Make a title."), "side"),
        (facts(tools=False), "main"),
        (facts(forced=True), "side"),
    ],
)
def test_the_first_rule_that_holds_gives_the_role(request_facts: RequestFacts, role: str) -> None:
    assert RoleRules.from_profile(PROFILE).classify(request_facts) == role


def test_an_unknown_harness_has_main_calls_only() -> None:
    assert RoleRules.from_profile({}).classify(facts()) == "main"
    assert RoleRules.from_profile({"default_role": "side"}).classify(facts()) == "side"


def test_every_problem_of_the_rules_is_named_with_its_place() -> None:
    profile = {
        "default_role": "boss",
        "role_rules": [
            {"role": "sub-agnt"},
            {"last_user_contain": "x", "role": "main"},
            {"no_tools": "yes", "role": "side"},
            {"header": "x-agent-id", "role": "side"},
            {"system_contains": [], "role": "side"},
            {"no_tools": True},
            "main",
        ],
    }
    problems = {problem.path: problem for problem in find_rule_problems(profile, path="ops.rollout.args.harness")}
    root = "ops.rollout.args.harness"
    assert set(problems) == {
        f"{root}.default_role",
        f"{root}.role_rules[0].role",
        f"{root}.role_rules[1].last_user_contain",
        f"{root}.role_rules[2].no_tools",
        f"{root}.role_rules[3].header",
        f"{root}.role_rules[4].system_contains",
        f"{root}.role_rules[5]",
        f"{root}.role_rules[6]",
    }
    assert problems[f"{root}.role_rules[1].last_user_contain"].hint == "did you mean last_user_contains?"
    with pytest.raises(SpecError, match="'boss' is not a role"):
        RoleRules.from_profile(profile)


def test_rules_that_are_no_list_are_a_problem() -> None:
    assert [p.path for p in find_rule_problems({"role_rules": "main"})] == ["harness.role_rules"]
