"""Log-probabilities of recorded tokens under a checkpoint's weights, by the trainer's own forward pass.

`gyre verify` compares them with the behaviour log-probabilities in the store: what the engine said it sampled with, against what the
trainer computes for the same token in the same context. Trajectories are packed into rows, each is read only as far as its last asked
position, and a position is asked once however many paths share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gyre.errors import UserError
from gyre.training.learner import MegatronLearner

ROW_TOKENS = 4096
"""Tokens per packed row: long enough to amortise a forward pass, short enough for its activations to stay in cache."""


def recompute_logprobs(
    model_dir: Path,
    trajectories: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]],
    temperature: float,
) -> list[np.ndarray]:
    """Compute the log-probability of asked tokens at the sampling temperature.

    Args:
        model_dir: Hugging Face folder of the weights.
        trajectories: pairs of all input ids and the positions t whose token's log-probability is asked (t >= 1).
        temperature: sampling temperature of the run.

    Returns:
        One float32 array per trajectory, one value per asked position.

    Raises:
        UserError: a position is 0 (no context) or past the end.
    """
    learner = MegatronLearner(Path(model_dir), temperature=temperature, role="satellite")
    asked = [np.asarray(positions, dtype=np.int64) for _, positions in trajectories]
    for index, ((ids, _), positions) in enumerate(zip(trajectories, asked, strict=True)):
        if positions.size and (positions.min() < 1 or positions.max() >= len(ids)):
            raise UserError(f"trajectory {index}: positions must lie between 1 and {len(ids) - 1}")
    results = [np.zeros(positions.size, dtype=np.float32) for positions in asked]
    # Only what lies before the last asked position is context of anything.
    lengths = [int(positions.max()) + 1 if positions.size else 0 for positions in asked]
    for row in _rows(lengths):
        ids = np.concatenate([np.asarray(trajectories[i][0], dtype=np.int64)[: lengths[i]] for i in row])
        bounds = np.cumsum([0, *(lengths[i] for i in row)])
        positions = np.concatenate([asked[i] + start for i, start in zip(row, bounds[:-1], strict=True)])
        values = learner.logprobs_at(ids, bounds, positions)
        for i, piece in zip(row, np.split(values, np.cumsum([asked[i].size for i in row])[:-1]), strict=True):
            results[i][:] = piece
    return results


def _rows(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of the trajectories of each row, in order; one that is longer than a row stands alone."""
    rows: list[list[int]] = []
    filled = ROW_TOKENS
    for index, length in enumerate(lengths):
        if not length:
            continue
        if filled + length > ROW_TOKENS:
            rows.append([])
            filled = 0
        rows[-1].append(index)
        filled += length
    return rows
