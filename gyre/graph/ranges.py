"""Ranges of numbers: what a setting of a built-in operator or of a resource may be, checked before anything starts.

A type admits numbers that a run cannot work with: no worker never scores, a negative seed cannot be drawn from, a learning rate below
zero unlearns. Each has its own path here; what concerns several settings at once is `dispatching.py`'s and `loop.py`'s.

Fed by `dispatching.py` and `resources.py` with checked values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gyre.errors import Problem

LARGEST_GROUP = 100
"""Executions of a group have two digits in their ids."""


class Range(NamedTuple):
    """Range of a number; None: no bound."""

    least: float | None
    most: float | None = None
    is_open: bool = False
    """True: the least value itself is not allowed."""


ABOVE_0 = Range(0, is_open=True)
SEED = Range(0)
OPERATOR_RANGES: Mapping[str, Mapping[str, Range]] = {
    "dispatch": {
        "phi": Range(0),
        "mu": Range(1),
        "groups_per_step": Range(1),
        "group_size": Range(1, LARGEST_GROUP),
        "steps": Range(1),
        "seed": SEED,
        "oversample": Range(0, LARGEST_GROUP - 1),
    },
    "elastic": {"rho_min": Range(0, 1, is_open=True), "hold_s": Range(0), "train_cells": Range(1)},
    "read_tasks": {"limit": Range(1)},
    "harness_proxy": {"temperature": Range(0), "context_limit": Range(1), "max_new_tokens": Range(1), "seed": SEED},
    "evaluate": {"budget_s": Range(0), "max_tries": Range(1), "workers": Range(1)},
    "tree_select": {"j_max": Range(1), "seed": SEED},
    "pack": {"max_tokens": Range(1)},
    "train_cell": {"token_weight_cap": ABOVE_0, "clip_low": Range(0, 1), "clip_high": Range(1)},
}
"""Ranges of settings of built-in operators."""
RESOURCE_RANGES: Mapping[str, Mapping[str, Range]] = {
    "cells": {"cpus_per_rank": Range(0)},
    "engine": {"threads": Range(1)},
    "learner": {"lr": Range(0), "eps": Range(0), "weight_decay": Range(0), "clip_norm": Range(0), "threads": Range(1)},
    "weights": {"timeout_s": ABOVE_0},
    "store": {"keep_checkpoints": Range(1)},
}
"""Ranges of settings of resources; what several of them must fulfil together is in `resources.py`."""


def check_ranges(path: str, values: Mapping[str, Any], ranges: Mapping[str, Range]) -> Iterator[Problem]:
    """Name every value that is out of its range; one that is absent or null has none.

    >>> [problem.hint for problem in check_ranges("ops.pack.args", {"max_tokens": 0}, OPERATOR_RANGES["pack"])]
    ['give a number that is 1 or more']
    """
    for name, (least, most, is_open) in ranges.items():
        value = values.get(name)
        if value is None or isinstance(value, bool):
            continue
        is_low = least is not None and (value <= least if is_open else value < least)
        if is_low or (most is not None and value > most):
            low = f"above {least:g}" if is_open else f"{least:g} or more" if most is None else f"at least {least:g}"
            words = low if most is None else f"{low} and at most {most:g}"
            yield Problem(f"{path}.{name}", f"{value} is out of range", f"give a number that is {words}")
