"""A pipeline as the user wrote it: the evaluated Jsonnet object, split into resources and operators.

`load_spec` raises when the file cannot be evaluated. What is wrong *inside* the object (misspelt keys, wrong shapes) is kept in
`Spec.problems`, so that `build_graph` can name it together with everything it finds itself: the user gets all problems at once.

Fed by `jsonnet.py`; eaten by `typed.py`, and kept as `RUN/spec.json` by the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.errors import Problem, SpecError
from gyre.graph.hints import suggest
from gyre.graph.jsonnet import evaluate_file

PIPELINE_VERSION = "pipeline.v1"
RESOURCE_NAMES = ("cells", "engine", "learner", "store", "weights", "workload")
PIPELINE_KEYS = ("gyre", "name", "ops", "resources")
OPERATOR_KEYS = ("args", "from", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an input port is fed from."""

    node: str
    """Name of the operator in `ops`."""
    port: str | None
    """Output port; None: the operator's only one."""
    is_feedback: bool
    """True for `gyre.feedback(…)`, which may close a cycle."""

    def __str__(self) -> str:
        return self.node if self.port is None else f"{self.node}.{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One entry of `ops`, well shaped."""

    name: str
    """Its name in the pipeline."""
    operator: str
    """Name of the operator, as `gyre.op(…)` got it."""
    sources: Mapping[str, Source | None]
    """Input port to where it is fed from; None where the given value is not a port, which is a problem already."""
    args: Mapping[str, Any]
    """Settings as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """An evaluated pipeline."""

    path: Path
    """The pipeline's file as the user named it."""
    base_dir: Path
    """Folder of that file: paths in `args` start here."""
    name: str
    """Name of the pipeline."""
    document: Mapping[str, Any]
    """The whole evaluated object; what a run keeps."""
    resources: Mapping[str, Mapping[str, Any]]
    """Resource name to its settings as written, `kind` among them."""
    ops: Mapping[str, OpSpec]
    """Operators by name; an entry that is not one is left out and is in `problems`."""
    problems: tuple[Problem, ...]
    """What is wrong in the object's shape, in the order of the object."""


def load_spec(path: str | Path, overrides: Mapping[str, str] | None = None) -> Spec:
    """Evaluate a pipeline file; `overrides` are `--set` values as text.

    Raises:
        SpecError: the file is missing, is not Jsonnet, or does not evaluate to a pipeline object.
    """
    path = Path(path)
    document, problems = evaluate_file(path, overrides or {})
    if not isinstance(document, dict) or document.get("gyre") != PIPELINE_VERSION:
        given = describe_value(document.get("gyre") if isinstance(document, dict) else document)
        message = f"the file is not a pipeline: its key 'gyre' must be '{PIPELINE_VERSION}', found {given}"
        hint = "start it with: local gyre = import 'gyre.libsonnet'; gyre.pipeline('name') { … }"
        raise SpecError([*problems, Problem(str(path), message, hint)])
    return read_document(document, path=path, base_dir=path.resolve().parent, problems=problems)


def read_document(document: Mapping[str, Any], *, path: Path, base_dir: Path, problems: list[Problem]) -> Spec:
    """Split an evaluated pipeline object into resources and operators; problems of shape are collected."""
    found = [*problems, *unknown_keys("", document, PIPELINE_KEYS, what="a pipeline has")]
    name = document.get("name")
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        # Runs go to runs/<name>/.
        message = f"a pipeline's name is a text without '/' that can name a folder, this is {describe_value(name)}"
        found.append(Problem("name", message, "write gyre.pipeline('my_pipeline') { … }"))
    return Spec(
        path=path,
        base_dir=base_dir,
        name=str(name),
        document=document,
        resources=_read_resources(document.get("resources", {}), found),
        ops=_read_ops(document.get("ops", {}), found),
        problems=tuple(found),
    )


def describe_value(value: Any) -> str:
    """Describe a JSON value for a sentence, e.g. `the text 'abc'`, `the number 3`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        return f"the text {_shorten(repr(value))}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object"


def unknown_keys(path: str, given: Mapping[str, Any], known: tuple[str, ...], *, what: str) -> list[Problem]:
    """Refuse the keys of an object that nobody reads."""
    return [
        Problem(f"{path}.{key}".lstrip("."), f"unknown key '{key}'", suggest(key, known, what=what)) for key in given if key not in known
    ]


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _read_resources(given: Any, problems: list[Problem]) -> dict[str, Mapping[str, Any]]:
    if not isinstance(given, dict):
        hint = "write resources: { cells: gyre.cells({…}), engine: gyre.engine('local') }"
        problems.append(Problem("resources", f"resources is an object, this is {describe_value(given)}", hint))
        return {}
    for name in given:
        if name not in RESOURCE_NAMES:
            hint = suggest(name, RESOURCE_NAMES, what="resources are")
            problems.append(Problem(f"resources.{name}", f"unknown resource '{name}'", hint))
        elif not isinstance(given[name], dict):
            call = {"weights": "transfer"}.get(name, name)
            message = f"a resource is an object, this is {describe_value(given[name])}"
            problems.append(Problem(f"resources.{name}", message, f"write {name}: gyre.{call}(…)"))
    return {n: given[n] for n in given if n in RESOURCE_NAMES and isinstance(given[n], dict)}


def _read_ops(given: Any, problems: list[Problem]) -> dict[str, OpSpec]:
    if not isinstance(given, dict) or not given:
        message = "a pipeline has at least one operator" if given == {} else f"ops is an object, this is {describe_value(given)}"
        problems.append(Problem("ops", message, "write ops: { tasks: gyre.op('read_tasks') { args: {…} } }"))
        return {}
    read = {name: _read_op(name, value, problems) for name, value in given.items()}
    return {name: spec for name, spec in read.items() if spec is not None}


def _read_op(name: str, given: Any, problems: list[Problem]) -> OpSpec | None:
    path = f"ops.{name}"
    if "." in name or not name:
        message = "an operator's name has no dot in it" if name else "an operator has a name"
        problems.append(Problem(path, message, "use letters, digits and '_'"))
        return None
    if not isinstance(given, dict) or not isinstance(given.get("op"), str):
        found = describe_value(given) if not isinstance(given, dict) else "an object without the text 'op'"
        message = f"an entry of ops is an operator, this is {found}"
        problems.append(Problem(path, message, f"write {name}: gyre.op('NAME') {{ from: {{…}}, args: {{…}} }}"))
        return None
    problems.extend(unknown_keys(path, given, OPERATOR_KEYS, what="an operator has"))
    args, sources = given.get("args", {}), given.get("from", {})
    if not isinstance(args, dict):
        problems.append(Problem(f"{path}.args", f"args is an object, this is {describe_value(args)}", "write args: { setting: value }"))
        args = {}
    if not isinstance(sources, dict):
        message = f"from is an object, this is {describe_value(sources)}"
        problems.append(Problem(f"{path}.from", message, "write from: { port: 'operator' }"))
        sources = {}
    read = {port: _read_source(f"{path}.from.{port}", value, problems) for port, value in sources.items()}
    return OpSpec(name=name, operator=given["op"], sources=read, args=args)


def _read_source(path: str, given: Any, problems: list[Problem]) -> Source | None:
    is_feedback = isinstance(given, dict) and set(given) == {"feedback"}
    text = given["feedback"] if is_feedback else given
    if not isinstance(text, str) or not all(text.split(".")) or text.count(".") > 1:
        message = f"a port is fed from 'operator' or 'operator.port', this is {describe_value(text)}"
        problems.append(Problem(path, message, "write e.g. 'rollout', 'train.versions' or gyre.feedback('train.versions')"))
        return None
    node, _, port = text.partition(".")
    return Source(node=node, port=port or None, is_feedback=is_feedback)
