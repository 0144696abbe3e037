"""Evaluation of a Jsonnet pipeline file to plain data.

Invariants: an import is `gyre.libsonnet` (always the package's), a path relative to the importing file, or an absolute path; nothing
else is searched. Files below the pipeline's folder carry names relative to that folder, so `std.thisFile` in an imported file and the
paths in `args` are read the same way. `--set` reaches named parameters of a pipeline that is a function, and nothing else: a setting
nobody takes is a problem, never ignored.

Fed by the command line's path and settings; eaten by `spec.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gyre.errors import Problem, SpecError
from gyre.graph.hints import suggest

LIBRARY_NAME = "gyre.libsonnet"
LARGEST_EXACT_INTEGER = 2**53
"""Jsonnet numbers are doubles: beyond this an integer silently loses digits."""

_LOCATION = re.compile(r"^\t?(?P<file>[^\t\n]+?):\(?(?P<line>\d+):(?P<column>\d+)\)?[-\d:()]*", re.MULTILINE)
"""A place at the start of a line: the names of files may have blanks and colons in them."""
_UNKNOWN_PARAMETER = re.compile(r"function has no parameter (\w+)")
_UNBOUND_PARAMETER = re.compile(r"function parameter (\w+) not bound")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = re.compile("assert|else|error|false|for|function|if|import|importbin|importstr|in|local|null|self|super|tailstrict|then|true")
_IGNORED_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)


class Evaluated(NamedTuple):
    """A pipeline file as plain data."""

    document: Any
    """What the file evaluates to."""
    problems: list[Problem]
    """Settings that nobody takes."""


def evaluate_file(path: Path, overrides: Mapping[str, str]) -> Evaluated:
    """Evaluate a pipeline file with its `--set` values (JSON, else taken as a string).

    Raises:
        SpecError: the file is missing, does not evaluate, or has a parameter without a default.
    """
    if not path.is_file():
        message = f"there is no pipeline file {path}" if not path.exists() else f"{path} is not a file"
        raise SpecError([Problem(str(path), message, "give the path of a .jsonnet file that evaluates to a pipeline")])
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        source = "\0"
    if "\0" in source:
        raise SpecError([Problem(str(path), "the file is not text in UTF-8", "save it as UTF-8")])
    files = _Files(base_dir=path.resolve().parent)
    problems: list[Problem] = []
    wanted = {name: _decode(name, value, problems) for name, value in overrides.items()}
    if not wanted:
        return Evaluated(_evaluate(path, path.resolve().name, source, files), problems)
    return Evaluated(_evaluate_call(path, files, parameter_names(source), wanted, problems), problems)


def _evaluate_call(path: Path, files: _Files, parameters: list[str], wanted: dict[str, Any], problems: list[Problem]) -> Any:
    """Call the file with its settings; drop one unknown setting after another into `problems`."""
    unknown = [name for name in wanted if not _IDENTIFIER.fullmatch(name) or _KEYWORDS.fullmatch(name)]
    while True:
        for name in unknown:
            del wanted[name]
            hint = suggest(name, parameters, what="it takes") if parameters else f"see the parameters at the top of {path}"
            problems.append(Problem(f"--set {name}", f"{path} takes no setting '{name}'", hint))
        arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in wanted.items())
        entry = json.dumps(path.resolve().name)
        call = f"local p = import {entry}; if std.isFunction(p) then {{ called: p({arguments}) }} else {{ plain: p }}"
        try:
            value = _evaluate(path, "", call, files)
        except SpecError as error:
            named = _UNKNOWN_PARAMETER.search(error.problems[0].message)
            # Within a file it is a call of the user's own that names a wrong parameter, not this one.
            if named is None or named[1] not in wanted or error.problems[0].path != str(path):
                raise SpecError([*problems, *error.problems]) from None
            unknown = [named[1]]
            continue
        if "called" in value:
            return value["called"]
        hint = "write the file as function(name=default) gyre.pipeline(…) {…}, or edit the value in the file"
        problems += [Problem(f"--set {n}", f"{path} takes no settings: it is not a function", hint) for n in wanted]
        return value["plain"]


def _decode(name: str, value: str, problems: list[Problem]) -> Any:
    try:
        # What JSON cannot say stays a string, as Jsonnet has no word for it either.
        decoded = json.loads(value, parse_constant=str, parse_float=lambda digits: n if math.isfinite(n := float(digits)) else digits)
    except (ValueError, RecursionError):
        return value
    if isinstance(decoded, int) and abs(decoded) > LARGEST_EXACT_INTEGER:
        message = f"{value} is beyond 2^53 and would lose digits"
        problems.append(Problem(f"--set {name}", message, f"give it as a string: --set '{name}=\"{value}\"'"))
    return decoded


def _evaluate(path: Path, file_name: str, text: str, files: _Files) -> Any:
    import _jsonnet  # a C extension: only commands that read a pipeline pay for it

    try:
        return json.loads(_jsonnet.evaluate_snippet(file_name, text, import_callback=files.read))
    except RuntimeError as error:
        raise SpecError([_explain(path, str(error))]) from None


def _explain(path: Path, text: str) -> Problem:
    """Turn an error of the Jsonnet evaluator into one problem at file:line:column."""
    first_line = text.partition("\n")[0]
    unbound = _UNBOUND_PARAMETER.search(first_line)
    if unbound and not _LOCATION.search(text.partition("\n")[2]):
        message = f"parameter '{unbound[1]}' of the pipeline has no value"
        return Problem(str(path), message, f"give it a default in the file, or --set {unbound[1]}=…")
    is_static = first_line.startswith("STATIC ERROR: ")
    message = re.sub(r"^(STATIC|RUNTIME) ERROR: ", "", first_line)
    # The first named position is where it happened; the call that carries the settings has no name.
    located = _LOCATION.search(message if is_static else text.partition("\n")[2])
    place = str(path)
    if located:
        file = located["file"]
        place = str(path) if file == path.name else str(path.parent / file)
        place = f"{place}:{located['line']}:{located['column']}"
    if is_static and located:
        message = message[located.end() :].lstrip(": ")
    return Problem(place, message, _hint(message, is_static=is_static))


def _hint(message: str, *, is_static: bool) -> str:
    if "couldn't open import" in message:
        return f"import '{LIBRARY_NAME}', a path relative to the importing file, or an absolute path"
    if "max stack frames exceeded" in message:
        return "something refers to itself without end: an import in a circle, or a recursion"
    if message.startswith("Unknown variable"):
        return "declare it with local, or put it in quotes if it is a text"
    if is_static:
        return "this is not Jsonnet: look for a missing comma, quote or bracket just before this place"
    if "couldn't manifest function" in message:
        return "a pipeline is plain data: call the function, or hide its field with '::'"
    return "correct the expression at this place"


def parameter_names(source: str) -> list[str]:
    """Names of the parameters of a file that is a function; empty where the file is something else.

    Jsonnet cannot tell them, so this reads the text; it serves hints only, never a decision.
    """
    text = _IGNORED_TEXT.sub(lambda match: "_" if match[0][0] in "\"'" else " ", source)
    depth, start = 0, 0
    for index, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == ";" and depth == 0:
            start = index + 1
    opened = re.match(r"\s*function\s*\(", text[start:])
    if not opened:
        return []
    names, depth, piece = [], 1, ""
    for char in text[start + opened.end() :]:
        depth += (char in "([{") - (char in ")]}")
        if depth == 0 or (char == "," and depth == 1):
            names.append(piece.partition("=")[0].strip())
            piece = ""
        else:
            piece += char
        if depth == 0:
            break
    return [name for name in names if name]


class _Files:
    """The import callback of one evaluation."""

    def __init__(self, *, base_dir: Path) -> None:
        self._base_dir = base_dir

    def read(self, importing_dir: str, wanted: str) -> tuple[str, bytes]:
        """Find an imported file; its returned name is relative to the pipeline's folder where it lies below it."""
        if wanted == LIBRARY_NAME:
            return LIBRARY_NAME, (Path(__file__).parent / LIBRARY_NAME).read_bytes()
        found = (self._base_dir / importing_dir / wanted).resolve()
        if not found.is_file():
            raise FileNotFoundError(f"there is no file {found}")
        is_below = found.is_relative_to(self._base_dir)
        return (found.relative_to(self._base_dir).as_posix() if is_below else str(found)), found.read_bytes()
