"""Trajectories as spans: the leaf and the ranges of targets, instead of every token again (for large runs).

With `resources.store.trajectories: 'spans'` a run appends to `trajectory_spans`; the tokens and log-probabilities are in `calls` already.
Whoever reads `trajectories` gets whole rows either way, since `expand_spans` puts them together along the path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gyre.store.columns import table_schema
from gyre.trajectory.columns import list_column, list_values

SPANS_TABLE = "trajectory_spans"
PIECE_ROWS = 1000
"""Rows that are expanded into one list column, whose offsets count to 2^31: a path may have a million tokens."""
_SHARED = ("execution_id", "attempt", "trajectory_id", "leaf_node_id", "role", "advantage", "group_id", "step_version")


class _Call(NamedTuple):
    parent_node_id: int | None
    tokens: np.ndarray
    logprobs: np.ndarray
    """One per token; NaN where it was supplied."""


def to_spans(trajectories: pa.Table) -> pa.Table:
    """Keep of each trajectory its leaf and the ranges of its targets."""
    masks = list_values(trajectories, "target_mask")
    schema = table_schema(SPANS_TABLE)
    columns = {name: trajectories.column(name) for name in _SHARED} | {"target_spans": [find_ranges(mask) for mask in masks]}
    return pa.table(
        [pa.chunked_array(columns[n]) if n in _SHARED else pa.array(columns[n], schema.field(n).type) for n in schema.names], schema
    )


def find_ranges(mask: np.ndarray) -> list[dict[str, int]]:
    """The half-open ranges in which a mask is true.

    >>> find_ranges(np.array([False, True, True, False, True]))
    [{'start': 1, 'end': 3}, {'start': 4, 'end': 5}]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask.astype(np.bool_), [False]])))
    return [{"start": int(start), "end": int(end)} for start, end in edges.reshape(-1, 2)]


def expand_spans(spans: pa.Table, calls: pa.Table) -> pa.Table:
    """Whole rows of `trajectories`; one whose path is not in `calls` has no tokens."""
    trees = _trees(calls)
    starts = range(0, max(spans.num_rows, 1), PIECE_ROWS)
    return pa.concat_tables([_expand_piece(spans.slice(start, PIECE_ROWS), trees) for start in starts])


def _expand_piece(spans: pa.Table, trees: Mapping[tuple[str, int], Mapping[int, _Call]]) -> pa.Table:
    ids, masks, logprobs = [], [], []
    for row in spans.select(["execution_id", "attempt", "leaf_node_id", "target_spans"]).to_pylist():
        path = _path(trees.get((row["execution_id"], row["attempt"]), {}), row["leaf_node_id"])
        tokens = np.concatenate([np.empty(0, np.int32), *(call.tokens for call in path)])
        mask = np.zeros(len(tokens), np.bool_)
        for span in row["target_spans"]:
            mask[span["start"] : span["end"]] = True
        ids.append(tokens)
        masks.append(mask)
        logprobs.append(np.concatenate([np.empty(0, np.float32), *(call.logprobs for call in path)]))
    schema = table_schema("trajectories")
    lists = {
        "input_ids": list_column(ids, pa.int32()),
        "target_mask": list_column(masks, pa.bool_()),
        "behavior_logprobs": list_column(logprobs, pa.float32(), valid=masks or None),
    }
    return pa.table([lists[name] if name in lists else spans.column(name) for name in schema.names], schema=schema)


def _trees(calls: pa.Table) -> Mapping[tuple[str, int], dict[int, _Call]]:
    trees: dict[tuple[str, int], dict[int, _Call]] = defaultdict(dict)
    rows = calls.select(["execution_id", "attempt", "node_id", "parent_node_id"]).to_pylist()
    lists = [list_values(calls, name) for name in ("input_ids", "output_ids", "output_logprobs")]
    for row, input_ids, output_ids, logprobs in zip(rows, *lists, strict=True):
        tokens = np.concatenate([input_ids, output_ids]).astype(np.int32)
        padded = np.full(len(tokens), np.nan, np.float32)
        padded[len(input_ids) : len(input_ids) + len(logprobs)] = logprobs[: len(output_ids)]
        trees[row["execution_id"], row["attempt"]][row["node_id"]] = _Call(row["parent_node_id"], tokens, padded)
    return trees


def _path(tree: Mapping[int, _Call], leaf_node_id: int) -> list[_Call]:
    path: list[_Call] = []
    node_id: int | None = leaf_node_id
    while node_id is not None:
        call = tree.get(node_id)
        if call is None or len(path) > len(tree):
            return []
        path.append(call)
        node_id = call.parent_node_id
    return path[::-1]
