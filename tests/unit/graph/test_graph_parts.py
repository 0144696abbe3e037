"""Schemas, cycles, settings and run directories: the graph's small parts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.errors import UserError
from gyre.graph.cycles import find_cycles
from gyre.graph.rundir import check_run_dir, default_run_dir, spec_document
from gyre.graph.schemas import compare_schemas
from gyre.graph.settings import describe_type, fits
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph


def test_schemas_are_compared_at_every_depth():
    def schema(item: pa.DataType, *, null: bool) -> pa.Schema:
        span = pa.struct([pa.field("version", pa.int64()), pa.field("end", item, nullable=null)])
        return pa.schema([pa.field("spans", pa.list_(span), nullable=False), pa.field("id", pa.string(), nullable=null)])

    needed = schema(pa.int32(), null=False)
    assert compare_schemas(needed, needed) == []
    assert compare_schemas(needed.append(pa.field("more", pa.int8())), needed) == []
    assert compare_schemas(schema(pa.int64(), null=True), needed) == [
        "'spans[].end' is int64 and must be int32",
        "'spans[].end' may be null and must not",
        "'id' may be null and must not",
    ]
    assert compare_schemas(pa.schema([]), needed) == [f"'spans' ({needed.field('spans').type}) is missing", "'id' (string) is missing"]


NODES = st.sampled_from("abcdef")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(NODES, NODES), max_size=14), st.randoms(use_true_random=False))
def test_cycles_are_real_disjoint_and_do_not_depend_on_the_order_of_edges(edges, rng):
    cycles = find_cycles(edges)
    for cycle in cycles:
        assert all((a, b) in edges for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    assert len({node for cycle in cycles for node in cycle}) == sum(map(len, cycles))
    shuffled = list(edges)
    rng.shuffle(shuffled)
    assert find_cycles(shuffled) == cycles
    broken = {(cycle[-1], cycle[0]) for cycle in cycles}
    if not cycles:
        assert is_acyclic(edges)
    else:
        assert len(broken) == len(cycles)


def is_acyclic(edges: list[tuple[str, str]]) -> bool:
    left = {node for edge in edges for node in edge}
    while left:
        free = {node for node in left if not any(a in left for a, b in edges if b == node)}
        if not free:
            return False
        left -= free
    return True


@pytest.mark.parametrize(
    ("value", "annotation", "is_right"),
    [
        (1, int, True),
        (1, float, True),
        (True, int, False),
        (True, int | bool, True),
        (True, Any, True),
        ([1, True], list[int], False),
        (None, int | None, True),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        (1.5, int, False),
    ],
)
def test_a_value_fits_a_type(value, annotation, is_right):
    assert fits(value, annotation) is is_right


def test_types_are_described_in_words():
    assert describe_type(int | None) == "a whole number or null"
    assert describe_type(tuple[float, float]) == "a list of 2 (a number)"
    assert describe_type(list[str] | Path) == "a list (a text) or a path"
    assert describe_type(dict[str, Any]) == "an object"


def document_of(path: Path) -> dict[str, Any]:
    return spec_document(build_graph(load_spec(path)), versions={"gyre": "0.1.0"})


def test_a_run_directory_belongs_to_one_run(tmp_path, write_pipeline):
    document = document_of(write_pipeline())
    run_dir = tmp_path / "run"
    check_run_dir(run_dir, document, resume=False)
    with pytest.raises(UserError, match="holds no run to resume"):
        check_run_dir(run_dir, document, resume=True)
    run_dir.mkdir()
    check_run_dir(run_dir, document, resume=False)
    (run_dir / "spec.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="already holds a run"):
        check_run_dir(run_dir, document, resume=False)
    check_run_dir(run_dir, document, resume=True)


def test_a_run_that_was_killed_before_it_began_may_be_resumed_and_nothing_else_may(tmp_path, write_pipeline):
    document, run_dir = document_of(write_pipeline()), tmp_path / "run"
    (run_dir / "checkpoints" / ".partial-0").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no run to resume"):
        check_run_dir(run_dir, document, resume=True)
    (run_dir / "lock").touch()
    check_run_dir(run_dir, document, resume=True)
    with pytest.raises(UserError, match="is not an empty directory"):
        check_run_dir(run_dir, document, resume=False)
    (run_dir / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds no run to resume"):
        check_run_dir(run_dir, document, resume=True)


def test_a_directory_of_something_else_is_refused(tmp_path, write_pipeline):
    with pytest.raises(UserError, match="is not an empty directory"):
        check_run_dir(tmp_path, document_of(write_pipeline()), resume=False)


def test_resuming_a_changed_pipeline_says_what_changed(tmp_path, write_pipeline):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.json").write_text(json.dumps(document_of(write_pipeline())))
    changed = document_of(write_pipeline("{ ops+: { tasks+: { args+: { count: 4 } } }, resources+: { cells+: { standalone: 1 } } }"))
    with pytest.raises(UserError, match=r"ops\.tasks\.args\.count was 3 and is 4; resources\.cells\.standalone is new"):
        check_run_dir(tmp_path / "run", changed, resume=True)


def test_a_changed_default_is_a_change(tmp_path, write_pipeline):
    document = document_of(write_pipeline())
    kept = json.loads(json.dumps(document))
    kept["settings"]["runner"]["ratio"] = 0.25
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.json").write_text(json.dumps(kept))
    with pytest.raises(UserError, match=r"runner\.ratio was 0\.25 and is 0\.5"):
        check_run_dir(tmp_path / "run", document, resume=True)


def test_a_run_without_a_directory_is_named_for_its_pipeline_and_time():
    assert str(default_run_dir("toy", now_utc=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))) == "runs/toy/20300102T030405Z"
