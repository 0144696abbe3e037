"""Rows of `microstep.v1` as tensors: what the learner reads of a packed row.

A row comes as one dictionary of lists or arrays by column name, as Arrow gives it; a mistake in it is a ValueError that names the
micro-step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gyre.training.objective import Segment

MicroStepRow = Mapping[str, Any]
"""One row of `microstep.v1`: lists or arrays by column name."""
TokenIds = Sequence[int] | np.ndarray
"""Integers: token ids or positions."""


class PackedRow:
    """A packed row on the device: T tokens, N targets."""

    __slots__ = ("behavior_logp_N", "cu_seqlens", "ids_T", "positions_N", "segments")

    def __init__(self, row: MicroStepRow, device: str) -> None:
        """Decode a row.

        Raises:
            ValueError: a trajectory's first token is a target: it has no context to be predicted from.
        """
        mask_T = np.asarray(row["target_mask"], dtype=bool)
        bounds = np.asarray(row["cu_seqlens"], dtype=np.int64)
        if mask_T[bounds[:-1]].any():
            raise ValueError(f"micro-step {row['microstep_id']}: a trajectory's first token is a target, and it has no context")
        self.ids_T = long_tensor(row["input_ids"], device)
        self.cu_seqlens = long_tensor(bounds, device)
        self.positions_N = torch.from_numpy(np.flatnonzero(mask_T)).to(device)
        behavior_N = np.asarray(row["behavior_logprobs"], dtype=np.float32)[mask_T]
        self.behavior_logp_N = torch.from_numpy(behavior_N).to(device)
        self.segments = [
            Segment(
                execution_id=segment["execution_id"],
                advantage=float(segment["advantage"]),
                execution_targets=int(segment["execution_targets"]),
                whole=bool(segment["whole"]),
                num_targets=int(mask_T[start:end].sum()),
            )
            for segment, (start, end) in zip(row["segments"], pairwise(bounds.tolist()), strict=True)
        ]


def long_tensor(values: TokenIds, device: str) -> Tensor:
    """Integers as an int64 tensor on the device."""
    return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)
