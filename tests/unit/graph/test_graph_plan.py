"""Plans: pure, deterministic, and the same text as last time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre.graph.plan import plan_pipeline
from gyre.graph.render import plan_document, render_json, render_mermaid, render_text
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph

PIPELINES = Path(__file__).parents[3] / "pipelines"
FORMS = {"txt": render_text, "mmd": render_mermaid, "json": lambda plan: render_json(plan) + "\n"}


def plan_of(path: Path, settings: dict[str, str] | None = None):
    return plan_pipeline(build_graph(load_spec(path, settings)))


@pytest.mark.parametrize("form", FORMS)
def test_the_toy_pipelines_plan_is_golden(form, write_pipeline, golden):
    golden(f"plans/toy.{form}", FORMS[form](plan_of(write_pipeline())))


@pytest.mark.parametrize("form", FORMS)
def test_the_quickstarts_plan_is_golden(form, golden):
    golden(f"plans/quickstart.{form}", FORMS[form](plan_of(PIPELINES / "quickstart.jsonnet")))


def test_an_evaluation_has_no_training_in_its_plan(golden):
    golden("plans/quickstart_evaluation.txt", render_text(plan_of(PIPELINES / "quickstart.jsonnet", {"train": "false"})))


def test_any_other_operator_has_a_process_of_its_own(write_pipeline):
    pools = {pool.name: pool.nodes for pool in plan_of(write_pipeline()).pools}
    assert pools == {"tasks": ("tasks",), "runner": ("runner",), "judge": ("judge",), "sink": ("sink",)}
    renamed = "{ ops: { rollout: gyre.op('graph_toy_ops:tasks') } }"
    assert [pool.name for pool in plan_of(write_pipeline(renamed)).pools] == ["rollout_op"]


def test_a_cell_has_one_bundle_per_rank(write_pipeline):
    patch = "{ resources+: { cells+: { layout: { tp: 2, pp: 3 }, device: 'gpu', standalone: 1 } } }"
    plan = plan_of(write_pipeline(patch))
    assert [len(cell.bundles) for cell in plan.cells] == [6, 6]
    assert plan.cells[0].bundles[0] == {"CPU": 1.0, "GPU": 1.0}
    assert [(e.engine, e.concurrency) for e in plan.standalone] == [("standalone0", 4)]


def test_a_plan_does_not_depend_on_where_the_pipeline_lies(write_pipeline, toy_dir):
    text = render_json(plan_of(write_pipeline()))
    assert str(toy_dir) not in text
    assert json.loads(text)["resources"]["engine"] == {"kind": "local", "model": "model", "threads": 1}


def test_a_plan_without_dispatch_has_no_figures_of_it(write_pipeline):
    assert plan_document(plan_of(write_pipeline()))["dispatch"] is None
