"""The driver's own decisions, without Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import ray

from gyre.errors import RunError
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.runtime.cluster import Cluster
from gyre.runtime.run import _interrupts_ignored, _terminated_like_interrupted

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_is_finished_whatever_signal_comes_again(number: signal.Signals) -> None:
    with _terminated_like_interrupted():
        with _interrupts_ignored():
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_a_ray_that_does_not_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("The current node timed out during startup.\nThis could happen because …")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    graph = build_graph(load_spec(QUICKSTART))
    cluster = Cluster(graph=graph, plan=plan_pipeline(graph), run_dir=tmp_path, resume=None)
    with pytest.raises(RunError, match=r"^Ray could not be started: RuntimeError: The current node timed out during startup\.$"):
        cluster.start()
