"""What a person sees of a run: a live line of figures on a terminal, plain lines elsewhere, the same as JSON lines in the run.

Each committed step is one line of `RUN/progress.jsonl` (any plotting tool reads it) and one printed line; between steps a terminal shows
waterlevel and the role of each cell as they change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gyre.graph.plan import Plan
from gyre.records import Store

ROLE_MARKS = {"rollout": "R", "training": "T", "leaving": ">", "returning": "<", "lost": "x"}
"""One letter per role of a cell: R rollout, T training, > and < on the way, x lost."""
NUM_STEPS_COMPARED = 3
"""Steps at each end whose mean rewards the summary compares."""


class Progress:
    """Shows a run while it goes."""

    def __init__(self, plan: Plan, run_dir: Path, *, quiet: bool) -> None:
        self._steps = plan.scheduler.steps if plan.scheduler else None
        self._file = run_dir / "progress.jsonl"
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self.num_shown = 0
        """Steps shown so far."""
        self._started_s = time.monotonic()

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live.is_started:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """Say what is going on."""
        self._console.print(Text(sentence, style="dim"))

    def show(self, status: Mapping[str, Any]) -> None:
        """Print the steps, which are new, and refresh the live line."""
        for step in status["steps"]:
            self._show_step(step, status)
            self.num_shown += 1
        if self._live.is_started:
            self._live.update(Text(self._line(status)))

    def _line(self, status: Mapping[str, Any]) -> str:
        roles = "".join(ROLE_MARKS.get(role, "?") for role in status["roles"])
        counts = f"dispatched {status['dispatched']}  launched {status['launched']}  finished {status['finished']}"
        elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - self._started_s))
        return f"{elapsed}  step {status['version']}  cells {roles}  waterlevel {status['waterlevel']}  {counts}"

    def catch_up(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Write the lines of committed steps that an interrupted driver did not live to see; waterlevel and roles are not known."""
        known = set()
        if self._file.exists():
            lines = self._file.read_text(encoding="utf-8").splitlines()
            known = {json.loads(line)["version"] for line in lines if line.endswith("}")}  # the last one may be torn
        for step in steps:
            if step["version"] not in known:
                self._write(step, waterlevel=None, roles=None)

    def _write(self, step: Mapping[str, Any], *, waterlevel: int | None, roles: list[str] | None) -> None:
        figures = {
            **{name: step[name] for name in ("version", "reward_mean", "loss", "grad_norm", "staleness_mean", "duration_s")},
            **{name: step[name] for name in ("target_tokens", "executions", "clipped", "cells", "time_s")},
            "waterlevel": waterlevel,
            "roles": roles,
        }
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(figures) + "\n")

    def _show_step(self, step: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self._write(step, waterlevel=status["waterlevel"], roles=status["roles"])
        reward = "-" if step["reward_mean"] is None else f"{step['reward_mean']:.3f}"
        of = f"/{self._steps}" if self._steps else ""
        roles = "".join(ROLE_MARKS.get(role, "?") for role in status["roles"])
        self._console.print(
            f"step {step['version']:>3}{of}  reward {reward}  staleness {step['staleness_mean']:.2f}  "
            f"grad {step['grad_norm']:.3f}  clipped {step['clipped']:>2}  cells trained {step['cells']}  "
            f"now {roles}  waterlevel {status['waterlevel']:>3}  {step['duration_s']:.1f} s",
            soft_wrap=True,
        )


class Summary(NamedTuple):
    """How a run ended, for people and for programs."""

    sentence: str
    """One line."""
    figures: dict[str, Any]
    """The same as data."""


def summary(store: Store) -> Summary:
    """Compare the rewards of the first and the last steps; of an evaluation, say the mean score."""
    steps = store.read("steps").sort_by("version")
    scored = store.read("assessments", where="designated")
    if not steps.num_rows:
        return _evaluation_summary(scored)
    rewards = [r for r in steps.column("reward_mean").to_pylist() if r is not None]
    count = min(NUM_STEPS_COMPARED, len(rewards))
    if not count:
        return Summary(f"{steps.num_rows} steps, no valid reward", {"steps": steps.num_rows})
    first, last = sum(rewards[:count]) / count, sum(rewards[-count:]) / count
    figures = {"steps": steps.num_rows, "reward_first": first, "reward_last": last, "executions": scored.num_rows}
    sentence = (
        f"mean reward {first:.3f} over the first {count} steps, {last:.3f} over the last {count} "
        f"({last - first:+.3f} after {steps.num_rows} steps, {scored.num_rows} executions)"
    )
    return Summary(sentence, figures)


def _evaluation_summary(scored: pa.Table) -> Summary:
    scores = [s for s in scored.column("score").to_pylist() if s is not None]
    if not scores:
        return Summary("no execution has a score yet", {"executions": scored.num_rows})
    mean = sum(scores) / len(scores)
    return Summary(
        f"mean score {mean:.3f} of {len(scores)} executions ({scored.num_rows - len(scores)} without a valid score)",
        {"executions": scored.num_rows, "score_mean": mean},
    )
