"""Body fields that every wire has under its own name: read the same way, refused in the same words."""

from __future__ import annotations

import json
from typing import Any

from gyre.rollout.wires.neutral import bad_request

to_json = json.JSONEncoder(ensure_ascii=False).encode
"""Writes what a client sent parsed; `json.dumps` would make an encoder for each of a history's hundreds of calls."""


def read_max_tokens(value: Any, name: str) -> int | None:
    """Most output tokens; None where the client does not say.

    Raises:
        WireError: it is no number of tokens.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise bad_request(f"{name} must be a whole number of at least 1", param=name)
    return value


def read_stop(value: Any, name: str) -> tuple[str, ...]:
    """Strings that end an answer.

    Raises:
        WireError: they are not strings, or hold half a character, which no text does.
    """
    listed = [] if value is None else value
    if not isinstance(listed, list) or not all(isinstance(text, str) and _is_whole(text) for text in listed):
        raise bad_request(f"{name} must be a list of strings", param=name)
    return tuple(text for text in listed if text)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
