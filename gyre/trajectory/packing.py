"""Packing: trajectories of ready groups into rows under a token cap, the micro-steps that cells claim (paper §4.4, §5.3).

First-fit decreasing: no empty row, and a trajectory over the cap stands alone. The trajectories of one execution stay in one row
where they fit, so that its ratio is computed there. Where they do not, its segments say `whole = False` and rows of kind
'ratio' with the same segments come first: forward-only, they give the sums from which the execution's ratio is fixed before any
of its gradient rows is claimed. Trajectories that cannot move a weight (advantage 0, no target) are left out.

Fed by `tree_select` through `pack`, eaten by the claim queue and the learner.
"""

# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (pyarrow has no type stubs)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gyre.records import load_schema
from gyre.trajectory.columns import list_column, list_values


def pack_lengths(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Put items into bins of at most `cap`, first-fit decreasing; an item longer than `cap` gets a bin of its own.

    Returns the item numbers of each bin. Every item is in exactly one bin and no bin is empty.

    Raises:
        ValueError: a length or the cap is not positive.
    """
    if cap < 1 or any(length < 1 for length in lengths):
        raise ValueError(f"packing needs a cap and lengths of at least one token, got cap {cap}, lengths {list(lengths)}")
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((i for i, free in enumerate(room) if lengths[item] <= free), None)
        if place is None:
            bins.append([item])
            room.append(max(cap - lengths[item], 0))
        else:
            bins[place].append(item)
            room[place] -= lengths[item]
    return bins


class _Trajectory(NamedTuple):
    """What packing needs of one row of `trajectory.v1`."""

    execution_id: str
    trajectory_id: str
    advantage: float
    execution_targets: int
    input_ids: NDArray[np.int32]
    target_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]


def build_microsteps(trajectories: pa.Table, *, max_tokens: int, prefix: str) -> pa.Table:
    """Pack rows of `trajectory.v1` into rows of `microstep.v1`; ratio rows first, in an order that depends on the input only.

    `prefix` makes the ids unique in the run: `PREFIX/r000` for ratio rows, `PREFIX/000` for gradient rows.

    Raises:
        ValueError: an execution's trajectories are not all there; they must be packed together.
    """
    items = _by_execution(_read(trajectories))
    units: list[list[_Trajectory]] = []
    spanning: list[_Trajectory] = []
    for parts in items.values():
        if sum(len(part.input_ids) for part in parts) <= max_tokens or len(parts) == 1:
            units.append(parts)
        else:
            units += [[part] for part in parts]
            spanning += parts
    split = {part.execution_id for part in spanning}
    gradient = [[part for unit in row for part in unit] for row in _pack_units(units, max_tokens)]
    ratio = [[part for unit in row for part in unit] for row in _pack_units([[part] for part in spanning], max_tokens)]
    ids = [f"{prefix}/r{i:03d}" for i in range(len(ratio))] + [f"{prefix}/{i:03d}" for i in range(len(gradient))]
    kinds = ["ratio"] * len(ratio) + ["gradient"] * len(gradient)
    return _microstep_table(ids, kinds, ratio + gradient, split)


def _read(trajectories: pa.Table) -> list[_Trajectory]:
    scalars = trajectories.select(["execution_id", "trajectory_id", "advantage", "execution_targets"]).to_pylist()
    arrays = [list_values(trajectories, name) for name in ("input_ids", "target_mask", "behavior_logprobs")]
    return [
        _Trajectory(**row, input_ids=input_ids, target_mask=mask.astype(np.bool_), logprobs=logprobs)
        for row, input_ids, mask, logprobs in zip(scalars, *arrays, strict=True)
    ]


def _by_execution(items: Sequence[_Trajectory]) -> dict[str, list[_Trajectory]]:
    """Trajectories that train, by execution, in the order they came."""
    executions: dict[str, list[_Trajectory]] = {}
    for item in items:
        if item.advantage != 0.0 and item.target_mask.any():
            executions.setdefault(item.execution_id, []).append(item)
    for execution_id, parts in executions.items():
        found, expected = sum(int(part.target_mask.sum()) for part in parts), parts[0].execution_targets
        if found != expected:
            raise ValueError(
                f"execution {execution_id}: {found} of its {expected} targets are here; "
                "all trajectories of an execution must be packed together"
            )
    return executions


def _pack_units(units: Sequence[list[_Trajectory]], max_tokens: int) -> list[list[list[_Trajectory]]]:
    lengths = [sum(len(part.input_ids) for part in unit) for unit in units]
    return [[units[i] for i in sorted(row)] for row in pack_lengths(lengths, max_tokens)]


def _microstep_table(ids: list[str], kinds: list[str], rows: list[list[_Trajectory]], split: set[str]) -> pa.Table:
    """Lay the segments of each row end to end."""
    inputs = [np.concatenate([part.input_ids for part in row]) for row in rows]
    masks = [np.concatenate([part.target_mask for part in row]) for row in rows]
    logprobs = [np.where(mask, np.concatenate([part.logprobs for part in row]), 0) for row, mask in zip(rows, masks, strict=True)]
    ends = [np.cumsum([0, *(len(part.input_ids) for part in row)], dtype=np.int32) for row in rows]
    segments = [
        [
            {
                "execution_id": part.execution_id,
                "trajectory_id": part.trajectory_id,
                "advantage": part.advantage,
                "execution_targets": part.execution_targets,
                "whole": part.execution_id not in split,
            }
            for part in row
        ]
        for row in rows
    ]
    columns: dict[str, Any] = {
        "microstep_id": ids,
        "kind": kinds,
        "input_ids": list_column(inputs, pa.int32()),
        "cu_seqlens": list_column(ends, pa.int32()),
        "target_mask": list_column(masks, pa.bool_()),
        "behavior_logprobs": list_column(logprobs, pa.float32()),
        "segments": segments,
    }
    schema = load_schema("microstep.v1")
    return pa.table([pa.array(columns[name], type=schema.field(name).type) for name in schema.names], schema=schema)
