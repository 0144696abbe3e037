"""Random executions and their packing into rows, independent of `gyre.trajectory.packing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from training_models import VOCAB

from gyre.records import Batch, Trajectory
from gyre.training.learner import MegatronLearner


@dataclass(kw_only=True)
class Path:
    """One trajectory of a made-up execution."""

    execution_id: str
    advantage: float
    input_ids: np.ndarray
    target_mask: np.ndarray
    behavior: np.ndarray
    execution_targets: int = 0


def make_paths(learner: MegatronLearner, *, num_executions: int, seed: int, drift: float = 0.05, longest: int = 24) -> list[Path]:
    """Executions of one to three trajectories; behaviour log-probabilities lie a random drift beside the policy's."""
    rng = np.random.default_rng(seed)
    paths: list[Path] = []
    for number in range(num_executions):
        advantage = float(rng.normal())
        shift = float(rng.choice([-1, 1]) * rng.uniform(0.01, 0.03))
        own: list[Path] = []
        for _ in range(int(rng.integers(1, 4))):
            length = int(rng.integers(3, longest))
            ids = rng.integers(0, VOCAB, length)
            mask = rng.random(length) < 0.5
            mask[0], mask[-1] = False, True
            logp = learner.logprobs(ids, [0, length])
            noise = rng.normal(0, drift, length)
            # Centred noise plus a clear shift keeps every execution ratio away from the clip's bounds.
            noise[mask] += -noise[mask].mean() + shift
            behavior = np.where(mask, logp - noise, 0).astype(np.float32)
            own.append(Path(execution_id=f"e{number}", advantage=advantage, input_ids=ids, target_mask=mask, behavior=behavior))
        total = sum(int(p.target_mask.sum()) for p in own)
        for path in own:
            path.execution_targets = total
        paths.extend(own)
    return paths


def pack(paths: list[Path], bins: list[list[int]]) -> list[dict[str, Any]]:
    """`microstep.v1` rows with the paths of each bin."""
    rows_of: dict[str, set[int]] = {}
    for number, members in enumerate(bins):
        for index in members:
            rows_of.setdefault(paths[index].execution_id, set()).add(number)
    return [
        {
            "microstep_id": f"m{number}",
            "kind": "gradient",
            "input_ids": np.concatenate([paths[i].input_ids for i in members]),
            "cu_seqlens": np.cumsum([0, *(paths[i].input_ids.size for i in members)]),
            "target_mask": np.concatenate([paths[i].target_mask for i in members]),
            "behavior_logprobs": np.concatenate([paths[i].behavior for i in members]),
            "segments": [
                {
                    "execution_id": paths[i].execution_id,
                    "trajectory_id": f"{paths[i].execution_id}/{i}",
                    "advantage": paths[i].advantage,
                    "execution_targets": paths[i].execution_targets,
                    "whole": len(rows_of[paths[i].execution_id]) == 1,
                }
                for i in members
            ],
        }
        for number, members in enumerate(bins)
    ]


def trajectory_table(paths: list[Path]) -> pa.Table:
    """The paths as `trajectory.v1`."""
    return Batch.of(
        Trajectory,
        [
            {
                "execution_id": path.execution_id,
                "group_id": "g000000",
                "attempt": 1,
                "trajectory_id": f"{path.execution_id}/{number}",
                "leaf_node_id": number,
                "role": "main",
                "input_ids": path.input_ids.tolist(),
                "target_mask": path.target_mask.tolist(),
                "behavior_logprobs": [
                    float(value) if is_target else None for value, is_target in zip(path.behavior, path.target_mask, strict=True)
                ],
                "advantage": path.advantage,
                "execution_targets": path.execution_targets,
                "num_trajectories": sum(other.execution_id == path.execution_id for other in paths),
                "weight_versions": [],
            }
            for number, path in enumerate(paths)
        ],
    ).table
