"""The first moments of a run: nothing of it to resume from, or no Ray. Ray is not started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.errors import RunError
from gyre.graph.plan import plan_pipeline
from gyre.graph.rundir import has_begun
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.runtime import run as runtime_run
from gyre.runtime.cluster import Cluster

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"


def test_a_run_killed_while_it_copied_its_model_begins_anew_with_resume(tmp_path, monkeypatch):
    driven: list[Any] = []

    def drive(graph: Any, plan: Any, run_dir: Path, store: Any, state: Any, *more: Any) -> int:
        driven.append((state, has_begun(run_dir)))
        return 0

    def killed(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        raise KeyboardInterrupt

    spec, run_dir = load_spec(QUICKSTART), tmp_path / "run"
    monkeypatch.setattr(runtime_run, "_drive", drive)
    with monkeypatch.context() as patched:
        patched.setattr(runtime_run, "_copy_model", killed)
        with pytest.raises(KeyboardInterrupt):
            runtime_run.run_pipeline(spec, run_dir=run_dir)
    assert not has_begun(run_dir)
    assert runtime_run.run_pipeline(spec, run_dir=run_dir, resume=True) == 0
    assert driven == [(None, True)]
    assert (run_dir / "checkpoints" / "0" / "model" / "config.json").is_file()


def cluster_of(pipeline: Path, run_dir: Path) -> Cluster:
    graph = build_graph(load_spec(pipeline))
    return Cluster(graph=graph, plan=plan_pipeline(graph), run_dir=run_dir, resume=None)


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_a_ray_that_does_not_start_is_a_sentence_and_a_trace_in_the_run(address, tmp_path, monkeypatch):
    def init(**options: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore lines.")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("os.environ", {"RAY_ADDRESS": address} if address else {})
    where = " at RAY_ADDRESS=10.0.0.1:6379" if address else ""
    with pytest.raises(RunError, match=f"^Ray does not start{where}: The current node timed out during startup.$"):
        cluster_of(QUICKSTART, tmp_path).start()
    assert "More lines." in (tmp_path / "errors.log").read_text()


def test_a_local_ray_has_room_for_every_share_of_a_cpu(tmp_path, monkeypatch):
    asked: list[int] = []

    def init(*, num_cpus: int, **options: Any) -> None:
        asked.append(num_cpus)
        raise Exception("enough")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("os.environ", {})
    spec = tmp_path / "shares.jsonnet"
    spec.write_text(f"(import '{QUICKSTART}')() {{ resources+: {{ cells+: {{ cpus_per_rank: 0.4 }} }} }}")
    with pytest.raises(RunError, match="enough"):
        cluster_of(spec, tmp_path).start()
    assert asked == [2]
