"""Kill a run and resume it: nothing lost, nothing trained twice, versions without a gap."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from support.live_run import LiveRun, assert_complete, rows, run_tiny

from gyre.killpoints import KILL_POINTS
from gyre.training.checkpoint import list_versions

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

NUM_RANDOM_KILLS = 10
LONGEST_WAIT_S = 6.0


def test_each_named_kill_point_resumes(tmp_path: Path) -> None:
    """One run is killed at every kill point, one after the other; each must really be reached."""
    run_dir = tmp_path / "run"
    steps = 2 * len(KILL_POINTS)
    for number, name in enumerate(KILL_POINTS):
        marker = tmp_path / name
        done = run_tiny(run_dir, resume=number > 0, env={"GYRE_KILL_POINT": f"{name}:{marker}"}, steps=steps)
        assert done.returncode == -9, f"{name}: {done.stdout}{done.stderr}"
        assert marker.read_text(encoding="utf-8") == name
    done = run_tiny(run_dir, resume=True, steps=steps)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(run_dir, steps=steps)
    assert rows(run_dir, "events", "kind = 'resumed'").num_rows >= len(KILL_POINTS) - 1


def test_a_run_that_keeps_one_checkpoint_goes_on_and_resumes(tmp_path: Path) -> None:
    """Killed within a burst, when the checkpoint of the published version is older than the newest."""
    run_dir, marker = tmp_path / "run", tmp_path / "killed"
    values = {"steps": 6, "mu": 3, "keep": 1}
    done = run_tiny(run_dir, env={"GYRE_KILL_POINT": f"between_checkpoint_and_steps_row:{marker}"}, **values)
    assert done.returncode == -9, done.stdout + done.stderr
    done = run_tiny(run_dir, resume=True, **values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(run_dir, steps=6)
    assert list_versions(run_dir) == [3, 6]


def test_random_kills_resume(tmp_path: Path) -> None:
    """A run is killed at ten random moments after it has begun to work; then it ends as if nothing had happened."""
    run_dir = tmp_path / "run"
    rng = random.Random(20261129)
    steps, kills = 24, 0
    while kills < NUM_RANDOM_KILLS:
        live = LiveRun(run_dir, resume=run_dir.joinpath("spec.json").exists(), steps=steps)
        live.wait_events("dispatched" if kills == 0 else "resumed", max(1, kills))
        time.sleep(rng.uniform(0.0, LONGEST_WAIT_S))
        code = live.kill()
        assert code in (-9, 0), live.output
        kills += 1
        if code == 0:
            break
    done = run_tiny(run_dir, resume=True, steps=steps)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(run_dir, steps=steps)
