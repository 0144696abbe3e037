"""The loop on a real Ray, tiny: what a run leaves behind, the baselines, evaluation, broken harnesses, Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.live_run import LiveRun, assert_complete, assert_verified, gyre, rows, run_tiny

MAKE_KATAS = Path(__file__).parents[2] / "scripts" / "make_katas.py"

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def elastic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("elastic") / "run"
    done = run_tiny(run_dir, steps=6)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean reward" in done.stdout
    return run_dir


def test_an_elastic_run_leaves_a_store_that_verifies(elastic_run: Path) -> None:
    assert_complete(elastic_run, steps=6)
    kinds = set(rows(elastic_run, "events").column("kind").to_pylist())
    assert {"dispatched", "to_training", "to_rollout", "joined", "updated", "published", "window_closed"} <= kinds
    assert rows(elastic_run, "publications", "confirmed").num_rows > 0
    assert not (elastic_run / "quarantine.jsonl").exists()


def test_logprobs_agree_with_the_trainer(elastic_run: Path) -> None:
    figures = assert_verified(elastic_run)
    assert figures["recomputed_targets"] > 0
    assert figures["logprob_abs_diff_mean"] <= 1e-3
    assert figures["logprob_abs_diff_p999"] <= 2e-2


def test_a_run_directory_is_used_once(elastic_run: Path) -> None:
    done = run_tiny(elastic_run, steps=6)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_resume_refuses_a_changed_pipeline(elastic_run: Path) -> None:
    done = run_tiny(elastic_run, resume=True, steps=7)
    assert done.returncode == 2
    assert "steps" in done.stderr


def test_progress_is_kept_as_json_lines(elastic_run: Path) -> None:
    lines = [json.loads(line) for line in (elastic_run / "progress.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_another_package_scores_a_finished_run(elastic_run: Path) -> None:
    done = gyre("rescore", str(elastic_run), "--scorer", "my_scorers/coverage", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["executions"] == 24
    assert_verified(elastic_run)


def test_a_run_exports_a_hugging_face_folder(elastic_run: Path, tmp_path: Path) -> None:
    done = gyre("export", str(elastic_run), str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names


BASELINES = [
    {"policy": "async", "mu": 1, "phi": 1},
    {"policy": "colocate", "phi": 0},
    {"policy": "colocate", "phi": 0, "mu": 1, "cells": 1},
]


@pytest.mark.parametrize("values", BASELINES)
def test_baselines_train_the_same_groups(values: dict[str, object], tmp_path: Path) -> None:
    done = run_tiny(tmp_path / "run", steps=4, **values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=4)


def test_evaluation_scores_without_training(tmp_path: Path) -> None:
    done = run_tiny(tmp_path / "run", steps=2, train=False, scorer="my_scorers/coverage")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean score" in done.stdout
    assert rows(tmp_path / "run", "assessments", "designated").num_rows == 8
    assert rows(tmp_path / "run", "steps").num_rows == 0
    assert_verified(tmp_path / "run")


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("import sys; sys.exit(7)", "failed"),
        ("import time; time.sleep(600)", "timeout"),
        (
            "import os, urllib.request as u\n"
            'for body in (b\'{\', b\'[]\', b\'{"messages": 3}\', b\'{"model": "m", "messages": [{"role": 5}]}\'):\n'
            "    r = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body, {'Content-Type': 'application/json'})\n"
            "    try: u.urlopen(r)\n"
            "    except Exception as e: print(e)\n",
            "completed",
        ),
    ],
    ids=["exits at once", "hangs", "malformed requests"],
)
def test_a_broken_harness_costs_its_executions_never_the_run(script: str, status: str, tmp_path: Path) -> None:
    harness = {"command": ["{python}", "-c", script], "deadline_s": 3}
    done = run_tiny(tmp_path / "run", steps=2, harness=harness)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=2)
    assert set(rows(tmp_path / "run", "executions").column("status").to_pylist()) == {status}


def test_surplus_executions_are_cancelled_and_counted(tmp_path: Path) -> None:
    done = run_tiny(tmp_path / "run", steps=2, oversample=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=2)
    assert rows(tmp_path / "run", "executions").num_rows == 16
    consumed = rows(tmp_path / "run", "consumption").to_pylist()
    assert all(row["valid"] >= 2 and row["valid"] + row["cancelled"] == 4 for row in consumed)
    assert rows(tmp_path / "run", "assessments", "designated").num_rows == 16


def test_half_done_work_scores_after_a_timeout(tmp_path: Path) -> None:
    """A task that does not ask for the finish marker: what the killed harness left behind gets its share of the cases."""
    made = subprocess.run(
        [sys.executable, str(MAKE_KATAS), "--rounds", "1", "--no-finish-marker", "--out", str(tmp_path / "katas")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    larger = next(path for path in sorted((tmp_path / "katas").iterdir()) if path.name.endswith("-larger"))
    plus = (larger / "instruction.md").read_text(encoding="utf-8").split()[-1]
    half_done = f"def solve(x, y):\n    return x + {plus}\n"
    script = f"import time; open('solution.py', 'w').write({half_done!r}); time.sleep(600)"
    harness = {"command": ["{python}", "-c", script], "deadline_s": 3}
    done = run_tiny(tmp_path / "run", steps=1, mu=1, phi=0, tasks=str(larger), scorer="task_verifier", harness=harness)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(rows(tmp_path / "run", "executions").column("status").to_pylist()) == {"timeout"}
    scores = rows(tmp_path / "run", "assessments", "designated and valid").column("score").to_pylist()
    assert len(scores) == 4
    assert all(0.0 < score < 1.0 for score in scores)


def test_interrupt_ends_cleanly_and_resumes(tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "run", steps=8)
    live.wait_events("updated", 2)
    assert live.interrupt() == 130, live.output
    assert "--resume" in live.output
    done = run_tiny(tmp_path / "run", resume=True, steps=8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=8)
