"""Hints of error messages: what the user probably meant, and what may stand in a place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES_LISTED = 14
"""Names that a hint lists before it stops, so that one problem stays one readable line."""


def list_names(names: Iterable[str]) -> str:
    """Join names for a sentence: `a, b, c`."""
    ordered = list(names)
    shown = ", ".join(ordered[:MOST_NAMES_LISTED])
    return shown if len(ordered) <= MOST_NAMES_LISTED else f"{shown}, … ({len(ordered)} in all)"


def suggest(wrong: str, known: Iterable[str], *, what: str) -> str:
    """Build the hint for a name nobody knows: the closest known one, else the list of all."""
    ordered = sorted(known)
    close = difflib.get_close_matches(wrong, ordered, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"{what}: {list_names(ordered)}" if ordered else f"{what}: none"
