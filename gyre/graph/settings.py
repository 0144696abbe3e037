"""Settings: the JSON values of a pipeline, checked and turned into what a Python signature asks for.

typeguard decides whether a value fits an annotation. Before that, JSON's few shapes are turned into Python's: a list becomes a tuple
where a tuple is asked for, a text a path (relative to the pipeline's file), an object a settings dataclass with its unknown keys
refused. A truth value is never taken for a number.

Fed by `typed.py` with an operator's or a resource's arguments; the result is what the operator is called with.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from gyre.errors import Problem
from gyre.graph.hints import list_names, suggest
from gyre.graph.spec import describe_value


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()
"""Default of a setting that has none."""


class Setting(NamedTuple):
    """One setting of an operator or a resource."""

    annotation: Any
    """Its type."""
    default: Any
    """Its default, or REQUIRED."""


class Bound(NamedTuple):
    """Checked settings."""

    values: dict[str, Any]
    """Every setting with its value, defaults filled in; one that is wrong is left out."""
    problems: list[Problem]
    """What is wrong, each at its own path."""


def settings_of(dataclass_type: type) -> dict[str, Setting]:
    """Read the settings that a dataclass declares as its fields."""
    hints = get_type_hints(dataclass_type)
    declared: dict[str, Setting] = {}
    for field in dataclasses.fields(dataclass_type):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        declared[field.name] = Setting(hints[field.name], REQUIRED if default is dataclasses.MISSING else default)
    return declared


def bind_settings(path: str, given: Mapping[str, Any], declared: Mapping[str, Setting], *, base_dir: Path, owner: str) -> Bound:
    """Check given values against declared settings and fill in defaults.

    Args:
        path: where the values stand in the user's object.
        given: the values as written.
        declared: what may be given.
        base_dir: folder that relative paths start from.
        owner: who declares them, for sentences, e.g. `operator 'pack'`.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in given.items():
        if name not in declared:
            hint = suggest(name, declared, what="its settings are")
            problems.append(Problem(f"{path}.{name}", f"{owner} has no setting '{name}'", hint))
            continue
        converted = convert(f"{path}.{name}", value, declared[name].annotation, base_dir=base_dir, problems=problems)
        if converted is not REQUIRED:
            values[name] = converted
    for name, setting in declared.items():
        if name in given:
            continue
        if setting.default is REQUIRED:
            hint = f"add {name}: {describe_type(setting.annotation)}"
            problems.append(Problem(f"{path}.{name}", f"{owner} needs the setting '{name}'", hint))
        else:
            values[name] = setting.default
    return Bound(values, problems)


def convert(path: str, value: Any, annotation: Any, *, base_dir: Path, problems: list[Problem]) -> Any:
    """Turn a JSON value into what an annotation asks for; REQUIRED where it does not fit, which adds to `problems`."""
    if isinstance(value, dict):
        for member in _members(annotation):
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                return _convert_object(path, value, member, base_dir=base_dir, problems=problems)
    shaped = _shape(value, annotation, base_dir=base_dir)
    if fits(shaped, annotation):
        return shaped
    message = f"must be {describe_type(annotation)}, this is {describe_value(value)}"
    problems.append(Problem(path, message, _hint_for_value(value, annotation)))
    return REQUIRED


def fits(value: Any, annotation: Any) -> bool:
    """Tell whether a value is of a type, all items of a collection looked at."""
    import typeguard  # 0.2 s: only commands that check a pipeline pay for it

    if _has_misplaced_bool(value, annotation):
        return False
    try:
        typeguard.check_type(value, annotation, collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS)
    except typeguard.TypeCheckError:
        return False
    return True


def describe_type(annotation: Any) -> str:
    """Describe an annotation in words: `a whole number`, `one of 'gspo', 'ppo'`."""
    words = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        Path: "a path",
        type(None): "null",
        Any: "any value",
    }
    if annotation in words:
        return words[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(repr(a) for a in args)}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(member) for member in args)
    if origin in (list, tuple) or _is_named(origin, "Sequence"):
        items = [a for a in args if a is not Ellipsis]
        kinds = list(dict.fromkeys(describe_type(item) for item in items)) or ["any values"]
        length = f" of {len(items)}" if origin is tuple and Ellipsis not in args else ""
        return f"a list{length} ({', '.join(kinds)})"
    if origin is dict or annotation is dict or _is_named(origin, "Mapping") or dataclasses.is_dataclass(annotation):
        return "an object"
    return getattr(annotation, "__name__", str(annotation))


def _convert_object(path: str, value: dict[str, Any], target: type, *, base_dir: Path, problems: list[Problem]) -> Any:
    bound = bind_settings(path, value, settings_of(target), base_dir=base_dir, owner=f"'{path.rpartition('.')[2]}'")
    problems.extend(bound.problems)
    return REQUIRED if bound.problems else target(**bound.values)


def _shape(value: Any, annotation: Any, *, base_dir: Path) -> Any:
    """Apply JSON's missing distinctions: text or path, list or tuple, whole number or number."""
    members = _members(annotation)
    if isinstance(value, str) and Path in members and str not in members:
        return (base_dir / value).resolve()
    for member in members:
        items = get_args(member)
        if isinstance(value, list) and get_origin(member) is tuple and items:
            kinds = [items[0]] * len(value) if len(items) == 2 and items[1] is Ellipsis else list(items)
            if len(kinds) == len(value):
                return tuple(_shape(v, kind, base_dir=base_dir) for v, kind in zip(value, kinds, strict=True))
        if isinstance(value, list) and get_origin(member) is list:
            return [_shape(v, items[0], base_dir=base_dir) for v in value]
    if isinstance(value, int) and not isinstance(value, bool) and float in members and int not in members:
        return float(value)
    return value


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _has_misplaced_bool(value: Any, annotation: Any) -> bool:
    """Tell whether a truth value stands where only a number may: Python calls `True` an int, a user does not."""
    members = _members(annotation)
    if isinstance(value, bool):
        return any(m in (int, float) for m in members) and bool not in members
    if isinstance(value, list | tuple):
        kinds = [kind for m in members for kind in get_args(m) if kind is not Ellipsis]
        return any(_has_misplaced_bool(item, kind) for item in value for kind in kinds)
    return False


def _hint_for_value(value: Any, annotation: Any) -> str:
    for member in _members(annotation):
        if get_origin(member) is Literal and isinstance(value, str):
            return suggest(value, [a for a in get_args(member) if isinstance(a, str)], what="it may be")
    if isinstance(value, str) and {int, float} & set(_members(annotation)):
        return "write the number without quotes"
    if isinstance(value, str) and bool in _members(annotation):
        return "write true or false without quotes"
    return f"give {describe_type(annotation)}"


def _is_named(origin: Any, name: str) -> bool:
    return getattr(origin, "__name__", "") == name


def plain(value: Any) -> Any:
    """Turn a setting's value into JSON data again, e.g. for a plan."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def known_settings(declared: Mapping[str, Setting]) -> str:
    """List settings for a sentence."""
    return list_names(declared)
