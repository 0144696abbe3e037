"""Numbers of a fitting type that a run cannot work with: refused at their place, before anything starts."""

from __future__ import annotations

import pytest

NUMBERS = {
    "ops.score.args.workers": "ops+: { score+: { args+: { workers: 0 } } }",
    "ops.score.args.max_tries": "ops+: { score+: { args+: { max_tries: 0 } } }",
    "ops.score.args.budget_s": "ops+: { score+: { args+: { budget_s: -1 } } }",
    "ops.tasks.args.limit": "ops+: { tasks+: { args+: { limit: 0 } } }",
    "ops.dispatch.args.seed": "ops+: { dispatch+: { args+: { seed: -1 } } }",
    "ops.select.args.seed": "ops+: { select+: { args+: { seed: -1 } } }",
    "ops.select.args.role_order": "ops+: { select+: { args+: { role_order: ['mian'] } } }",
    "ops.rollout.args.temperature": "ops+: { rollout+: { args+: { temperature: -1 } } }",
    "ops.rollout.args.context_limit": "ops+: { rollout+: { args+: { context_limit: 0 } } }",
    "ops.rollout.args.max_new_tokens": "ops+: { rollout+: { args+: { max_new_tokens: 0 } } }",
    "ops.train.args.clip_low": "ops+: { train+: { args+: { clip_low: 1.1 } } }",
    "ops.dispatch.args.oversample": "ops+: { dispatch+: { args+: { group_size: 98, oversample: 3 } } }",
    "resources.learner.lr": "resources+: { learner+: { lr: -1 } }",
    "resources.learner.betas": "resources+: { learner+: { betas: [0.9, 1] } }",
    "resources.learner.clip_norm": "resources+: { learner+: { clip_norm: -1 } }",
    "resources.engine.threads": "resources+: { engine+: { threads: 0 } }",
    "resources.store.keep_checkpoints": "resources+: { store+: { keep_checkpoints: 0 } }",
    "resources.weights.timeout_s": "resources+: { weights+: { timeout_s: 0 } }",
    "resources.cells.cpus_per_rank": "resources+: { cells+: { cpus_per_rank: -1 } }",
    "resources.cells.concurrency": "resources+: { cells+: { concurrency: [], standalone: 1 } }",
}


@pytest.mark.parametrize("path", sorted(NUMBERS))
def test_a_number_that_a_run_cannot_work_with_is_refused_at_its_place(path, find_in_quickstart):
    assert [problem.path for problem in find_in_quickstart(f"q() + {{ {NUMBERS[path]} }}")] == [path]
