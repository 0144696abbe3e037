"""Role rules of a harness profile: which model call is main, a summary, a sub-agent's or a side call.

A profile lists rules as data; the first whose conditions all hold gives the role, otherwise the profile's default (main):

    role_rules: [
      { role: 'side', no_tools: true, system_contains: 'title' },
      { role: 'sub-agent-summary', header_present: 'x-agent-id', last_user_contains: 'Summarize' },
      { role: 'sub-agent', header_present: 'x-agent-id' },
      { role: 'main-summary', last_user_startswith: 'Summarize' },
    ]

Conditions (a list means: any of them): `header` and `field` {name: text that the value contains}, `header_present`,
`field_present`, `system_contains`, `first_user_contains`, `last_user_contains`, the three with `_startswith`, `no_tools` and
`forced_tool` (true or false). Header names ignore case; a field is a dotted path in the request's body. Fed by the wires, eaten
by the proxy for each call.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import cast

from gyre.errors import Problem, SpecError
from gyre.trajectory.messages import Message
from gyre.trajectory.node import ROLES

_TEXT_CONDITIONS = tuple(f"{part}_{how}" for part in ("system", "first_user", "last_user") for how in ("contains", "startswith"))
_CONDITIONS = (*_TEXT_CONDITIONS, "header", "field", "header_present", "field_present", "no_tools", "forced_tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What the rules look at."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the request, names in lower case."""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    """The request's body as parsed JSON."""
    system_text: str = ""
    """Text of the leading system messages."""
    first_user_text: str = ""
    """Text of the first user message."""
    last_user_text: str = ""
    """Text of the last user message."""
    has_tools: bool = False
    """Whether the request offers tools."""
    has_forced_tool: bool = False
    """Whether the request names the tool that must be called."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        *,
        headers: Mapping[str, str],
        fields: Mapping[str, object],
        has_tools: bool,
        has_forced_tool: bool = False,
        server_note: str = "",
    ) -> RequestFacts:
        """Gather the facts of a translated request; a note to the server counts as text of the system messages' end."""
        users = [message.text for message in messages if message.role == "user"]
        return cls(
            headers={name.lower(): value for name, value in headers.items()},
            fields=fields,
            system_text="\n".join([*(m.text for m in takewhile(_is_system, messages)), *([server_note] if server_note else [])]),
            first_user_text=users[0] if users else "",
            last_user_text=users[-1] if users else "",
            has_tools=has_tools,
            has_forced_tool=has_forced_tool,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """One rule: a role and the conditions that must all hold."""

    role: str
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(condition, any of these texts)."""
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(name, the value contains any of these)."""
    fields: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(dotted path, the value contains any of these)."""
    headers_present: tuple[str, ...] = ()
    """Any of these is there; empty: no condition."""
    fields_present: tuple[str, ...] = ()
    """Any of these is there and not null; empty: no condition."""
    no_tools: bool | None = None
    forced_tool: bool | None = None

    def holds(self, facts: RequestFacts) -> bool:
        """Whether every condition holds."""
        return (
            all(_text_holds(condition, texts, facts) for condition, texts in self.texts)
            and all(_contains(facts.headers.get(name), texts) for name, texts in self.headers)
            and all(_contains(_find_field(facts.fields, path), texts) for path, texts in self.fields)
            and (not self.headers_present or any(name in facts.headers for name in self.headers_present))
            and (not self.fields_present or any(_find_field(facts.fields, p) is not None for p in self.fields_present))
            and self.no_tools in (None, not facts.has_tools)
            and self.forced_tool in (None, facts.has_forced_tool)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRules:
    """The rules of one harness profile.

    >>> rules = RoleRules.from_profile({"role_rules": [{"role": "main-summary", "last_user_contains": "Summarize"}]})
    >>> rules.classify(RequestFacts(last_user_text="Summarize the work so far.")), rules.classify(RequestFacts())
    ('main-summary', 'main')
    """

    rules: tuple[RoleRule, ...] = ()
    default_role: str = "main"

    def classify(self, facts: RequestFacts) -> str:
        """Role of a request: of the first rule that holds, else the default."""
        return next((rule.role for rule in self.rules if rule.holds(facts)), self.default_role)

    @classmethod
    def from_profile(cls, profile: Mapping[str, object], *, path: str = "harness") -> RoleRules:
        """Read `role_rules` and `default_role` of a profile; `path` is where the profile stands in the user's pipeline.

        Raises:
            SpecError: every rule that cannot be read.
        """
        problems = list(find_rule_problems(profile, path=path))
        if problems:
            raise SpecError(problems)
        rules = cast(Sequence[Mapping[str, object]], profile.get("role_rules", ()))
        return cls(rules=tuple(map(_read_rule, rules)), default_role=str(profile.get("default_role", "main")))


def find_rule_problems(profile: Mapping[str, object], *, path: str = "harness") -> Iterator[Problem]:
    """Everything that is wrong with a profile's role rules."""
    yield from _role_problems(profile.get("default_role", "main"), f"{path}.default_role")
    rules = profile.get("role_rules", [])
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        yield Problem(f"{path}.role_rules", "is not a list", "write a list of rules, first match wins")
        return
    for number, rule in enumerate(cast(Sequence[object], rules)):
        place = f"{path}.role_rules[{number}]"
        if not isinstance(rule, Mapping):
            yield Problem(place, "is not an object", "write { role: …, condition: … }")
            continue
        for name, value in cast(Mapping[str, object], rule).items():
            yield from _condition_problems(name, value, f"{place}.{name}")
        if "role" not in rule:
            yield Problem(place, "names no role", f"add role: one of {', '.join(ROLES)}")


def _role_problems(role: object, path: str) -> Iterator[Problem]:
    if role not in ROLES:
        yield Problem(path, f"{role!r} is not a role", f"write one of {', '.join(ROLES)}")


def _condition_problems(name: str, value: object, path: str) -> Iterator[Problem]:
    if name == "role":
        yield from _role_problems(value, path)
    elif name not in _CONDITIONS:
        near = difflib.get_close_matches(name, _CONDITIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(_CONDITIONS)}"
        yield Problem(path, "is not a condition", hint)
    elif name in ("no_tools", "forced_tool"):
        if not isinstance(value, bool):
            yield Problem(path, f"{value!r} is not true or false", "write true or false")
    elif name in ("header", "field"):
        if not isinstance(value, Mapping) or not all(map(_are_texts, cast(Mapping[str, object], value).values())):
            yield Problem(path, "is not an object of texts", f"write {{ name: 'text' }}, or {name}_present: 'name'")
    elif not _are_texts(value):
        yield Problem(path, f"{value!r} is neither a text nor a list of texts", "write 'text' or ['text', …]")


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(cast(list[object], value)) and all(isinstance(v, str) for v in cast(list[object], value))
    )


def _texts(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(cast(Sequence[str], value))


def _read_rule(rule: Mapping[str, object]) -> RoleRule:
    headers = cast(Mapping[str, object], rule.get("header", {}))
    fields = cast(Mapping[str, object], rule.get("field", {}))
    return RoleRule(
        role=str(rule["role"]),
        texts=tuple((name, _texts(rule[name])) for name in _TEXT_CONDITIONS if name in rule),
        headers=tuple((name.lower(), _texts(value)) for name, value in headers.items()),
        fields=tuple((name, _texts(value)) for name, value in fields.items()),
        headers_present=tuple(name.lower() for name in _texts(rule.get("header_present", ()))),
        fields_present=_texts(rule.get("field_present", ())),
        no_tools=cast(bool | None, rule.get("no_tools")),
        forced_tool=cast(bool | None, rule.get("forced_tool")),
    )


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _text_holds(condition: str, texts: tuple[str, ...], facts: RequestFacts) -> bool:
    part, _, how = condition.rpartition("_")
    value = {"system": facts.system_text, "first_user": facts.first_user_text, "last_user": facts.last_user_text}[part]
    return any(value.lstrip().startswith(text) if how == "startswith" else text in value for text in texts)


def _contains(value: object, texts: tuple[str, ...]) -> bool:
    return value is not None and any(text in str(value) for text in texts)


def _find_field(fields: object, path: str) -> object:
    """Value at a dotted path of the body; None where it is missing or null."""
    if not isinstance(fields, Mapping):
        return None
    key, _, rest = path.partition(".")
    value = cast(Mapping[str, object], fields).get(key)
    return _find_field(value, rest) if rest else value
