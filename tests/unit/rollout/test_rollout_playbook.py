"""Scripts that play whole agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre.errors import UserError
from gyre.rollout.engines.playbook import read_playbook
from gyre.rollout.engines.protocol import EngineRefusedError
from gyre.rollout.engines.scripted import read_script

PLAY = {
    "agents": [
        {"name": "memory", "when": {"last_contains": "CHECKPOINT"}, "says": "So far: {progress}"},
        {"name": "helper", "when": {"user_contains": ["Sort", "colours"]}, "steps": [{"text": "Sorted."}]},
        {
            "name": "main",
            "steps": [
                {"text": "I ask.", "calls": [{"name": "spawn", "arguments": {"prompt": "Sort the colours.", "wait": False, "limit": 3}}]},
                {"find": r"id=(\w+)", "calls": [{"name": "join", "arguments": {"targets": ["{found}"]}}]},
                {"text": "Done."},
            ],
        },
    ]
}


def prompt(*turns: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def test_an_agent_goes_from_step_to_step_and_stays_at_the_last() -> None:
    book = read_playbook(PLAY, place="play")
    first = book(prompt(("user", "Go.")))
    assert first == (
        "[main 1] I ask.\n<tool_call>\n<function=spawn>\n<parameter=prompt>\nSort the colours.\n</parameter>\n"
        "<parameter=wait>\nfalse\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
    )
    history = [("user", "Go."), ("assistant", first), ("user", "<tool_response>\nid=a1, then id=b2\n</tool_response>")]
    second = book(prompt(*history))
    assert second.startswith("[main 2]\n") and '["b2"]' in second, "the last find counts"
    history += [("assistant", second), ("user", "joined")]
    assert book(prompt(*history)) == "[main 3] Done."
    assert book(prompt(*history, ("assistant", "[main 3] Done."), ("user", "And?"))) == "[main 3] Done."


def test_the_first_agent_whose_conditions_hold_speaks() -> None:
    book = read_playbook(PLAY, place="play")
    assert book(prompt(("system", "You help."), ("user", "Sort the colours."))) == "[helper 1] Sorted."
    assert book(prompt(("user", "Go."), ("assistant", "[main 1] Sort the colours."), ("user", "id=x"))).startswith("[main 2]")


def test_a_summary_carries_the_progress_over_a_compaction() -> None:
    book = read_playbook(PLAY, place="play")
    history = [("user", "Go. [elsewhere 7]"), ("assistant", "[main 1] I ask."), ("user", "id=x"), ("assistant", "[main 2]")]
    summary = book(prompt(*history, ("user", "CHECKPOINT, please.")))
    assert summary == "So far: [main 1] [main 2]"
    assert book(prompt(("user", f"Go on. {summary}"))) == "[main 3] Done."


def test_nobody_and_nothing_to_find_are_refused() -> None:
    book = read_playbook({"agents": [{"name": "a", "when": {"contains": "x"}, "steps": [{"find": "id=(.)"}]}]}, place="play")
    with pytest.raises(EngineRefusedError, match="no agent of play"):
        book(prompt(("user", "hello")))
    with pytest.raises(EngineRefusedError, match="agent 'a' finds no"):
        book(prompt(("user", "x")))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"agents": []}, "is not a playbook"),
        ({"agents": [{"name": "two words", "says": "x"}]}, r"agents\[0\] is not an agent"),
        ({"agents": [{"name": "a"}]}, "either 'steps' or 'says'"),
        ({"agents": [{"name": "a", "steps": []}]}, "at least one step"),
        ({"agents": [{"name": "a", "steps": ["x"]}]}, r"steps\[0\] is not a step"),
        ({"agents": [{"name": "a", "steps": [{"text": "x", "calls": [{"arguments": {}}]}]}]}, r"steps\[0\] is not a step"),
        ({"agents": [{"name": "a", "says": "x", "when": {"nowhere": "x"}}]}, "when is an object of contains"),
        ({"agents": [{"name": "a", "says": "x", "when": {"contains": 3}}]}, "texts and lists of texts"),
    ],
)
def test_mistakes_are_named(document: dict, words: str, tmp_path: Path) -> None:
    path = tmp_path / "play.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=words):
        read_script(path)
