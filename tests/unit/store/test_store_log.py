"""The log in front of Lance: durable appends, torn tails, folds that happen exactly once, the run's lock."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from gyre.errors import StoreError, UserError
from gyre.store import log as log_module
from gyre.store.columns import TABLES, dataset_path, log_dir
from gyre.store.lock import RunLock
from gyre.store.log import TableLog, read_segment, segment_paths
from gyre.store.run_store import RunStore, fold_log, read_table
from gyre.store.tables import delete_rows


def event(number: int) -> dict[str, object]:
    return {"time_s": float(number), "kind": "published", "cell": -1, "detail": "{}"}


def execution(status: str, *, name: str = "g000000-00") -> dict[str, object]:
    return {
        "execution_id": name, "group_id": name[:7], "query_id": "q", "dispatch_version": 0, "status": status,
        "dispatched_at_s": 1.0, "attempts": 1, "group_index": 0, "workspace": "", "reason": "",
    }  # fmt: skip


def statuses(run_dir: Path) -> dict[str, str]:
    return {row["execution_id"]: row["status"] for row in read_table(run_dir, "executions").to_pylist()}


def times(run_dir: Path) -> list[float]:
    return read_table(run_dir, "events").column("time_s").to_pylist()


def test_rows_are_readable_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1), event(2)])
    store.append("events", [event(3)])
    assert times(tmp_path) == [1.0, 2.0, 3.0]
    assert store.read("events", where="time_s >= 2", columns=["time_s"]).to_pydict() == {"time_s": [2.0, 3.0]}


def test_a_fold_moves_rows_into_lance_once_and_leaves_later_ones_in_the_log(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1)])
    assert store.fold()["events"] == 1
    store.append("events", [event(2)])
    assert times(tmp_path) == [1.0, 2.0]
    assert lance.dataset(str(dataset_path(tmp_path, "events"))).count_rows() == 1
    assert store.fold()["events"] == 1
    assert store.fold()["events"] == 0
    assert times(tmp_path) == [1.0, 2.0]
    assert all(dataset_path(tmp_path, table).is_dir() for table in TABLES)


def test_a_fold_that_died_before_removing_its_segments_is_not_repeated(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1)])
    store.append("executions", [execution("running")])
    shutil.copytree(tmp_path / "log", tmp_path / "saved")
    store.fold()
    store.append("executions", [execution("completed")])
    store.fold()
    shutil.copytree(tmp_path / "saved", tmp_path / "log", dirs_exist_ok=True)
    assert times(tmp_path) == [1.0]
    assert read_table(tmp_path, "executions").column("status").to_pylist() == ["completed"]
    fold_log(tmp_path)
    assert times(tmp_path) == [1.0]
    assert read_table(tmp_path, "executions").column("status").to_pylist() == ["completed"]
    assert segment_paths(tmp_path, "events") == []


def test_the_last_write_of_an_execution_wins_across_writers(tmp_path: Path) -> None:
    control, rollout = RunStore(tmp_path, writer="a"), RunStore(tmp_path, writer="b")
    rollout.append("executions", [execution("queued"), execution("queued", name="g000000-01")])
    control.append("executions", [execution("running")])
    rollout.append("executions", [execution("completed")])
    expected = {"g000000-00": "completed", "g000000-01": "queued"}
    assert statuses(tmp_path) == expected
    assert read_table(tmp_path, "executions", where="status = 'running'").num_rows == 0
    control.close()
    rollout.close()
    fold_log(tmp_path)
    assert statuses(tmp_path) == expected


def test_a_fold_leaves_an_open_segment_alone(tmp_path: Path) -> None:
    writer = RunStore(tmp_path, writer="rollout")
    writer.append("events", [event(1)])
    assert fold_log(tmp_path)["events"] == 0
    assert times(tmp_path) == [1.0]
    writer.close()
    assert fold_log(tmp_path)["events"] == 1


@pytest.mark.parametrize("cut_bytes", [1, 7, 60, 200])
def test_a_torn_tail_is_not_a_row(tmp_path: Path, cut_bytes: int) -> None:
    log = TableLog(tmp_path, "events", writer="control")
    log.append([event(1)])
    path = segment_paths(tmp_path, "events")[0]
    whole = path.stat().st_size
    log.append([event(2)])
    log.close()
    os.truncate(path, whole + cut_bytes)
    assert read_segment(path, "events").column("time_s").to_pylist() == [1.0]
    TableLog(tmp_path, "events", writer="control").append([event(3)])
    assert times(tmp_path) == [1.0, 3.0]


def test_a_process_killed_inside_an_append_loses_only_that_append(tmp_path: Path) -> None:
    script = (
        "import sys; from gyre.store.run_store import RunStore\n"
        "import os; store = RunStore(sys.argv[1], writer='control')\n"
        "row = {'time_s': 1.0, 'kind': 'published', 'cell': -1, 'detail': '{}'}\n"
        "store.append('events', [row])\n"
        "os.environ['GYRE_KILL_POINT'] = 'inside_store_append:' + sys.argv[2]\n"
        "store.append('events', [row | {'time_s': 2.0}])\n"
    )
    marker = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run"), str(marker)], check=False)
    assert done.returncode == -9
    assert marker.exists()
    assert times(tmp_path / "run") == [1.0]
    assert fold_log(tmp_path / "run")["events"] == 1
    assert times(tmp_path / "run") == [1.0]


def test_a_full_disk_is_a_sentence_and_keeps_the_log_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1)])

    def write_half(fd: int, data: memoryview) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_write_all", write_half)
        with pytest.raises(StoreError, match=r"No space left.*--resume"):
            store.append("events", [event(2)])
    store.append("events", [event(3)])
    assert times(tmp_path) == [1.0, 3.0]


def test_a_big_segment_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "ROTATE_BYTES", 2000)
    store = RunStore(tmp_path, writer="control")
    for number in range(20):
        store.append("events", [event(number)])
    assert len(segment_paths(tmp_path, "events")) > 2
    assert times(tmp_path) == [float(number) for number in range(20)]


def test_rows_that_do_not_fit_are_refused_with_the_column(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    with pytest.raises(StoreError, match="no column colour"):
        store.append("events", [event(1) | {"colour": "red"}])
    with pytest.raises(StoreError, match="column detail must not be null"):
        store.append("events", [{"time_s": 1.0, "kind": "published", "cell": 0}])
    with pytest.raises(StoreError, match="does not fit its schema"):
        store.append("events", [event(1) | {"cell": "core"}])
    with pytest.raises(StoreError, match="no table 'nodes'"):
        store.append("nodes", [])
    assert not log_dir(tmp_path, "events").exists()


def test_a_condition_that_is_not_sql_is_a_sentence(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1)])
    with pytest.raises(StoreError, match="condition 'time ='"):
        store.read("events", where="time =")


def test_nested_columns_survive_log_and_lance(tmp_path: Path) -> None:
    row = {
        "execution_id": "g000000-00", "attempt": 1, "call_index": 0, "node_id": 0, "parent_node_id": None, "role": "main",
        "provenance": "policy", "input_ids": [1, 2], "output_ids": [3, 4], "output_logprobs": [-0.5, -0.25],
        "weight_versions": [{"version": 0, "start": 0, "end": 2}], "messages": 2, "finish_reason": "stop",
        "started_at_s": 1.0, "finished_at_s": 2.0, "sampling": "{}", "message_digests": ["a", "b"], "trainable": True,
    }  # fmt: skip
    store = RunStore(tmp_path, writer="rollout")
    store.append("calls", [row])
    assert store.read("calls").to_pylist() == [row]
    store.fold()
    assert store.read("calls").to_pylist() == [row]
    assert store.read("calls").schema.field("output_logprobs").type == pa.list_(pa.float32())


def test_rows_can_be_deleted_by_condition(tmp_path: Path) -> None:
    store = RunStore(tmp_path, writer="control")
    store.append("events", [event(1), event(2)])
    assert delete_rows(tmp_path, "events", "time_s > 1") == 0
    store.fold()
    assert delete_rows(tmp_path, "events", "time_s > 1") == 1
    assert times(tmp_path) == [1.0]


def test_the_lock_lets_one_driver_in_and_its_helpers_beside_it(tmp_path: Path) -> None:
    driver, helper, other = RunLock(tmp_path), RunLock(tmp_path), RunLock(tmp_path)
    driver.acquire_exclusive()
    with pytest.raises(UserError, match="is being written by another gyre process"):
        other.acquire_exclusive()
    driver.acquire_shared()
    helper.acquire_shared()
    driver.release()
    with pytest.raises(UserError):
        other.acquire_exclusive(wait_s=0.1)
    helper.release()
    with other:
        other.acquire_exclusive()
