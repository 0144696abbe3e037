"""The first moments of a run, before there is anything of it to resume from. Ray is not started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.graph.rundir import has_begun
from gyre.graph.spec import load_spec
from gyre.runtime import run as runtime_run

QUICKSTART = Path(__file__).parents[3] / "pipelines" / "quickstart.jsonnet"


def test_a_run_killed_while_it_copied_its_model_begins_anew_with_resume(tmp_path, monkeypatch):
    driven: list[Any] = []

    def drive(graph: Any, plan: Any, run_dir: Path, store: Any, state: Any, *more: Any) -> int:
        driven.append((state, has_begun(run_dir)))
        return 0

    def killed(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        raise KeyboardInterrupt

    spec, run_dir = load_spec(QUICKSTART), tmp_path / "run"
    monkeypatch.setattr(runtime_run, "_drive", drive)
    with monkeypatch.context() as patched:
        patched.setattr(runtime_run, "_copy_model", killed)
        with pytest.raises(KeyboardInterrupt):
            runtime_run.run_pipeline(spec, run_dir=run_dir)
    assert not has_begun(run_dir)
    assert runtime_run.run_pipeline(spec, run_dir=run_dir, resume=True) == 0
    assert driven == [(None, True)]
    assert (run_dir / "checkpoints" / "0" / "model" / "config.json").is_file()
