"""`verify`: nothing on a sound run; a named breach for every kind of row that was altered, doubled or deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from support.tiny_run import START_S, fake_recompute, make_tiny_run

from gyre.errors import UserError
from gyre.store.columns import TABLES, dataset_path
from gyre.store.run_store import RunStore, read_table
from gyre.store.verify import VerifyReport, verify

Row = dict[str, Any]


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def run_dir(sound_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_run, tmp_path / "run"))


def rewrite(run_dir: Path, table: str, change: Callable[[list[Row]], list[Row]]) -> None:
    """Rewrite a whole table in Lance, as somebody who tampers would."""
    stored = lance.dataset(str(dataset_path(run_dir, table))).to_table()
    changed = pa.Table.from_pylist(change(stored.to_pylist()), schema=stored.schema)
    lance.write_dataset(changed, str(dataset_path(run_dir, table)), mode="overwrite")


def alter(run_dir: Path, table: str, matches: Row, **changes: Any) -> None:
    """Change columns of the first row that matches; a change may be a function of the old value."""

    def change(rows: list[Row]) -> list[Row]:
        row = next(row for row in rows if all(row[name] == value for name, value in matches.items()))
        row.update({name: value(row[name]) if callable(value) else value for name, value in changes.items()})
        return rows

    rewrite(run_dir, table, change)


def named(report: VerifyReport) -> str:
    return "\n".join(f"{b.table} | {b.key} | {b.sentence}" for b in report.breaches)


@pytest.mark.parametrize("is_folded", [True, False])
def test_a_sound_run_has_no_breach(tmp_path: Path, is_folded: bool) -> None:
    report = verify(make_tiny_run(tmp_path / "run", is_folded=is_folded), recompute=fake_recompute)
    assert named(report) == ""
    assert report.is_ok
    assert report.figures["d"] == report.figures["p"] == report.figures["f"] == 18
    assert report.figures["recomputed_targets"] == report.figures["targets"] > 100
    assert report.figures["logprob_abs_diff_max"] == 0
    assert report.event_kinds["joined"] == 1
    assert report.to_json()["ok"] is True


def flip_first_target(mask: list[bool]) -> list[bool]:
    index = mask.index(True)
    return [*mask[:index], False, *mask[index + 1 :]]


def set_item(index: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda items: [*items[:index], value, *items[index + 1 :]]


FIRST = {"execution_id": "g000000-00"}
FIRST_TRAJECTORY = {"trajectory_id": "g000000-00/0"}

ALTERATIONS = [
    # Counters and dispatch.
    ("executions", FIRST, {"status": "running", "finished_at_s": None}, "executions | g000000-00 | is running in a finished run"),
    ("executions", FIRST, {"status": "done"}, "executions | g000000-00 | has the status 'done'"),
    ("executions", FIRST, {"finished_at_s": None}, "executions | g000000-00 | is completed but has no time of its end"),
    ("executions", FIRST, {"launched_at_s": None}, "executions | g000000-00 | is completed but was never launched"),
    ("executions", FIRST, {"launched_at_s": 1.0}, "executions | g000000-00 | was launched before it was dispatched"),
    ("executions", FIRST, {"finished_at_s": lambda t: t - 100}, "executions | g000000-00 | ended before it was launched"),
    ("executions", FIRST, {"dispatch_version": 2}, "executions | g000000-00 | has another dispatch_version"),
    ("executions", FIRST, {"query_id": "kata-9"}, "executions | g000000-00 | has another query_id"),
    ("executions", FIRST, {"group_id": "g000001"}, "executions | g000000-00 | belongs to group g000001"),
    ("executions", FIRST, {"attempts": 2}, "trajectories | g000000-00/0 | is of attempt 1, but attempt 2 closed"),
    ("executions", FIRST, {"execution_id": "g000000-01"}, "executions | g000000-01 | has 2 rows"),
    # Outcomes.
    ("assessments", FIRST, {"designated": False}, "assessments | g000000-00 | has 0 designated"),
    ("assessments", FIRST, {"valid": False}, "assessments | g000000-00 attempt 1 try 1 | is not valid with the score 0.0"),
    ("assessments", FIRST, {"score": 0.9}, "trajectories | g000000-00/0 | has the advantage"),
    ("assessments", FIRST, {"execution_id": "g000000-01"}, "assessments | g000000-01 | has 2 designated"),
    ("assessments", {"execution_id": "g000004-00"}, {"score": 1.0}, "assessments | g000004-00 attempt 1 try 1 | is a placeholder"),
    ("assessments", {"execution_id": "g000001-02"}, {"valid": True, "score": 1.0}, "consumption | g000001 | says valid = 2"),
    # Exactly-once consumption and staleness.
    ("consumption", {"group_id": "g000001"}, {"group_id": "g000000"}, "consumption | g000000 | was consumed 2 times"),
    ("consumption", {"group_id": "g000001"}, {"step_version": 2}, "consumption | g000001 | has v_t 0"),
    ("consumption", {"group_id": "g000001"}, {"v_d": 1}, "consumption | g000001 | has v_d 1"),
    ("consumption", {"group_id": "g000001"}, {"v_t": 1}, "consumption | g000001 | has v_t 1"),
    ("consumption", {"group_id": "g000001"}, {"unresolved": 0}, "consumption | g000001 | says unresolved = 0"),
    ("steps", {"version": 2}, {"version": 4}, "steps | version 3 | breaks the sequence"),
    ("steps", {"version": 2}, {"group_ids": ["g000000", "g000003"]}, "steps | version 2 | lists other groups"),
    ("steps", {"version": 2}, {"group_ids": ["g000002"]}, "steps | version 2 | has 1 groups, but a step takes 2"),
    ("steps", {"version": 2}, {"executions": 5}, "steps | version 2 | says |E| = 5"),
    ("steps", {"version": 2}, {"target_tokens": 1}, "steps | version 2 | says 1 target tokens"),
    ("steps", {"version": 2}, {"reward_mean": 0.9}, "steps | version 2 | says a mean reward of 0.9"),
    ("steps", {"version": 2}, {"staleness_mean": 0.25}, "steps | version 2 | says a mean staleness of 0.25"),
    ("steps", {"version": 2}, {"loss": float("nan")}, "steps | version 2 | has the loss nan"),
    ("steps", {"version": 2}, {"cells": []}, "steps | version 2 | names the cells []"),
    ("steps", {"version": 2}, {"grad_norm": -1.0}, "steps | version 2 | has the grad_norm -1.0"),
    ("steps", {"version": 2}, {"cells": [0, 2]}, "steps | version 2 | counts cell 2, which had not joined"),
    # Publications and events.
    ("publications", {"version": 3, "engine": "cell2"}, {"confirmed": False}, "publications | cell2 version 3 | was sent"),
    ("publications", {"version": 3, "engine": "cell2"}, {"engine": "cell7"}, "cell7 version 3 | names an engine that"),
    ("publications", {"version": 3, "engine": "cell2"}, {"version": 9}, "publications | cell2 version 9 | was published, but"),
    ("events", {"kind": "to_training", "cell": 1}, {"kind": "seen"}, "events | joined of cell 1"),
    ("events", {"kind": "to_training", "cell": 1}, {"cell": 0}, "sends a cell to training that is there already"),
    ("events", {"kind": "to_rollout", "cell": 1}, {"cell": 2}, "events | to_rollout of cell 2"),
    ("events", {"kind": "to_training", "cell": 0}, {"time_s": START_S + 10.0}, "| leaves 10 places for 14 executions"),
    ("events", {"kind": "to_training", "cell": 0}, {"time_s": START_S + 2.0}, "executions | g000003-01 | is one of 11 that run at once"),
    ("events", {"kind": "joined"}, {"kind": "seen"}, "steps | version 2 | counts cell 1, which had not joined"),
    ("events", {"kind": "published", "detail": '{"version": 2}'}, {"kind": "seen"}, "events | published 2 | is missing"),
    ("events", {"kind": "published", "detail": '{"version": 2}'}, {"detail": '{"version": 1}'}, "publications | version 1 | has a"),
    ("events", {"kind": "updated", "detail": '{"version": 2}'}, {"kind": "seen"}, "events | updated 2 | is missing"),
    ("events", {"kind": "dispatched"}, {"detail": '{"num_groups": 5, "first_group_index": 0, "version": 2}'}, "g000000 | has v_d 0"),
    ("events", {"kind": "core_retained"}, {"detail": "reason"}, "has a detail that is not a JSON object"),
    # Records.
    ("calls", FIRST, {"node_id": 1}, "calls | g000000-00 attempt 1 | has the node_ids [1, 1, 2]"),
    ("calls", FIRST | {"node_id": 1}, {"parent_node_id": 2}, "calls | g000000-00 attempt 1 node 1 | hangs below node 2"),
    ("calls", FIRST | {"node_id": 1}, {"parent_node_id": None}, "trajectories | g000000-00/0 | has other tokens"),
    ("calls", FIRST, {"provenance": "evaluator"}, "trajectories | g000000-00/0 | has a target at token 4, which the policy did not"),
    ("calls", FIRST, {"trainable": False}, "trajectories | g000000-00/0 | has a target at token 4"),
    ("calls", FIRST, {"role": "boss"}, "calls | g000000-00 attempt 1 node 0 | has the role 'boss'"),
    ("calls", FIRST, {"input_ids": set_item(0, 9)}, "trajectories | g000000-00/0 | has other tokens"),
    ("calls", FIRST, {"output_ids": set_item(0, 9)}, "trajectories | g000000-00/0 | has other tokens"),
    ("calls", FIRST, {"output_logprobs": set_item(0, -9.0)}, "trajectories | g000000-00/0 | has another log-probability at token 4"),
    ("calls", FIRST, {"output_logprobs": lambda p: p[:-1]}, "calls | g000000-00 attempt 1 node 0 | has 3 sampled tokens but 2"),
    ("calls", FIRST, {"output_logprobs": set_item(0, 0.5)}, "has a log-probability that is not a number of at most 0"),
    ("calls", FIRST, {"weight_versions": [{"version": 0, "start": 0, "end": 2}]}, "node 0 | has version spans over 2 of 3"),
    ("calls", FIRST, {"weight_versions": [{"version": 1, "start": 0, "end": 3}]}, "node 0 | was sampled under version 1, which"),
    ("calls", FIRST, {"weight_versions": [{"version": 2, "start": 0, "end": 3}]}, "trajectories | g000000-00/0 | has a log-probability"),
    # What was trained on.
    ("trajectories", FIRST_TRAJECTORY, {"input_ids": set_item(0, 9)}, "trajectories | g000000-00/0 | has other tokens"),
    ("trajectories", FIRST_TRAJECTORY, {"target_mask": flip_first_target}, "g000000-00/0 | has a log-probability at token 4"),
    ("trajectories", FIRST_TRAJECTORY, {"target_mask": set_item(0, True)}, "g000000-00/0 | has no log-probability at target 0"),
    ("trajectories", FIRST_TRAJECTORY, {"behavior_logprobs": set_item(4, None)}, "trajectories | g000000-00/0 | has no log-probability"),
    ("trajectories", FIRST_TRAJECTORY, {"behavior_logprobs": set_item(4, -8.0)}, "trajectories | g000000-00/0 | has another log-prob"),
    ("trajectories", FIRST_TRAJECTORY, {"behavior_logprobs": lambda p: p[:-1]}, "trajectories | g000000-00/0 | has lists of different"),
    ("trajectories", FIRST_TRAJECTORY, {"advantage": lambda a: -a}, "trajectories | g000000-00/0 | has the advantage"),
    ("trajectories", FIRST_TRAJECTORY, {"leaf_node_id": 7}, "trajectories | g000000-00/0 | ends at node 7"),
    ("trajectories", FIRST_TRAJECTORY, {"role": "side"}, "trajectories | g000000-00/0 | has the role 'side'"),
    ("trajectories", FIRST_TRAJECTORY, {"step_version": 2}, "trajectories | g000000-00/0 | is of step 2"),
    ("trajectories", FIRST_TRAJECTORY, {"group_id": "g000001"}, "trajectories | g000000-00/0 | is put in group g000001"),
    ("trajectories", FIRST_TRAJECTORY, {"attempt": 3}, "trajectories | g000000-00/0 | is of attempt 3"),
    ("trajectories", FIRST_TRAJECTORY, {"trajectory_id": "g000000-00/1"}, "trajectories | g000000-00/1 | has 2 rows"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "matches", "changes", "expected"), ALTERATIONS)
def test_an_altered_row_is_named(run_dir: Path, table: str, matches: Row, changes: Row, expected: str) -> None:
    alter(run_dir, table, matches, **changes)
    report = verify(run_dir, recompute=fake_recompute)
    assert not report.is_ok
    assert expected in named(report)


@pytest.mark.parametrize(
    ("table", "matches", "expected"),
    [
        ("executions", FIRST, "executions | g000000 | has 2 executions instead of 3"),
        ("calls", FIRST, "calls | g000000-00 attempt 1 | has the node_ids"),
        ("assessments", FIRST, "assessments | g000000-00 | has 0 designated"),
        ("trajectories", {"trajectory_id": "g000000-00/1"}, "trajectories | g000000-00 | misses a trajectory"),
        ("steps", {"version": 2}, "steps | version 3 | breaks the sequence"),
        ("consumption", {"group_id": "g000003"}, "consumption | g000003 | was never consumed"),
        ("events", {"kind": "joined"}, "which had not joined"),
    ],
)
def test_a_deleted_row_is_missed(run_dir: Path, table: str, matches: Row, expected: str) -> None:
    def drop(rows: list[Row]) -> list[Row]:
        rows.remove(next(row for row in rows if all(row[name] == value for name, value in matches.items())))
        return rows

    rewrite(run_dir, table, drop)
    assert expected in named(verify(run_dir))


@pytest.mark.parametrize("table", ["executions", "calls", "assessments", "trajectories", "steps", "consumption"])
def test_a_row_that_stands_twice_is_named(run_dir: Path, table: str) -> None:
    rewrite(run_dir, table, lambda rows: [*rows, rows[0]])
    assert {breach.table for breach in verify(run_dir).breaches} & {table}


def test_a_consistent_lie_about_one_token_is_found_by_recomputation(run_dir: Path) -> None:
    alter(run_dir, "calls", FIRST, output_logprobs=set_item(0, -9.0))
    for number in (0, 1):
        alter(run_dir, "trajectories", {"trajectory_id": f"g000000-00/{number}"}, behavior_logprobs=replace_target_four)
    assert verify(run_dir).is_ok
    report = verify(run_dir, recompute=fake_recompute)
    assert "trajectories | g000000-00/0 | has a log-probability at token 4" in named(report)


def replace_target_four(logprobs: list[float | None]) -> list[float | None]:
    return logprobs if logprobs[4] is None else set_item(4, -9.0)(logprobs)


def test_a_small_shift_of_all_log_probabilities_is_found_in_the_mean(run_dir: Path) -> None:
    report = verify(run_dir, recompute=lambda *args: [values - 0.005 for values in fake_recompute(*args)])
    assert [breach.key for breach in report.breaches] == ["behavior_logprobs"]
    assert report.figures["logprob_abs_diff_mean"] == pytest.approx(0.005, rel=1e-3)


def test_a_log_probability_that_is_not_a_number_is_found(run_dir: Path) -> None:
    report = verify(run_dir, recompute=lambda *args: [values * np.float32("nan") for values in fake_recompute(*args)])
    assert not report.is_ok


def test_a_version_without_a_checkpoint_is_noted(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints" / "2")
    report = verify(run_dir, recompute=fake_recompute)
    assert report.is_ok
    assert "version 2 has no checkpoint" in report.notes[0]
    assert report.figures["recomputed_targets"] < report.figures["targets"]


def test_tokens_of_calls_whose_versions_are_not_known_are_reported(run_dir: Path) -> None:
    assert verify(run_dir).figures["mixed_share"] == 0
    tokens = sum(len(row["output_ids"]) for row in read_table(run_dir, "calls").to_pylist())
    alter(run_dir, "calls", FIRST | {"node_id": 1}, sampling='{"asked":{},"used":{},"versions":"mixed"}', trainable=False)
    assert verify(run_dir).figures["mixed_share"] == pytest.approx(2 / tokens)


def test_a_sample_is_taken_only_when_asked_for(run_dir: Path) -> None:
    whole, sample = verify(run_dir, recompute=fake_recompute), verify(run_dir, recompute=fake_recompute, most_per_version=2)
    assert 0 < sample.figures["recomputed_targets"] < whole.figures["recomputed_targets"]


def test_an_interrupted_run_is_not_blamed_for_what_is_left_to_do(run_dir: Path) -> None:
    cut_off(run_dir)
    assert named(verify(run_dir, recompute=fake_recompute)) == ""


def cut_off(run_dir: Path) -> None:
    """Two steps are committed; of the third, trajectories are drawn, one execution runs and one waits for its score."""
    for table, column in (("steps", "version"), ("consumption", "step_version")):
        rewrite(run_dir, table, lambda rows, column=column: [row for row in rows if row[column] < 3])
    rewrite(run_dir, "publications", lambda rows: [row for row in rows if row["version"] < 3])
    rewrite(run_dir, "events", lambda rows: [row for row in rows if '"version": 3' not in row["detail"]])
    rewrite(run_dir, "trajectories", lambda rows: [row for row in rows if not row["execution_id"].startswith("g000005")])
    rewrite(run_dir, "assessments", lambda rows: [row for row in rows if row["execution_id"] not in ("g000005-00", "g000005-01")])
    alter(run_dir, "executions", {"execution_id": "g000005-01"}, status="running", finished_at_s=None)


@pytest.mark.parametrize("num_read", range(1, len(TABLES)))
@pytest.mark.parametrize("cut", ["third step", "first dispatch"])
def test_a_run_that_goes_on_while_it_is_read_is_not_blamed(
    sound_run: Path, run_dir: Path, num_read: int, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are read one after another; whatever happens in between, the rows of one stand on those of another."""
    if cut == "third step":
        cut_off(run_dir)
        began_s = START_S + 290.0
    else:
        for table in TABLES:
            early = {"events": lambda row: row["kind"] == "dispatched" and row["time_s"] == START_S}.get(table, lambda row: False)
            rewrite(run_dir, table, lambda rows, early=early: [row for row in rows if early(row)])
        began_s = START_S - 0.5
    times_read = 0

    def read(_: Path, table: str, **options: Any) -> pa.Table:
        nonlocal times_read
        times_read += 1
        return read_table(run_dir if times_read <= num_read else sound_run, table, **options)

    monkeypatch.setattr("gyre.store.checks.data.read_table", read)
    monkeypatch.setattr("gyre.store.checks.data.time.time", lambda: began_s)
    assert named(verify(run_dir)) == ""


def test_rows_still_in_the_log_are_verified_too(run_dir: Path) -> None:
    row = read_table(run_dir, "executions", where="execution_id = 'g000001-00'").to_pylist()[0]
    RunStore(run_dir, writer="control").append("executions", [row | {"status": "queued", "finished_at_s": None}])
    assert "executions | g000001-00 | is queued in a finished run" in named(verify(run_dir))


def test_a_folder_without_a_run_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        verify(tmp_path)
