"""Pipelines whose ports all fit and whose run would still hang or count twice."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["dispatch", "elastic", "score", "rollout", "train", "select"])
def test_what_speaks_for_the_whole_run_is_there_once(name, find_in_quickstart):
    problems = find_in_quickstart(f"q() + {{ ops+: {{ zz: q().ops.{name} }} }}")
    assert [(problem.path, problem.hint) for problem in problems] in (
        [("ops.zz.op", f"remove 'zz' or '{name}'")],
        [(f"ops.{name}.op", f"remove '{name}' or 'zz'")],
    )


def test_dispatch_must_hear_of_versions_where_there_is_training(find_in_quickstart):
    assert find_in_quickstart("q(train=false)") == []
    [problem] = find_in_quickstart("q() + { ops+: { dispatch+: { from: { tasks: 'tasks' } } } }")
    assert problem.path == "ops.dispatch.from.versions"
    assert problem.hint == "add versions: gyre.feedback('train.versions')"


def test_greedy_sampling_is_for_evaluations(find_in_quickstart):
    greedy = "{ ops+: { rollout+: { args+: { temperature: 0 } } } }"
    assert find_in_quickstart(f"q(train=false) + {greedy}") == []
    assert [problem.path for problem in find_in_quickstart(f"q() + {greedy}")] == ["ops.rollout.args.temperature"]


def test_a_chain_that_ends_before_its_groups_do_is_refused(find_in_quickstart):
    kept = "{ [k]: p.ops[k] for k in std.objectFields(p.ops) if k != 'score' }"
    [problem] = find_in_quickstart(f"local p = q(train=false); p + {{ ops: {kept} }}")
    assert (problem.path, "would never end" in problem.message) == ("ops.rollout", True)
    assert "gyre.op('evaluate') { from: { closed: 'rollout' } }" in problem.hint
    # An operator of the user's own stands in for evaluate, and one that is badly fed has its own problem.
    stand_in = "{ ops+: { score: gyre.op('graph_toy_ops:judge') { from: { closed: 'rollout' } } } }"
    assert find_in_quickstart(f"q(train=false) + {stand_in}") == []
    assert [p.path for p in find_in_quickstart("q() + { ops+: { score+: { from: { closed: 'roll' } } } }")] == ["ops.score.from.closed"]
