"""The accumulated gradient does not depend on how a batch is cut into rows, micro-steps and cells."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_rows import Path, make_paths, pack, trajectory_table

from gyre.training.learner import MegatronLearner
from gyre.training.objective import LogRatio, execution_mask
from gyre.trajectory.packing import build_microsteps

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def learner(tiny_model: FilePath) -> MegatronLearner:
    return MegatronLearner(tiny_model, role="satellite")


@pytest.fixture(scope="module")
def paths(learner: MegatronLearner) -> list[Path]:
    return make_paths(learner, num_executions=6, seed=3)


def fixed_masks(learner: MegatronLearner, rows: list[dict[str, Any]]) -> dict[str, int]:
    """What the coordinator does with ratio items: sum once per row, fix once per execution."""
    sums: dict[str, LogRatio] = {}
    advantages = {}
    for row in rows:
        spanning = {s["execution_id"]: s["advantage"] for s in row["segments"] if not s["whole"]}
        advantages.update(spanning)
        if not spanning:
            continue
        for execution_id, ratio in learner.ratio_item(row).items():
            if execution_id in spanning:
                before = sums.get(execution_id, LogRatio(0.0, 0))
                sums[execution_id] = LogRatio(before.total + ratio.total, before.num_targets + ratio.num_targets)
    return {i: execution_mask(advantages[i], ratio, learner.objective) for i, ratio in sums.items()}


def accumulate(learner: MegatronLearner, rows: list[dict[str, Any]], cells: list[int]) -> tuple[torch.Tensor, float, dict[str, int]]:
    """Train rows on the cells that claimed them, then add up the cells, as a reduction would."""
    masks = fixed_masks(learner, rows)
    cells = cells[: len(rows)]
    total, loss, seen = torch.zeros_like(learner.gradients()), 0.0, {}
    for cell in sorted(set(cells)):
        learner.zero_gradients()
        for row, owner in zip(rows, cells, strict=True):
            if owner == cell:
                result = learner.train_microstep(row, masks)
                loss += result.loss_sum
                seen.update(result.masks)
        total += learner.gradients()
    return total, loss, seen


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def whole_batch(learner: MegatronLearner, paths: list[Path]) -> tuple[torch.Tensor, float, dict[str, int]]:
    """The gradient a single cell makes of the whole batch in one row."""
    return accumulate(learner, pack(paths, [list(range(len(paths)))]), [0])


def test_data_stays_away_from_the_bounds(learner: MegatronLearner, paths: list[Path], whole_batch: Any):
    ratios = learner.ratio_item(pack(paths, [list(range(len(paths)))])[0])
    values = [np.exp(r.total / r.num_targets) for r in ratios.values()]
    assert all(min(abs(s - 0.995), abs(s - 1.005)) > 1e-4 for s in values)
    assert set(whole_batch[2].values()) == {0, 1}


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_gradient_is_invariant_under_any_split(learner: MegatronLearner, paths: list[Path], whole_batch: Any, data: st.DataObject):
    num_rows = data.draw(st.integers(1, len(paths)))
    places = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=len(paths), max_size=len(paths)))
    order = data.draw(st.permutations(range(len(paths))))
    bins = [b for b in ([i for i in order if places[i] == n] for n in range(num_rows)) if b]
    cells = data.draw(st.lists(st.integers(0, 2), min_size=len(bins), max_size=len(bins)))
    gradient, loss, masks = accumulate(learner, pack(paths, bins), cells)
    expected, expected_loss, expected_masks = whole_batch
    assert masks == expected_masks
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert distance(gradient, expected) <= 1e-5


@pytest.mark.parametrize("max_tokens", [8, 24, 40, 400])
def test_gradient_is_invariant_under_the_packing_cap(learner: MegatronLearner, paths: list[Path], whole_batch: Any, max_tokens: int):
    """The packing that runs use: ratio rows first, then gradient rows under any cap."""
    rows = build_microsteps(trajectory_table(paths), max_tokens=max_tokens, prefix="s1").to_pylist()
    gradient, _, masks = accumulate(learner, [r for r in rows if r["kind"] == "gradient"], [0] * len(rows))
    assert masks == whole_batch[2]
    assert distance(gradient, whole_batch[0]) <= 1e-5
    spanning = {s["execution_id"] for r in rows for s in r["segments"] if not s["whole"]}
    assert bool(spanning) == any(r["kind"] == "ratio" for r in rows) == (max_tokens < 40)


def one_by_one(paths: list[Path]) -> list[dict[str, Any]]:
    return pack(paths, [[i] for i in range(len(paths))])


@pytest.mark.parametrize("control", ["dropped", "doubled", "cell scaled by 2", "clipped on the wrong side"])
def test_negative_controls_fail_the_same_check(learner: MegatronLearner, paths: list[Path], whole_batch: Any, control: str):
    rows = one_by_one(paths)
    masks = fixed_masks(learner, rows)
    live = next(i for i, p in enumerate(paths) if whole_batch[2][p.execution_id])
    gradient = torch.zeros_like(learner.gradients())
    for index, row in enumerate(rows):
        copies = {"dropped": 0, "doubled": 2, "cell scaled by 2": 2}.get(control, 1) if index == live else 1
        if control == "clipped on the wrong side":
            ratio = learner.ratio_item(row)[paths[index].execution_id]
            masks = {paths[index].execution_id: execution_mask(-paths[index].advantage, ratio, learner.objective)}
        learner.zero_gradients()
        learner.train_microstep(row, masks)
        gradient += copies * learner.gradients()
    assert distance(gradient, whole_batch[0]) > 1e-3


def test_weight_of_an_execution_does_not_grow_with_its_paths(learner: MegatronLearner):
    """The same targets, as one path or as two that share their context, give the same gradient."""
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 61, 12)
    logp = learner.logprobs(ids, [0, 12])
    first, second = np.zeros(12, dtype=bool), np.zeros(12, dtype=bool)
    first[4:7], second[9:12] = True, True

    def path(mask: np.ndarray) -> Path:
        behavior = np.where(mask, logp - 0.001, 0).astype(np.float32)
        return Path(execution_id="e0", advantage=1.0, input_ids=ids, target_mask=mask, behavior=behavior, execution_targets=6)

    one, _, _ = accumulate(learner, pack([path(first | second)], [[0]]), [0])
    two, _, _ = accumulate(learner, pack([path(first), path(second)], [[0, 1]]), [0])
    assert distance(two, one) <= 1e-5
