"""Bringing a killed run back to its last commit point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.runtime.resume import reconcile
from gyre.scheduler.config import SchedulerConfig
from gyre.store.run_store import RunStore
from gyre.training.checkpoint import write_checkpoint

NUMBERS = ("executions", "target_tokens", "clipped", "loss", "grad_norm", "reward_mean", "staleness_mean", "duration_s", "time_s")
STEP: dict[str, Any] = {"version": 1, "group_ids": ["g000000"], "cells": [0], **dict.fromkeys(NUMBERS, 1)}
CONSUMPTION = {"group_id": "g000000", "step_version": 1, "v_d": 0, "v_t": 0, "valid": 1, "unresolved": 0, "placeholders": 0, "cancelled": 0}
PROMISED: list[tuple[str, dict[str, Any]]] = [
    ("consumption", CONSUMPTION),
    ("steps", STEP),
    ("events", {"time_s": 1.0, "kind": "updated", "cell": 0, "detail": json.dumps({"version": 1, "cells": [0]})}),
]


@pytest.mark.parametrize("num_written", range(len(PROMISED) + 1))
def test_what_the_checkpoint_promises_is_there_once_wherever_the_kill_fell(tmp_path: Path, num_written: int) -> None:
    write_checkpoint(tmp_path, 1, save=lambda folder: None, state={"step": STEP, "consumption": [CONSUMPTION]})
    store = RunStore(tmp_path, writer="control")
    for table, row in PROMISED[:num_written]:
        store.append(table, [row])
    store.close()
    for life in range(2):
        resumed = RunStore(tmp_path, writer=f"driver{life}")
        state = reconcile(tmp_path, resumed, SchedulerConfig(groups_per_step=1, group_size=1, steps=2))
        resumed.close()
        assert (state.version, state.num_consumed_groups) == (1, 1)
    assert [store.read(table).num_rows for table, _ in PROMISED] == [1, 1, 1]
