"""Typed graphs: what is refused, where, and with which hint; all at once."""

from __future__ import annotations

import pytest

from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph


def test_a_sound_pipeline_becomes_a_graph_in_the_order_of_its_data(write_pipeline, toy_dir):
    graph = build_graph(load_spec(write_pipeline()))
    assert list(graph.nodes) == ["tasks", "runner", "judge", "sink"]
    assert graph.nodes["tasks"].settings == {"count": 3, "folder": toy_dir / "folder"}
    settings = graph.nodes["runner"].settings
    assert settings["limits"].cpu_s == 2.0
    assert isinstance(settings["limits"].cpu_s, float)
    assert settings["limits"].memory_mb == 512
    assert settings["levels"] == (1, 2)
    assert settings["ratio"] == 0.5
    feedback = [edge for edge in graph.edges if edge.is_feedback]
    assert [(e.source, e.source_port, e.target, e.target_port) for e in feedback] == [("judge", "scores", "runner", "hints")]
    assert graph.resources.cells.concurrencies == (4, 2)
    assert graph.resources.model_dir == toy_dir / "model"


CASES = {
    "misspelt key of an operator": (
        "{ ops+: { judge+: { form: {} } } }",
        ("ops.judge.form", "unknown key 'form'", "did you mean 'from'?"),
    ),
    "misspelt key of the pipeline": (
        "{ opps: {} }",
        ("opps", "unknown key 'opps'", "did you mean 'ops'?"),
    ),
    "misspelt setting": (
        "{ ops+: { tasks+: { args+: { cuont: 3 } } } }",
        ("ops.tasks.args.cuont", "operator 'graph_toy_ops:tasks' has no setting 'cuont'", "did you mean 'count'?"),
    ),
    "setting of a wrong type": (
        "{ ops+: { tasks+: { args+: { count: 'three' } } } }",
        ("ops.tasks.args.count", "must be a whole number, this is the text 'three'", "write the number without quotes"),
    ),
    "truth value for a number": (
        "{ ops+: { runner+: { args+: { ratio: true } } } }",
        ("ops.runner.args.ratio", "must be a number, this is the truth value true", "give a number"),
    ),
    "fraction for a whole number": (
        "{ ops+: { tasks+: { args+: { count: 1.5 } } } }",
        ("ops.tasks.args.count", "must be a whole number, this is the number 1.5", "give a whole number"),
    ),
    "one of a few words": (
        "{ ops+: { runner+: { args+: { mode: 'fst' } } } }",
        ("ops.runner.args.mode", "must be one of 'fast', 'slow', this is the text 'fst'", "did you mean 'fast'?"),
    ),
    "missing setting": (
        "{ ops+: { runner+: { args: {} } } }",
        ("ops.runner.args.mode", "operator 'graph_toy_ops:Runner' needs the setting 'mode'", "add mode: one of 'fast', 'slow'"),
    ),
    "misspelt key in a nested object": (
        "{ ops+: { runner+: { args+: { limits+: { memory: 1 } } } } }",
        ("ops.runner.args.limits.memory", "'limits' has no setting 'memory'", "did you mean 'memory_mb'?"),
    ),
    "wrong item of a list": (
        "{ ops+: { runner+: { args+: { levels: [1, 'b'] } } } }",
        ("ops.runner.args.levels", "must be a list (a whole number), this is a list of 2", "give a list (a whole number)"),
    ),
    "the operator's own check": (
        "{ ops+: { tasks+: { args+: { count: 100 } } } }",
        ("ops.tasks.args.count", "100 tasks are too many", "give at most 99"),
    ),
    "an operator's check that fails": (
        "{ ops+: { more: gyre.op('graph_toy_ops:touchy') } }",
        (
            "ops.more.args",
            "the check of operator 'graph_toy_ops:touchy' fails: KeyError: 'nothing'",
            "correct the operator's check, or the settings that upset it",
        ),
    ),
    "unknown module": (
        "{ ops+: { sink+: { op: 'no_such_module:sink' } } }",
        ("ops.sink.op", "there is no module no_such_module", "install it, or put its folder on PYTHONPATH"),
    ),
    "unknown attribute": (
        "{ ops+: { sink+: { op: 'graph_toy_ops:snk' } } }",
        ("ops.sink.op", "graph_toy_ops has no 'snk'", "did you mean 'sink'?"),
    ),
    "unknown input": (
        "{ ops+: { sink+: { from+: { asessed: 'judge' } } } }",
        ("ops.sink.from.asessed", "operator 'graph_toy_ops:sink' has no input 'asessed'", "did you mean 'assessed'?"),
    ),
    "unknown source": (
        "{ ops+: { sink+: { from: { assessed: 'jugde' } } } }",
        ("ops.sink.from.assessed", "there is no operator 'jugde' in ops", "did you mean 'judge'?"),
    ),
    "unknown output": (
        "{ ops+: { sink+: { from: { assessed: 'judge.score' } } } }",
        ("ops.sink.from.assessed", "'judge' has no output 'score'", "did you mean 'scores'?"),
    ),
    "output not named": (
        "{ ops+: { judge+: { from: { closed: 'runner' } } } }",
        ("ops.judge.from.closed", "'runner' has several outputs", "name one of them: runner.closed, runner.started"),
    ),
    "operator without output": (
        "{ ops+: { runner+: { from+: { hints: gyre.feedback('sink') } } } }",
        ("ops.runner.from.hints", "'sink' has no output: operator 'graph_toy_ops:sink' returns nothing", "connect another one"),
    ),
    "open port": (
        "{ ops+: { sink+: { from: {} } } }",
        ("ops.sink.from.assessed", "input 'assessed' of operator 'graph_toy_ops:sink' is not connected", "connect 'judge'"),
    ),
    "schema mismatch": (
        "{ ops+: { runner+: { from+: { tasks: 'narrow' } }, narrow: gyre.op('graph_toy_ops:narrow_tasks') } }",
        (
            "ops.runner.from.tasks",
            "'narrow' emits narrow_task.v1, 'tasks' needs task.v1: 'query_id' may be null and must not; "
            "'task_path' is int64 and must be string; 'config' (string) is missing",
            "connect 'tasks'",
        ),
    ),
    "cycle without feedback": (
        "{ ops+: { runner+: { from+: { hints: 'judge' } } } }",
        (
            "ops.runner.from.hints",
            "this closes a cycle: runner → judge → runner",
            "only feedback may go back: gyre.feedback('judge')",
        ),
    ),
    "cycle of one": (
        "{ ops+: { more: gyre.op('graph_toy_ops:relay') { from: { tasks: 'more' } } } }",
        ("ops.more.from.tasks", "this closes a cycle: more → more", "only feedback may go back: gyre.feedback('more')"),
    ),
    "unknown scorer": (
        "{ ops+: { judge+: { args: { scorer: 'graph_toy_ops:jugde' } } } }",
        ("ops.judge.args.scorer", "graph_toy_ops has no 'jugde'", "did you mean 'judge'?"),
    ),
    "scorer that is none": (
        "{ ops+: { judge+: { args: { scorer: 'graph_toy_ops:relay' } } } }",
        (
            "ops.judge.args.scorer",
            "operator 'graph_toy_ops:relay' is not a scorer",
            "a scorer takes Batch[ClosedExecution] and returns Batch[Assessment]",
        ),
    ),
    "wrong setting of a scorer": (
        "{ ops+: { judge+: { args+: { scorer_args: { wieght: 2 } } } } }",
        ("ops.judge.args.scorer_args.wieght", "scorer 'graph_toy_ops:judge' has no setting 'wieght'", "did you mean 'weight'?"),
    ),
    "scorer's own check": (
        "{ ops+: { judge+: { args: { scorer: 'graph_toy_ops:strict', scorer_args: { weight: 0 } } } } }",
        ("ops.judge.args.scorer_args.weight", "this is 0, so every score is", "give another number"),
    ),
    "resource that nobody supplies": (
        "{ ops+: { more: gyre.op('graph_toy_ops:needy') } }",
        (
            "ops.more.op",
            "operator 'graph_toy_ops:needy': nobody supplies the resource 'Database' of 'database'",
            "resource protocols are: Control, Engines, Pipeline, Scorers, Store, Trees",
        ),
    ),
    "trees that nobody grows": (
        "{ ops+: { more: gyre.op('graph_toy_ops:climber') { from: { tasks: 'tasks' } } } }",
        (
            "ops.more.op",
            "'more' needs the trees of executions, which 'harness_proxy' grows",
            "add an operator gyre.op('harness_proxy'), or remove this one",
        ),
    ),
    "missing resource": (
        "{ resources: { engine: gyre.engine('local', { model: 'model' }) } }",
        ("resources.cells", "'runner' needs the resource 'cells'", "add resources+: { cells: gyre.cells({ count: 1 }) }"),
    ),
    "engine without a model": (
        "{ resources+: { engine: gyre.engine('local') } }",
        (
            "resources.engine.model",
            "the engine has no model and there is no learner to take it from",
            "give the Hugging Face folder of the policy",
        ),
    ),
    "unknown resource": (
        "{ resources+: { egine: {} } }",
        ("resources.egine", "unknown resource 'egine'", "did you mean 'engine'?"),
    ),
    "unknown kind": (
        "{ resources+: { engine: gyre.engine('locl', { model: 'model' }) } }",
        ("resources.engine.kind", "there is no engine 'locl'", "did you mean 'local'?"),
    ),
    "misspelt setting of a resource": (
        "{ resources+: { cells+: { layout: { tq: 1 } } } }",
        ("resources.cells.layout.tq", "'layout' has no setting 'tq'", "its settings are: cp, dp, ep, pp, tp"),
    ),
    "concurrency for other cells": (
        "{ resources+: { cells+: { count: 3 } } }",
        ("resources.cells.concurrency", "2 numbers for 3 cells", "give one number, or one per cell"),
    ),
    "malformed port": (
        "{ ops+: { sink+: { from: { assessed: ['judge'] } } } }",
        (
            "ops.sink.from.assessed",
            "a port is fed from 'operator' or 'operator.port', this is a list of 1",
            "write e.g. 'rollout', 'train.versions' or gyre.feedback('train.versions')",
        ),
    ),
    "entry that is no operator": (
        "{ ops+: { extra: 'read_tasks' } }",
        (
            "ops.extra",
            "an entry of ops is an operator, this is the text 'read_tasks'",
            "write extra: gyre.op('NAME') { from: {…}, args: {…} }",
        ),
    ),
    "name that is none": (
        "{ name: 3 }",
        (
            "name",
            "a pipeline's name is a text without '/' that can name a folder, this is the number 3",
            "write gyre.pipeline('my_pipeline') { … }",
        ),
    ),
    "name that leads out of the folder of runs": (
        "{ name: '..' }",
        (
            "name",
            "a pipeline's name is a text without '/' that can name a folder, this is the text '..'",
            "write gyre.pipeline('my_pipeline') { … }",
        ),
    ),
    "resources that are no object": (
        "{ resources: null }",
        ("resources", "resources is an object, this is null", "write resources: { cells: gyre.cells({…}), engine: gyre.engine('local') }"),
    ),
    "an operator's check that answers with something else": (
        "{ ops+: { more: gyre.op('graph_toy_ops:chatty') } }",
        (
            "ops.more.args",
            "the check of operator 'graph_toy_ops:chatty' fails: AttributeError: 'str' object has no attribute '_replace'",
            "correct the operator's check, or the settings that upset it",
        ),
    ),
    "record without a schema": (
        "{ ops+: { more: gyre.op('graph_toy_ops:nameless') } }",
        (
            "ops.more.op",
            "operator 'graph_toy_ops:nameless': record Nameless has no schema 'nameless.v1'",
            "use a record of gyre.records, or give the class a method schema() that returns its Arrow schema",
        ),
    ),
    "module without an operator's name": (
        "{ ops+: { more: gyre.op('graph_toy_ops:') } }",
        ("ops.more.op", "'graph_toy_ops:' is not of the form module:operator", "write e.g. 'my_ops:brevity'"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_gives_one_problem_with_its_place_and_a_hint(case, find_problems):
    patch, expected = CASES[case]
    assert [tuple(problem) for problem in find_problems(patch)] == [expected]


def test_a_check_may_answer_nothing(find_problems):
    assert find_problems("{ ops+: { more: gyre.op('graph_toy_ops:quiet') } }") == []


def test_all_problems_come_at_once(find_problems):
    problems = find_problems(
        """{
          naem: 'x',
          resources+: { cells+: { concurrency: 'many' } },
          ops+: {
            tasks+: { args+: { count: 'three' } },
            runner+: { args+: { mode: 'fst' }, from+: { tasks: 'taks' } },
            sink+: { op: 'graph_toy_ops:snk' },
          },
        }"""
    )
    assert [p.path for p in problems] == [
        "naem",
        "resources.cells.concurrency",
        "ops.sink.op",
        "ops.runner.args.mode",
        "ops.tasks.args.count",
        "ops.runner.from.tasks",
    ]


def test_a_missing_model_folder_is_named(find_problems):
    problems = find_problems("{ resources+: { engine: gyre.engine('local', { model: 'nowhere' }) } }")
    assert [p.path for p in problems] == ["resources.engine.model"]
    assert "there is no folder" in problems[0].message


@pytest.mark.parametrize("name", ["unmarked", "untyped", "positional", "odd_return"])
def test_an_operator_that_is_badly_declared_is_a_problem(name, find_problems):
    (problem,) = find_problems(f"{{ ops+: {{ extra: gyre.op('graph_toy_ops:{name}') }} }}")
    assert problem.path == "ops.extra.op"
    assert problem.hint
