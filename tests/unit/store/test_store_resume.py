"""What a resumed run reads out of its tables, and what it removes from them."""

from __future__ import annotations

from pathlib import Path

from support.tiny_run import make_tiny_run

from gyre.store.resume import calls_of, forget_after, load_resume_state, trajectories_of_step
from gyre.store.run_store import RunStore, read_table


def test_the_state_is_that_of_the_tables(tmp_path: Path) -> None:
    run_dir = make_tiny_run(tmp_path / "run", is_folded=False)
    state = load_resume_state(run_dir)
    assert (state.version, state.published_version) == (3, 3)
    assert list(state.executions)[:4] == ["g000000-00", "g000000-01", "g000000-02", "g000001-00"]
    assert state.executions["g000002-01"]["attempts"] == 2
    assert [row["execution_id"] for row in state.groups["g000005"]] == ["g000005-00", "g000005-01", "g000005-02"]
    assert state.designated["g000001-02"]["valid"] is False
    assert {group: row["step_version"] for group, row in state.consumption.items()}["g000003"] == 2


def test_an_empty_run_has_an_empty_state(tmp_path: Path) -> None:
    state = load_resume_state(tmp_path)
    assert (state.version, state.published_version, dict(state.executions), state.steps) == (0, 0, {}, ())


def test_rows_after_the_checkpoint_are_removed_and_only_those(tmp_path: Path) -> None:
    run_dir = make_tiny_run(tmp_path / "run", is_folded=False)
    before = read_table(run_dir, "trajectories")
    removed = forget_after(run_dir, 2)
    assert removed["steps"] == 1
    assert removed["consumption"] == 2
    kept = read_table(run_dir, "trajectories")
    assert kept.num_rows == before.num_rows - removed["trajectories"]
    assert set(kept.column("step_version").to_pylist()) == {1, 2}
    assert trajectories_of_step(run_dir, 3).num_rows == 0
    assert set(forget_after(run_dir, 2).values()) == {0}
    assert read_table(run_dir, "executions").num_rows == 18


def test_a_tree_is_read_by_attempt_in_node_order(tmp_path: Path) -> None:
    run_dir = make_tiny_run(tmp_path / "run")
    assert calls_of(run_dir, "g000002-01", 1).column("node_id").to_pylist() == [0, 1, 2]
    assert calls_of(run_dir, "g000002-01", 3).num_rows == 0
    RunStore(run_dir, writer="rollout").append_table("calls", calls_of(run_dir, "g000002-01", 1))
    assert calls_of(run_dir, "g000002-01", 1).column("node_id").to_pylist() == [0, 0, 1, 1, 2, 2]
