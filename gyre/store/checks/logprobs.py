"""Recomputation of behaviour log-probabilities with the trainer's model, version by version (semantics.md, section 3).

Each target's span names the version it was sampled under, over its whole context; so its log-probability is recomputed with that
version's checkpoint. The forward pass is handed in: the store knows no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from gyre.errors import StoreError
from gyre.store.checks.data import Breach, RunData, TrajectoryRow
from gyre.store.checks.targets import find_path
from gyre.store.checks.trees import MIXED_VERSION

MEAN_LIMIT = 1e-3
"""Most mean absolute difference over all targets, in nats: another order of float32 sums stays far below it."""
TAIL_LIMIT = 2e-2
"""Most 99.9th percentile of the absolute difference, in nats."""
SINGLE_LIMIT = 0.2
"""Most difference of one target, in nats: ten times the tail's limit, so that one wrong row cannot hide in a large run."""
TAIL_PERCENTILE = 99.9


class Recompute(Protocol):
    """Log-probability of the tokens at `target_positions`, each given the tokens before it (gyre/training/recompute.py)."""

    def __call__(self, model_dir: Path, trajectories: Sequence[tuple[np.ndarray, np.ndarray]], temperature: float, /) -> list[np.ndarray]:
        """One array per trajectory, one value per asked position."""
        ...


class Asked(NamedTuple):
    """Targets of one trajectory under one version."""

    trajectory: TrajectoryRow
    positions: np.ndarray
    """Indices t into its tokens."""


class Comparison(NamedTuple):
    """What the recomputation found."""

    figures: dict[str, float]
    """Number of targets, mean and tail of the absolute differences."""
    breaches: list[Breach]
    notes: list[str]
    """What could not be compared, and why."""


def ask_by_version(data: RunData) -> dict[int, list[Asked]]:
    """Sort the targets of all trajectories by the version of the weights that sampled them."""
    asked: dict[int, list[Asked]] = defaultdict(list)
    for trajectory in data.committed:
        versions = target_versions(data, trajectory)
        targets = np.flatnonzero(trajectory.target_mask[: len(versions)])
        for version in np.unique(versions[targets]):
            asked[int(version)].append(Asked(trajectory, targets[versions[targets] == version]))
    return dict(asked)


def target_versions(data: RunData, trajectory: TrajectoryRow) -> np.ndarray:
    """Version of the weights at each token of a trajectory; MIXED_VERSION where none is known."""
    row = trajectory.row
    versions = np.full(len(trajectory.input_ids), MIXED_VERSION, np.int64)
    position = 0
    for node in find_path(data.trees.get((row["execution_id"], row["attempt"]), ()), row["leaf_node_id"]):
        position += len(node.input_ids)
        for span in node.row["weight_versions"]:
            versions[position + span["start"] : position + span["end"]] = span["version"]
        position += len(node.output_ids)
    return versions


def compare_logprobs(data: RunData, recompute: Recompute, *, most_per_version: int | None = None, seed: int = 0) -> Comparison:
    """Recompute the log-probabilities of all targets, or of `most_per_version` trajectories drawn per version."""
    asked = ask_by_version(data)
    rng = np.random.default_rng(seed)
    asked.pop(MIXED_VERSION, None)
    differences: list[np.ndarray] = []
    breaches: list[Breach] = []
    notes: list[str] = []
    for version, items in sorted(asked.items()):
        model_dir = data.run_dir / "checkpoints" / str(version) / "model"
        if not model_dir.is_dir():
            notes.append(f"version {version} has no checkpoint, so {len(items)} trajectories were not recomputed")
            continue
        chosen = _draw(items, most_per_version, rng)
        for item, values in zip(chosen, _ask(recompute, model_dir, chosen, data.settings.temperature), strict=True):
            difference = np.abs(values.astype(np.float64) - item.trajectory.logprobs[item.positions])
            differences.append(difference)
            breaches += _single(item, difference, version)
    figures = _figures(np.concatenate(differences) if differences else np.empty(0))
    return Comparison(figures, [*breaches, *_overall(figures)], notes)


def _draw(items: list[Asked], most: int | None, rng: np.random.Generator) -> list[Asked]:
    if most is None or len(items) <= most:
        return items
    return [items[i] for i in sorted(rng.choice(len(items), most, replace=False))]


def _ask(recompute: Recompute, model_dir: Path, items: list[Asked], temperature: float) -> list[np.ndarray]:
    results = recompute(model_dir, [(item.trajectory.input_ids, item.positions) for item in items], temperature)
    if [len(values) for values in results] != [len(item.positions) for item in items]:
        raise StoreError(f"{model_dir}: the recomputation gave another number of log-probabilities than was asked for")
    return [np.asarray(values) for values in results]


def _single(item: Asked, difference: np.ndarray, version: int) -> Iterator[Breach]:
    if len(difference) and not np.nanmax(np.where(np.isnan(difference), np.inf, difference)) <= SINGLE_LIMIT:
        worst = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
        yield Breach(
            "trajectories",
            item.trajectory.key,
            f"has a log-probability at token {item.positions[worst]} that is {difference[worst]:.3g} off what version {version} gives",
        )


def _figures(differences: np.ndarray) -> dict[str, float]:
    any_left = len(differences) > 0
    return {
        "recomputed_targets": len(differences),
        "logprob_abs_diff_mean": float(differences.mean()) if any_left else 0.0,
        "logprob_abs_diff_p999": float(np.percentile(differences, TAIL_PERCENTILE)) if any_left else 0.0,
        "logprob_abs_diff_max": float(differences.max()) if any_left else 0.0,
    }


def _overall(figures: dict[str, float]) -> Iterator[Breach]:
    mean, tail = figures["logprob_abs_diff_mean"], figures["logprob_abs_diff_p999"]
    if not mean <= MEAN_LIMIT:
        yield Breach("trajectories", "behavior_logprobs", f"differ by {mean:.3g} in the mean from the trainer's; {MEAN_LIMIT} is allowed")
    if not tail <= TAIL_LIMIT:
        yield Breach("trajectories", "behavior_logprobs", f"differ by {tail:.3g} at the 99.9th percentile; {TAIL_LIMIT} is allowed")
