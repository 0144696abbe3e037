"""Drive `gyre run` as a person would, in a process of its own, and look into the run that it makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gyre.store.run_store import read_table

TINY = Path(__file__).parent / "tiny.jsonnet"
RUN_TIMEOUT_S = 400.0


def gyre(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gyre.cli", *arguments],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a command: the scorers of tests can be named in its pipeline."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), **(extra or {})}


def settings(values: Mapping[str, Any]) -> list[str]:
    """`--set` arguments."""
    return [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]


def run_tiny(
    run_dir: Path, *, resume: bool = False, env: Mapping[str, str] | None = None, **values: Any
) -> subprocess.CompletedProcess[str]:
    """Run the tiny pipeline to its end."""
    return gyre("run", str(TINY), "--run-dir", str(run_dir), *(["--resume"] if resume else []), *settings(values), env=env)


class LiveRun:
    """A run that is going, to be killed or interrupted."""

    def __init__(self, run_dir: Path, *, resume: bool = False, env: Mapping[str, str] | None = None, **values: Any) -> None:
        self.run_dir = run_dir
        arguments = ["run", str(TINY), "--run-dir", str(run_dir), *(["--resume"] if resume else []), *settings(values)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gyre.cli", *arguments],
            env=environment(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Of a pytest that a shell started in the background it would learn to ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_events(self, kind: str, count: int) -> None:
        """Wait until the run has noted so many events of a kind, or has ended."""
        deadline_s = time.monotonic() + RUN_TIMEOUT_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if self.run_dir.joinpath("log", "events").exists() and rows(self.run_dir, "events", f"kind = '{kind}'").num_rows >= count:
                return
            time.sleep(0.1)

    def kill(self) -> int:
        """SIGKILL the driver; its exit code (0 where it had ended before)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        return self.wait()

    def interrupt(self) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; the exit code, with everything printed in `output`."""
        self.output, _ = self.process.communicate(timeout=RUN_TIMEOUT_S)
        return self.process.returncode


def rows(run_dir: Path, table: str, where: str | None = None) -> pa.Table:
    """A table of a run, log included."""
    return read_table(run_dir, table, where=where)


def assert_verified(run_dir: Path) -> dict[str, Any]:
    """`gyre verify` must find nothing; its figures."""
    done = gyre("verify", str(run_dir), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, report["breaches"][:5]
    return report["figures"]


def assert_complete(run_dir: Path, *, steps: int, groups_per_step: int = 2) -> None:
    """The run is over: versions without a gap, every group in exactly one step, d = p = f."""
    assert rows(run_dir, "steps").sort_by("version").column("version").to_pylist() == list(range(1, steps + 1))
    consumed = rows(run_dir, "consumption").column("group_id").to_pylist()
    assert sorted(consumed) == [f"g{i:06d}" for i in range(steps * groups_per_step)]
    figures = assert_verified(run_dir)
    assert figures["d"] == figures["p"] == figures["f"]
