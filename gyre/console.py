"""What commands print: errors as sentences, results as tables or as one JSON document. Rich is imported where something needs it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NoReturn

import click

from gyre.errors import GyreError, SpecError, UserError

PIPE_WIDTH = 2000
"""Columns of a table that does not go to a terminal."""


def report_usage(error: click.UsageError, *, as_json: bool) -> None:
    """Say how a command was called wrongly."""
    if as_json:
        print_json({"ok": False, "error": error.format_message(), "hint": "see --help"})
    else:
        error.show()


def report_error(error: GyreError, *, as_json: bool) -> None:
    """Say what went wrong: sentences on stderr, or one JSON document on stdout."""
    if isinstance(error, SpecError):
        _report_problems(error, as_json=as_json)
    elif as_json:
        print_json({"ok": False, "error": str(error), "hint": getattr(error, "hint", "")})
    else:
        click.echo(f"{click.style('error:', fg='red')} {error}", err=True)
        if isinstance(error, UserError) and error.hint:
            click.echo(f"hint: {error.hint}", err=True)


def _report_problems(error: SpecError, *, as_json: bool) -> None:
    from gyre.graph.report import problems_document, render_problems

    if as_json:
        print_json({"ok": False, "problems": problems_document(error.problems)})
        return
    if not sys.stderr.isatty():
        click.echo(render_problems(error.problems), err=True, nl=False)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    for line in render_problems(error.problems).splitlines():
        is_path = line.startswith("  ") and not line.startswith("    ")
        style = "bold" if is_path else "dim" if line.startswith("    hint:") else "red" if not line.startswith(" ") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document; what JSON cannot say (NaN, times) becomes null or text."""
    click.echo(json.dumps(_as_json(document), indent=2, default=str))


def _as_json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        # Sums of whole numbers come from SQL as decimals; they are numbers, not texts.
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value


def print_table(columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print rows under their column names."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Into a pipe nothing is cut: 80 columns are a terminal's limit, not a file's.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.on_broken_pipe = _raise_broken_pipe
    # `Text` keeps brackets as they are: plain strings would be read as markup.
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(Text(name))
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 (count is the number of rows)
        table.add_row(*(Text("null" if value is None else str(value)) for value in row))
    console.print(table)
    console.print(f"({count} row{'' if count == 1 else 's'})", style="dim")


def _raise_broken_pipe() -> NoReturn:
    """Rich would leave with exit code 1 where the reader of a table has seen enough (`gyre query … | head`)."""
    raise BrokenPipeError


def print_columns(rows: Iterable[tuple[str, str]]) -> None:
    """Print pairs in two aligned columns."""
    listed = list(rows)
    width = max((len(first) for first, _ in listed), default=0)
    for first, second in listed:
        click.echo(f"{first:<{width}}  {second}".rstrip())
