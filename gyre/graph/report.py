"""What commands print about pipelines, operators and schemas: as text and as JSON data. Pure; the text is kept in golden files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gyre.errors import Problem
from gyre.graph.registry import Operator, Port
from gyre.graph.settings import REQUIRED, describe_type, plain

_ARGUMENT = re.compile(r"^ {4}(\w+): (.*)$")


def render_problems(problems: Sequence[Problem]) -> str:
    """Write problems for people: path, what is wrong, what to write instead."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([count, *(line for problem in problems for line in _problem_lines(problem))]) + "\n"


def _problem_lines(problem: Problem) -> Iterator[str]:
    yield ""
    yield f"  {problem.path}"
    yield f"    {problem.message}"
    if problem.hint:
        yield f"    hint: {problem.hint}"


def problems_document(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Turn problems into JSON data."""
    return [problem._asdict() for problem in problems]


def operator_document(operator: Operator) -> dict[str, Any]:
    """Turn an operator's declaration into JSON data."""
    docs = setting_docs(operator)
    return {
        "name": operator.name,
        "doc": operator.doc.partition("\n\nArgs:")[0],
        "target": operator.target_path,
        "state": operator.state,
        "inputs": {name: _port_document(port) for name, port in operator.inputs.items()},
        "outputs": {name: _port_document(port) for name, port in operator.outputs.items()},
        "settings": {
            name: {
                "type": describe_type(setting.annotation),
                "required": setting.default is REQUIRED,
                "default": None if setting.default is REQUIRED else plain(setting.default),
                "doc": docs.get(name, ""),
            }
            for name, setting in operator.settings.items()
        },
        "resources": dict(operator.resources),
    }


def render_operator(operator: Operator) -> str:
    """Write an operator's declaration for people."""
    return "\n".join(_operator_lines(operator)) + "\n"


def _operator_lines(operator: Operator) -> Iterator[str]:
    document = operator_document(operator)
    yield operator.name
    yield from (f"  {line}".rstrip() for line in document["doc"].splitlines())
    for title in ("inputs", "outputs"):
        yield f"\n{title}"
        for name, port in document[title].items():
            yield f"  {name}: {port['kind']} of {port['record']}{' (may stay open)' if port['optional'] else ''}"
        if not document[title]:
            yield "  none"
    yield "\nsettings"
    for name, setting in document["settings"].items():
        default = "required" if setting["required"] else f"default {_default_text(setting['default'])}"
        yield f"  {name}: {setting['type']}, {default}"
        if setting["doc"]:
            yield f"      {setting['doc']}"
    if not document["settings"]:
        yield "  none"
    if document["resources"]:
        yield f"\nresources\n  {', '.join(sorted(document['resources'].values()))}"


def setting_docs(operator: Operator) -> dict[str, str]:
    """Read what the docstrings say of each setting (their `Args:` part)."""
    target: Any = operator.target
    texts = [operator.doc, inspect.getdoc(target.__init__) or ""] if operator.is_class else [operator.doc]
    docs: dict[str, str] = {}
    for text in texts:
        current = ""
        for line in text.partition("Args:\n")[2].splitlines():
            started = _ARGUMENT.match(line)
            if started:
                current = started[1]
                docs[current] = started[2].strip()
            elif line.startswith("     ") and current:
                docs[current] += f" {line.strip()}"
            else:
                break
    return docs


def render_schema(name: str, columns: Iterable[Mapping[str, Any]]) -> str:
    """Write a schema for people, one column after another."""
    lines = [name]
    for column in columns:
        null = ", may be null" if column["nullable"] else ""
        lines += [f"  {column['name']}: {column['type']}{null}", f"      {column['doc']}"]
    return "\n".join(lines) + "\n"


def _port_document(port: Port) -> dict[str, Any]:
    return {"record": port.record.schema_name, "kind": port.kind, "optional": port.is_optional}


def _default_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(value)
