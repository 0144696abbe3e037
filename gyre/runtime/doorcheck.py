"""The check at an operator's door: a batch's Arrow schema against the record its port declares, never its rows.

Registered with typeguard, so that `check_type(value, Batch[Task])` means what it says here and in a user's own tests.
"""

from __future__ import annotations

from typing import Any, get_args

import typeguard

from gyre.records import Batch, Record


def register_batch_checker() -> None:
    """Teach typeguard what a `Batch[R]` is. Registering twice changes nothing."""
    if _lookup not in typeguard.checker_lookup_functions:
        typeguard.checker_lookup_functions.append(_lookup)


def check_batch(batch: Any, record: type[Record]) -> None:
    """Raise typeguard's error, naming every field that differs, unless `batch` holds records of this kind."""
    typeguard.check_type(batch, Batch[record])


def _lookup(origin_type: Any, args: tuple[Any, ...], extras: tuple[Any, ...]) -> Any:
    return _check if origin_type is Batch else None


def _check(value: Any, origin_type: Any, args: tuple[Any, ...], memo: Any) -> None:
    if not isinstance(value, Batch):
        raise typeguard.TypeCheckError(f"is a {type(value).__name__}, not a Batch")
    record = next((a for a in args or get_args(origin_type) if isinstance(a, type) and issubclass(a, Record)), None)
    if record is None:
        return
    differences = schema_differences(value.table.schema, record)
    if differences:
        raise typeguard.TypeCheckError(f"does not hold {record.schema_name}: {'; '.join(differences)}")


def schema_differences(schema: Any, record: type[Record]) -> list[str]:
    """Every field of `record` that `schema` lacks or types otherwise, as sentences."""
    found = []
    for field in record.schema():
        index = schema.get_field_index(field.name)
        if index < 0:
            found.append(f"{field.name} is missing")
        elif schema.field(index).type != field.type:
            found.append(f"{field.name} is {schema.field(index).type}, not {field.type}")
        elif schema.field(index).nullable and not field.nullable:
            found.append(f"{field.name} may be null")
    return found
