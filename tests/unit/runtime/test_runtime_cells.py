"""A cell without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gyre.errors import UserError
from gyre.runtime.cells import Cell, CellSpec
from gyre.store.lock import RunLock


def standalone_spec(run_dir: Path) -> CellSpec:
    return CellSpec(
        name="standalone0",
        index=-1,
        num_cells=1,
        concurrency=1,
        engine_kind="local",
        engine={},
        engine_url=None,
        run_dir=run_dir,
        model_dir=run_dir,
        published_version=0,
        context_limit=64,
        temperature=1.0,
        threads=1,
        seed=0,
        trains=False,
        learner=None,
        is_remote=False,
        protocol="tcp",
        network_device="",
    )


@pytest.mark.torch
async def test_nobody_else_writes_a_run_while_a_cell_of_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core of a killed run may be inside a checkpoint; a resumed run that began meanwhile would find two of one version."""
    monkeypatch.setattr("gyre.runtime.engines.open_engine", lambda spec, host: (None, SimpleNamespace(url="http://engine")))
    cell = Cell(spec=standalone_spec(tmp_path))
    assert await cell.start() == "http://engine"
    with pytest.raises(UserError, match="is being written by another gyre process"):
        RunLock(tmp_path).acquire_exclusive()
