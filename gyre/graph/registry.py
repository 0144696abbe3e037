"""Operators by name, and what their signatures declare.

A name is built in (`pack` → `gyre/ops/pack.py`), of an installed package (`my_scorers/coverage` → entry point group `gyre.ops`), or
`module:attr`. An entry point's name is `package/name`, or just `name`, then its package is the distribution's name (dashes as
underscores) or the top-level module it points into.

The signature is the declaration: `Batch[R]`/`Stream[R]` parameters are input ports (one with a default may stay open), keyword-only
parameters are settings, one annotated with a protocol is a resource; a class operator has settings and resources in `__init__`, ports
in `run`. The return annotation gives the outputs: one (its port is `out`, or what `@op(…, output='versions')` says), the fields of a
NamedTuple, or none. Nothing is called here and no heavy room is imported: an operator's module imports none at its top.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gyre.errors import UserError
from gyre.graph.hints import suggest
from gyre.graph.settings import REQUIRED, Setting
from gyre.records import Assessment, Batch, ClosedExecution, OperatorInfo, Record, Stream

ENTRY_POINT_GROUP = "gyre.ops"
RESOURCE_PROTOCOLS = ("Control", "Engines", "Pipeline", "Scorers", "Store", "Trees")
"""Resource protocols of `gyre.records` that the runtime can supply."""
SINGLE_OUTPUT = "out"
"""Port name of an operator's only output, unless it names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output of an operator."""

    record: type[Record]
    """What travels over it."""
    kind: Literal["batch", "stream"]
    """Whether the operator is called once per batch or once per run."""
    is_optional: bool = False
    """True for an input that may stay unconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator as its signature declares it."""

    name: str
    """The name it was found by."""
    doc: str
    """Its docstring."""
    inputs: Mapping[str, Port]
    """Input ports by parameter name."""
    outputs: Mapping[str, Port]
    """Output ports by name."""
    settings: Mapping[str, Setting]
    """What a pipeline may give in `args`."""
    resources: Mapping[str, str]
    """Parameter name to the name of the resource protocol."""
    state: str
    """How its state is kept: 'none' or 'store'."""
    target: Callable[..., Any]
    """The function or class itself."""

    @property
    def is_class(self) -> bool:
        """Whether the runtime makes one object of it and calls `run`."""
        return inspect.isclass(self.target)

    @property
    def target_path(self) -> str:
        """The target as `module:attr`, which another process imports."""
        return f"{self.target.__module__}:{self.target.__qualname__}"

    @property
    def check(self) -> Callable[[dict[str, Any], Path], Any] | None:
        """The operator's own look at its settings: `(settings, base_dir)` to problems with paths relative to `args`."""
        info: OperatorInfo = self.target.__gyre_op__  # pyright: ignore[reportFunctionMemberAccess]
        return info.extra.get("check") or getattr(self.target, "check", None)


def look_beside(base_dir: Path) -> None:
    """Find modules of operators in the folder of a pipeline's file, too, from now on and behind all others."""
    folder = str(base_dir.resolve())
    if folder not in sys.path:
        sys.path.append(folder)


def find_operator(name: str) -> Operator:
    """Look an operator up and read its signature.

    Raises:
        UserError: nobody has this name, or what has it is not a well declared operator.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise UserError(f"'{name}' is not of the form module:operator", hint="write e.g. 'my_ops:brevity'")
        return describe_operator(name, _import_attribute(module, attribute))
    if "/" in name:
        return describe_operator(name, _find_installed(name))
    if not name.isidentifier() or importlib.util.find_spec(f"gyre.ops.{name}") is None:
        raise UserError(f"there is no operator '{name}'", hint=suggest(name, list_operators(), what="operators are"))
    module = importlib.import_module(f"gyre.ops.{name}")
    return describe_operator(name, _marked(module, name))


def find_scorer(name: str) -> Operator:
    """Look up an operator that scores: one port of closed executions in, one of assessments out.

    Raises:
        UserError: nobody has this name, or what has it is no scorer.
    """
    operator = find_operator(name)
    inputs, outputs = ([port.record for port in ports.values()] for ports in (operator.inputs, operator.outputs))
    if inputs != [ClosedExecution] or outputs != [Assessment]:
        hint = "a scorer takes Batch[ClosedExecution] and returns Batch[Assessment]"
        raise UserError(f"operator '{name}' is not a scorer", hint=hint)
    return operator


def list_operators() -> list[str]:
    """List the names of all built-in and installed operators."""
    built_in = [path.stem for path in Path(__file__).parent.parent.joinpath("ops").glob("*.py") if not path.stem.startswith("_")]
    return [*sorted(n for n in built_in if _is_operator(n)), *sorted(_installed())]


def _is_operator(name: str) -> bool:
    """Tell whether a module of `gyre/ops` declares the operator it is named for; others are parts of operators."""
    module = importlib.import_module(f"gyre.ops.{name}")
    return any(_info(value, name) for value in vars(module).values())


def _info(value: Any, name: str) -> bool:
    info = getattr(value, "__gyre_op__", None)
    return isinstance(info, OperatorInfo) and info.name == name


def _marked(module: Any, name: str) -> Any:
    for value in vars(module).values():
        if _info(value, name):
            return value
    raise UserError(f"module {module.__name__} declares no operator '{name}'", hint=f"put @op('{name}') before it")


def _installed() -> dict[str, Any]:
    """Every entry point of the group, by each name it answers to."""
    from importlib.metadata import entry_points  # scans all installed distributions: only when a name asks for it

    found: dict[str, Any] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if "/" in entry.name:
            found[entry.name] = entry
            continue
        distribution = entry.dist.name.replace("-", "_") if entry.dist else ""
        for package in {distribution, entry.module.partition(".")[0]} - {""}:
            found[f"{package}/{entry.name}"] = entry
    return found


def _find_installed(name: str) -> Any:
    installed = _installed()
    if name not in installed:
        package = name.partition("/")[0]
        hint = suggest(name, installed, what="installed operators are")
        if not any(known.startswith(f"{package}/") for known in installed):
            hint = f"install the package that has it, with an entry point '{name}' of group '{ENTRY_POINT_GROUP}'"
        raise UserError(f"no installed package has the operator '{name}'", hint=hint)
    entry = installed[name]
    target = _import_attribute(entry.module, entry.attr or "")
    return _marked(target, name.rpartition("/")[2]) if inspect.ismodule(target) else target


def _import_attribute(module_name: str, attribute: str) -> Any:
    """Import an attribute of a module, or the module itself where the attribute is empty."""
    try:
        # What a module prints must not get into the one JSON document on stdout.
        with contextlib.redirect_stdout(sys.stderr):
            value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise UserError(f"importing {module_name} fails: {error}", hint=f"install what {module_name} needs") from None
        raise UserError(f"there is no module {module_name}", hint="install it, or put its folder on PYTHONPATH") from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script; here is the boundary that names it
        message = f"importing {module_name} fails: {type(error).__name__}: {error}"
        raise UserError(message, hint=f"python -c 'import {module_name}' shows where") from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(value, part):
            names = [n for n, v in vars(value).items() if hasattr(v, "__gyre_op__")]
            raise UserError(f"{module_name} has no '{attribute}'", hint=suggest(part, names, what="its operators are"))
        value = getattr(value, part)
    return value


def describe_operator(name: str, target: Any) -> Operator:
    """Read an operator's declaration from its signature.

    Raises:
        UserError: it lacks `@op`, or a part of its signature is not declared as the module docstring says.
    """
    info = getattr(target, "__gyre_op__", None)
    if not isinstance(info, OperatorInfo):
        raise UserError(f"'{name}' is not an operator", hint="put @op('name') from gyre.records before it")
    run = getattr(target, "run", target) if inspect.isclass(target) else target
    if inspect.isclass(target) and run is target:
        raise UserError(f"operator '{name}' is a class without run", hint="give it a method run(self, port: Batch[…])")
    run_hints, inputs = _hints(name, run), {}
    for parameter in _parameters(run):
        port = _read_port(run_hints.get(parameter.name))
        if port is not None:
            is_optional = parameter.default is not inspect.Parameter.empty
            inputs[parameter.name] = Port(record=port.record, kind=port.kind, is_optional=is_optional)
    settings, resources = _read_keywords(name, target if run is target else target.__init__, run_hints, inputs)
    outputs = _read_outputs(name, run_hints.get("return"), info)
    for port in (*inputs.values(), *outputs.values()):
        _require_schema(name, port.record)
    return Operator(
        name=name,
        doc=inspect.getdoc(target) or "",
        inputs=inputs,
        outputs=outputs,
        settings=settings,
        resources=resources,
        state=info.state,
        target=target,
    )


def _require_schema(name: str, record: type[Record]) -> None:
    try:
        record.schema()
    except (OSError, AttributeError):
        schema_name = getattr(record, "schema_name", "")
        hint = "use a record of gyre.records, or give the class a method schema() that returns its Arrow schema"
        raise UserError(f"operator '{name}': record {record.__name__} has no schema '{schema_name}'", hint=hint) from None


def _read_keywords(
    name: str, function: Any, run_hints: Mapping[str, Any], inputs: Mapping[str, Port]
) -> tuple[dict[str, Setting], dict[str, str]]:
    """Split the keyword-only parameters into settings and resources."""
    settings: dict[str, Setting] = {}
    resources: dict[str, str] = {}
    if function is object.__init__:
        return settings, resources
    hints = _hints(name, function)
    for parameter in _parameters(function):
        if parameter.name in inputs and _read_port(hints.get(parameter.name)) is not None:
            continue
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            hint = "annotate it with Batch[R] or Stream[R] to make it a port, or put it after '*' to make it a setting"
            raise UserError(f"operator '{name}': parameter '{parameter.name}' is neither port nor setting", hint=hint)
        if parameter.name not in hints:
            hint = f"annotate it, e.g. {parameter.name}: int"
            raise UserError(f"operator '{name}': setting '{parameter.name}' has no type", hint=hint)
        annotation = hints[parameter.name]
        protocol = _protocol(annotation)
        if protocol and protocol not in RESOURCE_PROTOCOLS:
            hint = suggest(protocol, RESOURCE_PROTOCOLS, what="resource protocols are")
            raise UserError(f"operator '{name}': nobody supplies the resource '{protocol}' of '{parameter.name}'", hint=hint)
        if protocol:
            resources[parameter.name] = protocol
        else:
            has_default = parameter.default is not inspect.Parameter.empty
            settings[parameter.name] = Setting(annotation, parameter.default if has_default else REQUIRED)
    return settings, resources


def _hints(name: str, function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError as error:
        hint = "import the name at the module's top, outside TYPE_CHECKING; annotations of ports and settings are read"
        raise UserError(f"operator '{name}': an annotation cannot be read: {error}", hint=hint) from None


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


def _without_none(annotation: Any) -> Any:
    members = [m for m in get_args(annotation) if m is not NoneType] if _is_union(annotation) else []
    return members[0] if len(members) == 1 else annotation


def _is_union(annotation: Any) -> bool:
    import types

    return get_origin(annotation) in (Union, types.UnionType)


def _protocol(annotation: Any) -> str:
    plain = _without_none(annotation)
    return plain.__name__ if inspect.isclass(plain) and getattr(plain, "_is_protocol", False) else ""


def _read_port(annotation: Any) -> Port | None:
    plain = _without_none(annotation)
    origin, args = get_origin(plain), get_args(plain)
    if origin not in (Batch, Stream) or not inspect.isclass(args[0]) or not issubclass(args[0], Record):
        return None
    return Port(record=args[0], kind="batch" if origin is Batch else "stream")


def _read_outputs(name: str, annotation: Any, info: OperatorInfo) -> dict[str, Port]:
    """Output ports of a return annotation: a port, a NamedTuple of ports, either of them over an async iterator, or None."""
    if annotation in (None, NoneType):
        return {}
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is not None and inspect.isclass(origin) and origin is not Stream:
        if issubclass(origin, AsyncIterator | AsyncIterable):
            return {p: Port(record=q.record, kind="stream") for p, q in _read_outputs(name, args[0], info).items()}
        if issubclass(origin, Coroutine | Awaitable):
            return _read_outputs(name, args[-1], info)
    single = _read_port(annotation)
    if single is not None:
        return {info.extra.get("output", SINGLE_OUTPUT): single}
    plain = _without_none(annotation)
    if inspect.isclass(plain) and hasattr(plain, "_fields"):
        ports = {field: _read_port(hint) for field, hint in _hints(name, plain).items()}
        if ports and all(ports.values()):
            return {field: port for field, port in ports.items() if port is not None}
    hint = "return Batch[R], Stream[R], a NamedTuple of them, or None"
    raise UserError(f"operator '{name}': its return annotation is no port", hint=hint)
