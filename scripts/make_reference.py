"""Write docs/reference: operators, schemas, commands, resources, benchmarks and the harness profile, as the code declares them.

    python scripts/make_reference.py            # after a change of a signature, a schema, a command or a settings class
    python scripts/make_reference.py --check    # say which page is not current, and change nothing

Only what is built in is listed; operators of other packages are shown by `gyre ops NAME`. `tests/docs` runs the check.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click

from gyre.cli import cli
from gyre.graph import resources, workload
from gyre.graph.registry import find_operator, list_operators
from gyre.graph.report import operator_document
from gyre.graph.settings import REQUIRED, describe_type, plain, settings_of
from gyre.records import load_columns, schemas_dir
from gyre.rollout import profile
from gyre.store.columns import TABLES

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/make_reference.py; change the code, then run it. -->\n"
RESOURCE_WORDS = {"engine": "engine", "learner": "learner", "weights": "transfer", "store": "store"}
"""Resource of a pipeline to the word of gyre.libsonnet that makes it."""


def render_pages() -> dict[str, str]:
    """The text of every page, by file name."""
    return {
        "operators.md": _page("Operators", _operators()),
        "schemas.md": _page("Schemas", _schemas()),
        "commands.md": _page("Commands", _commands()),
        "resources.md": _page("Resources", _resources()),
        "harness-profile.md": _page("Harness profile", _profile()),
        "benchmarks.md": _page("Benchmarks", _benchmarks()),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", NOTE, *lines]).rstrip() + "\n"


def _table(*rows: tuple[str, ...]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for row in body:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _code(value: Any) -> str:
    """A default as a pipeline would write it."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _operators() -> Iterator[str]:
    yield "What an operator takes, emits and may be given. `gyre ops NAME` prints the same, also for operators of other packages.\n"
    for name in list_operators():
        if "/" in name:
            continue
        document = operator_document(find_operator(name))
        yield f"## `{name}`\n"
        yield f"{document['doc']}\n"
        for title in ("inputs", "outputs"):
            ports = [_port_line(port, declared) for port, declared in document[title].items()]
            yield f"{title.capitalize()}: {', '.join(ports) or 'none'}.\n"
        if document["resources"]:
            yield f"Asks for: {', '.join(sorted(document['resources'].values()))}.\n"
        if document["settings"]:
            rows = [_setting_row(setting, declared) for setting, declared in document["settings"].items()]
            yield from _table(("setting", "type", "default", "meaning"), *rows)


def _setting_row(name: str, declared: Mapping[str, Any]) -> tuple[str, ...]:
    meaning = declared["doc"][:1].upper() + declared["doc"][1:]
    return f"`{name}`", declared["type"], "required" if declared["required"] else _code(declared["default"]), meaning


def _port_line(name: str, declared: Mapping[str, Any]) -> str:
    record = declared["record"]
    anchor = record.replace(".", "")
    optional = ", may stay open" if declared["optional"] else ""
    return f"`{name}` ({declared['kind']} of [{record}](schemas.md#{anchor}){optional})"


def _schemas() -> Iterator[str]:
    yield "Columns of the records that travel between operators and of a run's tables, as `schemas/*.json` has them. Types are"
    yield "pyarrow's. A schema's number grows with any incompatible change.\n"
    names = sorted(path.stem for path in schemas_dir().glob("*.json"))
    tables = [name for name in names if name.partition(".")[0] in TABLES]
    yield from _schema_group("Records", [name for name in names if name not in tables])
    yield from _schema_group("Tables of a run", tables)


def _schema_group(title: str, names: list[str]) -> Iterator[str]:
    yield f"## {title}\n"
    for name in names:
        yield f"### {name}\n"
        rows = [(f"`{c['name']}`", f"`{c['type']}`", "yes" if c["nullable"] else "", c["doc"]) for c in load_columns(name)]
        yield from _table(("column", "type", "null", "meaning"), *rows)


def _commands() -> Iterator[str]:
    yield "Every command takes `--help` and `--json`: one JSON document on stdout and nothing else. Exit codes: 0 done; 1 the run failed or"
    yield "a check does not hold (a run that was going can be resumed); 2 the user's mistake, found before work starts; 130 interrupted.\n"
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=f"gyre {name}")
        yield f"## `gyre {name}`\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
        yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
        options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
        records = [record for option in options if (record := option.get_help_record(context)) and "--help" not in record[0]]
        yield from _table(("option", "meaning"), *((f"`{option}`", " ".join(text.split())) for option, text in records))
        yield "Example:\n"
        yield "```console\n" + "\n".join(f"$ {example}" for example in getattr(command, "examples", ())) + "\n```\n"


def _resources() -> Iterator[str]:
    yield "What a pipeline may give in `resources`. Defaults stand in `gyre/graph/resources.py`, once.\n"
    docs = _field_docs(resources)
    yield "## cells\n"
    yield "`gyre.cells({…})`: the cells, and the engines that only ever serve rollouts.\n"
    yield from _settings(resources.CellsSettings, docs)
    yield "### layout\n"
    yield f"{inspect.getdoc(resources.LayoutSettings)}\n"
    yield from _settings(resources.LayoutSettings, docs)
    for name, kinds in resources.KINDS.items():
        yield f"## {name}\n"
        for kind, settings_type in kinds.items():
            yield f"### {kind}\n"
            yield f"`gyre.{RESOURCE_WORDS[name]}('{kind}', {{…}})`: {inspect.getdoc(settings_type)}\n"
            yield from _settings(settings_type, docs)

    yield "## workload\n"
    yield f"`gyre.workload({{…}})`: {inspect.getdoc(workload.WorkloadSettings)}"
    yield "`gyre simulate` and `gyre tune` read it; a live run ignores it.\n"
    yield from _settings(workload.WorkloadSettings, _field_docs(workload))


def _settings(settings_type: type, docs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    rows = []
    for name, setting in settings_of(settings_type).items():
        default = "required" if setting.default is REQUIRED else _code(plain(setting.default))
        rows.append((f"`{name}`", describe_type(setting.annotation), default, docs[settings_type.__name__].get(name, "")))
    yield from _table(("setting", "type", "default", "meaning"), *rows)


def _profile() -> Iterator[str]:
    yield "Keys of a harness profile, the setting `harness` of [`harness_proxy`](operators.md#harness_proxy). How to write one:"
    yield "[Add a harness](../add-a-harness.md).\n"
    docs = _field_docs(profile)["HarnessProfile"]
    hints = get_type_hints(profile.HarnessProfile)
    rows = []
    for field in dataclasses.fields(profile.HarnessProfile):
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        default = "required" if value is dataclasses.MISSING else _code(value)
        rows.append((f"`{field.name}`", describe_type(hints[field.name]), default, docs[field.name]))
    yield from _table(("key", "type", "default", "meaning"), *rows)


def _benchmarks() -> Iterator[str]:
    yield "`gyre bench NAME` runs one and prints its figures; `ok` says whether the limits in its own file hold."
    yield "`--set` gives its settings.\n"
    for path in sorted((ROOT / "gyre" / "bench").glob("*.py")):
        if not path.stem.startswith("_"):
            yield f"## `{path.stem}`\n"
            yield f"{ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))}\n"


def _field_docs(module: Any) -> dict[str, dict[str, str]]:
    """The line under each field of a module's classes, by class and field."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for field, line in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(line, ast.Expr):
                fields[field.target.id] = " ".join(str(ast.literal_eval(line.value)).split())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page is not current")
    arguments = parser.parse_args()
    pages = render_pages()
    stale = [name for name, text in pages.items() if not (TARGET / name).is_file() or (TARGET / name).read_text(encoding="utf-8") != text]
    if arguments.check:
        if stale:
            sys.exit(f"not current: {', '.join(stale)}; run python scripts/make_reference.py")
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (TARGET / name).write_text(pages[name], encoding="utf-8")
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
