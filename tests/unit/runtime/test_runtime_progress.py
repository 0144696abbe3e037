"""What a person sees of a run, and what `progress.jsonl` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.runtime.progress import Progress

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"


def step(version: int) -> dict[str, Any]:
    numbers = ("reward_mean", "loss", "grad_norm", "staleness_mean", "duration_s", "target_tokens", "executions", "clipped", "time_s")
    return {"version": version, "cells": [0], **dict.fromkeys(numbers, 1.0)}


def test_steps_that_an_interrupted_driver_did_not_see_get_their_line_on_resume(tmp_path: Path) -> None:
    plan = plan_pipeline(build_graph(load_spec(QUICKSTART)))
    status = {"waterlevel": 3, "roles": ["training"], "dispatched": 0, "launched": 0, "finished": 0, "version": 1}
    Progress(plan, tmp_path, quiet=True).show({**status, "steps": [step(1)]})
    resumed = Progress(plan, tmp_path, quiet=True)
    resumed.catch_up([step(1), step(2)])
    resumed.show({**status, "steps": [step(3)]})
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["version"], line["waterlevel"]) for line in lines] == [(1, 3), (2, None), (3, 3)]
