"""What goes wrong around a run: a process of it is lost, the disk is full, engines that somebody else runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.live_run import TINY, LiveRun, assert_complete, gyre, rows, run_tiny

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

STEPS_OF_A_LONG_RUN = 30
"""A dozen steps can be over before somebody who watches the tables has seen two of them."""
MODEL = TINY.parent.parent.parent / "pipelines" / "models" / "tiny"


def processes_of(driver_pid: int, title: str) -> list[psutil.Process]:
    """Processes below the driver whose title starts so."""
    below = psutil.Process(driver_pid).children(recursive=True)
    return [p for p in below if " ".join(p.cmdline()).startswith(title)]


@pytest.mark.parametrize("title", ["ray::Cell", "ray::Pool"])
def test_a_lost_process_ends_the_run_and_it_resumes(title: str, tmp_path: Path) -> None:
    live = LiveRun(tmp_path / "run", steps=STEPS_OF_A_LONG_RUN)
    live.wait_events("updated", 2)
    assert live.process.poll() is None, live.wait() or live.output
    victims = processes_of(live.process.pid, title)
    assert victims, f"no process is called {title}"
    victims[-1].send_signal(signal.SIGKILL)
    assert live.wait() == 1, live.output
    assert "--resume" in live.output
    assert "Traceback" not in live.output
    done = run_tiny(tmp_path / "run", resume=True, steps=STEPS_OF_A_LONG_RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=STEPS_OF_A_LONG_RUN)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "gyre", str(place)], check=False).returncode:
        pytest.skip("only root can mount a small file system here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_ends_the_run_and_it_resumes(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    live = LiveRun(run_dir, steps=STEPS_OF_A_LONG_RUN)
    live.wait_events("updated", 1)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as out:
        out.write(b"\0" * (shutil.disk_usage(small_disk).free - 2**20))
    assert live.wait() == 1, live.output
    assert "No space left" in live.output
    assert "--resume" in live.output
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
    done = run_tiny(run_dir, resume=True, steps=STEPS_OF_A_LONG_RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(run_dir, steps=STEPS_OF_A_LONG_RUN)


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    """An engine that gyre did not start."""
    from gyre.rollout.engines.local import LocalEngine
    from gyre.rollout.engines.server import serve_engine

    engine = LocalEngine(MODEL, concurrency=4, context_length=2048, num_threads=1)
    server = serve_engine(engine)
    yield server.url
    server.stop()
    engine.close()


def test_an_engine_that_somebody_else_runs_serves_a_run(engine_url: str, tmp_path: Path) -> None:
    pipeline = tmp_path / "remote.jsonnet"
    pipeline.write_text(
        f"(import '{TINY}')(steps=2, mu=1, phi=0, cells=1, policy='colocate')"
        f" + {{ resources+: {{ engine: {{ kind: 'sglang', url: '{engine_url}' }} }} }}",
        encoding="utf-8",
    )
    done = gyre("run", str(pipeline), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_complete(tmp_path / "run", steps=2)
    versions = rows(tmp_path / "run", "calls").column("weight_versions").to_pylist()
    assert {span["version"] for spans in versions for span in spans} == {0, 1}


def test_an_engine_that_does_not_answer_is_named_before_anything_is_written(tmp_path: Path) -> None:
    pipeline = tmp_path / "remote.jsonnet"
    url = "http://127.0.0.1:9"
    pipeline.write_text(f"(import '{TINY}')() + {{ resources+: {{ engine: {{ kind: 'sglang', url: '{url}' }} }} }}", encoding="utf-8")
    done = gyre("run", str(pipeline), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert url in done.stderr
    assert "resources.engine.url" in done.stderr
    assert not (tmp_path / "run").exists()
