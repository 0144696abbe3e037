"""Recomputed log-probabilities equal the trainer's, whatever row they were packed into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gyre.errors import UserError
from gyre.training.learner import MegatronLearner
from gyre.training.recompute import recompute_logprobs

pytestmark = pytest.mark.torch


def test_values_in_the_order_asked(tiny_model: Path):
    rng = np.random.default_rng(0)
    trajectories = [(rng.integers(0, 61, n).tolist(), np.sort(rng.choice(np.arange(1, n), n // 3, replace=False))) for n in (9, 30, 4)]
    trajectories.insert(1, ([3, 4], np.array([], dtype=int)))
    got = recompute_logprobs(tiny_model, trajectories, 0.8)
    learner = MegatronLearner(tiny_model, temperature=0.8, role="satellite")
    for (ids, positions), values in zip(trajectories, got, strict=True):
        expected = learner.logprobs(ids, [0, len(ids)])[positions]
        np.testing.assert_allclose(values, expected, atol=2e-6)


def test_a_position_without_context_is_refused(tiny_model: Path):
    with pytest.raises(UserError, match="trajectory 1: positions must lie between 1 and 2"):
        recompute_logprobs(tiny_model, [([1, 2], [1]), ([1, 2, 3], [0])], 1.0)
