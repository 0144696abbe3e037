"""What benchmarks have in common: their options, their limits, the form of their result, and lines of an input file.

A benchmark is one module with `run(settings) -> {"name", "figures", "ok"}` and a `LIMITS` table; `ok` says whether every limit holds.
Its docstring ends with its settings and, where it takes `--input FILE`, with the file's form: `gyre bench NAME --help` prints it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gyre.errors import SpecError, UserError
from gyre.graph.settings import bind_settings, settings_of

O = TypeVar("O")  # noqa: E741  # the options of one benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a figure must keep to."""

    at_most: float = math.inf
    """Largest value that is fine."""
    at_least: float = -math.inf
    """Smallest value that is fine."""

    def holds(self, value: float) -> bool:
        """Whether a figure is within the limit; a figure that is no number is not."""
        return self.at_least <= value <= self.at_most

    def __str__(self) -> str:
        bounds = [(">=", self.at_least), ("<=", self.at_most)]
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if math.isfinite(bound))


def outcome(name: str, figures: Mapping[str, float | bool], limits: Mapping[str, Limit]) -> dict[str, Any]:
    """The result of a benchmark; a limit speaks of a figure that is there."""
    is_ok = all(limit.holds(figures[key]) for key, limit in limits.items())
    return {"name": name, "figures": dict(figures), "ok": is_ok}


def read_options(options_class: type[O], settings: Mapping[str, str], *, name: str) -> O:
    """Read `--set name=value` settings (JSON, else a text) into a benchmark's options.

    Raises:
        SpecError: an unknown setting or a wrong value.
    """
    given = {key: _json_or_text(value) for key, value in settings.items()}
    bound = bind_settings("--set", given, settings_of(options_class), base_dir=Path.cwd(), owner=f"benchmark '{name}'")
    if bound.problems:
        raise SpecError(bound.problems)
    return options_class(**bound.values)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


class Line(NamedTuple):
    """One line of a file of JSON Lines."""

    place: str
    """`FILE:NUMBER`, for sentences."""
    value: Any
    """Parsed JSON."""


def read_lines(path: Path) -> Iterator[Line]:
    """Read a file of JSON Lines; empty lines are skipped.

    Raises:
        UserError: the file cannot be read or a line is not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the input file {path} cannot be read: {error}", hint="name a text file of JSON Lines") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield Line(f"{path}:{number}", json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON: {error}", hint="write one JSON value per line") from error


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def shipped_pipeline(name: str) -> Path:
    """A pipeline that comes with gyre, such as 'paper/nl2repo_122b'."""
    return _shipped_dir() / f"{name}.jsonnet"


def shipped_model_dir() -> Path:
    """The small model that the pipelines come with."""
    return _shipped_dir() / "models" / "tiny"


def _shipped_dir() -> Path:
    """`pipelines`: beside the package in a checkout, inside it in a wheel."""
    package = Path(str(resources.files("gyre")))
    inside = package / "pipelines"
    return inside if inside.is_dir() else package.parent / "pipelines"
