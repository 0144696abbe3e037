"""A script that plays a competent agent: who speaks and what comes next follow from the prompt alone.

    {"agents": [
      {"name": "memory", "when": {"last_contains": "checkpoint"}, "says": "<summary>{progress}</summary>"},
      {"name": "helper", "when": {"user_contains": "Sort the file"}, "steps": [
        {"text": "I sort.", "calls": [{"name": "bash", "arguments": {"command": "sort a > b"}}]}, {"text": "It is sorted."}]},
      {"name": "main", "steps": [{"calls": [{"name": "agent", "arguments": {"prompt": "Sort the file a."}}]}, {"text": "Done."}]}
    ]}

The first agent whose conditions hold answers. Each of its steps opens with a mark, `[helper 1]`, and the next step is the one behind the
highest mark in the prompt; the last one repeats. A summary that holds `{progress}`, all marks of the prompt, lets an agent go on behind
a compaction. `find` is a pattern; what its group matches last in the prompt stands for `{found}`. `says` has no mark and never ends.
Prompts are read as ChatML, calls are written in the qwen3_coder format. Eaten by `scripted`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.errors import UserError
from gyre.rollout.engines.protocol import EngineRefusedError

CONDITIONS = ("contains", "system_contains", "user_contains", "last_contains")
"""Where `when` looks: the prompt, its system turns, its user turns and tool results, everything behind the last answer."""

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?=<\|im_end\|>|<\|im_start\|>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One answer."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    find: str | None = None
    """Pattern with one group for `{found}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One part of the play."""

    name: str
    steps: tuple[Step, ...]
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Condition to the texts that must all be there."""
    is_marked: bool = True


class Playbook:
    r"""A script with agents.

    >>> book = read_playbook({"agents": [{"name": "main", "steps": [{"text": "Look."}, {"text": "Done."}]}]}, place="play.json")
    >>> first = book("<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    >>> first, book(f"<|im_start|>assistant\n{first}<|im_end|>\n<|im_start|>assistant\n")
    ('[main 1] Look.', '[main 2] Done.')
    """

    def __init__(self, agents: Sequence[Agent], *, place: str) -> None:
        self._agents = tuple(agents)
        self._place = place
        names = "|".join(re.escape(agent.name) for agent in agents if agent.is_marked)
        self._marks = re.compile(rf"\[({names}) (\d+)\]")

    def __call__(self, prompt: str) -> str:
        """The answer to a prompt; refused where no agent is meant."""
        facts = _read_prompt(prompt)
        for agent in self._agents:
            if all(text in facts[name] for name, texts in agent.when.items() for text in texts):
                return self._speak(agent, prompt)
        raise EngineRefusedError(f"no agent of {self._place} answers the prompt that ends in {prompt[-200:]!r}")

    def _speak(self, agent: Agent, prompt: str) -> str:
        marks = self._marks.findall(prompt)
        numbers = [int(number) for name, number in marks if name == agent.name] if agent.is_marked else []
        number = min(1 + max(numbers, default=0), len(agent.steps))
        step = agent.steps[number - 1]
        progress = dict.fromkeys(f"[{name} {number}]" for name, number in marks)
        values = {"progress": " ".join(progress), "found": _find(step, agent, prompt)}
        mark = f"[{agent.name} {number}] " if agent.is_marked else ""
        return "\n".join([(mark + _fill(step.text, values)).strip(), *(_write_call(call, values) for call in step.calls)])


def _read_prompt(prompt: str) -> dict[str, str]:
    turns = _TURN.findall(prompt)
    if turns and turns[-1] == ("assistant", ""):
        turns.pop()
    last = max((n for n, (role, _) in enumerate(turns) if role == "assistant"), default=-1)
    return {
        "contains": prompt,
        "system_contains": "\n".join(text for role, text in turns if role == "system"),
        "user_contains": "\n".join(text for role, text in turns if role not in ("assistant", "system")),
        "last_contains": "\n".join(text for _, text in turns[last + 1 :]),
    }


def _find(step: Step, agent: Agent, prompt: str) -> str:
    if step.find is None:
        return ""
    found = re.findall(step.find, prompt)
    if not found:
        raise EngineRefusedError(f"agent {agent.name!r} finds no {step.find!r} in the prompt that ends in {prompt[-200:]!r}")
    return found[-1]


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _write_call(call: Call, values: Mapping[str, str]) -> str:
    arguments = {name: _fill(v if isinstance(v, str) else json.dumps(v), values) for name, v in call.arguments.items()}
    lines = [f"<parameter={name}>\n{value}\n</parameter>" for name, value in arguments.items()]
    return "\n".join(["<tool_call>", f"<function={call.name}>", *lines, "</function>", "</tool_call>"])


def read_playbook(document: Mapping[str, Any], *, place: str) -> Playbook:
    """Read a playbook from a JSON object; `place` names it in errors.

    Raises:
        UserError: something in it is not of the form above.
    """
    listed = document.get("agents")
    if set(document) != {"agents"} or not isinstance(listed, list) or not listed:
        raise UserError(f"{place} is not a playbook", hint="write {'agents': [{'name': …, 'steps': […]}, …]}")
    return Playbook([_read_agent(item, f"{place}: agents[{n}]") for n, item in enumerate(listed)], place=place)


def _read_agent(item: Any, place: str) -> Agent:
    if not isinstance(item, dict) or set(item) - {"name", "when", "steps", "says"} or not re.fullmatch(r"[\w-]+", str(item.get("name"))):
        raise UserError(f"{place} is not an agent", hint="write {'name': one word, 'when': {…}, 'steps': […]}, or 'says' for 'steps'")
    if ("says" in item) == ("steps" in item):
        raise UserError(f"{place} has either 'steps' or 'says'", hint="'says' is one answer for all times, without a mark")
    steps = [{"text": item["says"]}] if "says" in item else item["steps"]
    if not isinstance(steps, list) or not steps:
        raise UserError(f"{place}.steps is a list with at least one step", hint="write [{'text': …, 'calls': […]}, …]")
    return Agent(
        name=item["name"],
        steps=tuple(_read_step(step, f"{place}.steps[{n}]") for n, step in enumerate(steps)),
        when=_read_when(item.get("when", {}), f"{place}.when"),
        is_marked="steps" in item,
    )


def _read_when(when: Any, place: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(when, dict) or set(when) - set(CONDITIONS):
        raise UserError(f"{place} is an object of {', '.join(CONDITIONS)}", hint="leave it out for an agent that always answers")
    read = {name: (texts,) if isinstance(texts, str) else tuple(texts) for name, texts in when.items() if isinstance(texts, str | list)}
    if len(read) != len(when) or not all(isinstance(text, str) for texts in read.values() for text in texts):
        raise UserError(f"{place} holds texts and lists of texts", hint="all texts of a list must be there")
    return read


def _read_step(step: Any, place: str) -> Step:
    calls = step.get("calls", []) if isinstance(step, dict) else None
    is_sound = isinstance(calls, list) and not set(step) - {"text", "calls", "find"}
    is_sound = is_sound and all(isinstance(step.get(name, ""), str) for name in ("text", "find"))
    if not is_sound or not all(_is_call(call) for call in calls or []):
        raise UserError(f"{place} is not a step", hint="write {'text': …, 'calls': [{'name': …, 'arguments': {…}}], 'find': pattern}")
    return Step(text=step.get("text", ""), calls=tuple(Call(**call) for call in calls or []), find=step.get("find"))


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and not set(call) - {"name", "arguments"}
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments", {}), dict)
    )
