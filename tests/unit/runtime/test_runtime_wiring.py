"""What each process of a run is told."""

from __future__ import annotations

from pathlib import Path

from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.records import Batch, ScoredExecution, op
from gyre.runtime.wiring import node_specs

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"


@op("watch_groups")
def watch_groups(scored: Batch[ScoredExecution]) -> None:
    """Look at ready groups."""


def gated_inputs(path: Path) -> list[tuple[str, str]]:
    graph = build_graph(load_spec(path))
    specs = node_specs(graph, plan_pipeline(graph))
    return [(name, port) for name, spec in specs.items() for port, declared in spec.inputs.items() if declared.is_gated]


def test_groups_wait_for_the_scheduler_on_their_way_to_training_only(tmp_path: Path) -> None:
    """Each group is named once at the scheduler's door: a second gate would take every other group from the training."""
    path = tmp_path / "watched.jsonnet"
    watch = "watch: { op: 'test_runtime_wiring:watch_groups', from: { scored: 'score' } }"
    path.write_text(f"(import '{QUICKSTART}')() + {{ ops+: {{ {watch} }} }}", encoding="utf-8")
    assert gated_inputs(path) == [("select", "scored")]
