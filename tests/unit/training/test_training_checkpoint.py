"""Checkpoints are whole or absent; export copies the newest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.errors import StoreError, UserError
from gyre.training import checkpoint
from gyre.training.checkpoint import (
    latest_checkpoint,
    list_versions,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from gyre.training.export import export_run


def save(folder: Path, text: str = "weights") -> None:
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_text(text)
    (folder / "optimizer.pt").write_text("moments")


def write(run: Path, version: int, text: str = "weights") -> None:
    write_checkpoint(run, version, save=lambda folder: save(folder, text), state={"consumed": ["g000000"]})


def test_a_written_checkpoint_is_found(tmp_path: Path):
    assert latest_checkpoint(tmp_path) is None
    for version in (2, 10, 9):
        write(tmp_path, version)
    assert list_versions(tmp_path) == [2, 9, 10]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert (latest.version, latest.state) == (10, {"consumed": ["g000000"], "version": 10})
    assert (latest.model_dir / "model.safetensors").read_text() == "weights"


def test_a_failed_save_leaves_nothing_under_the_name(tmp_path: Path):
    write(tmp_path, 1)

    def fail(folder: Path) -> None:
        save(folder)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write_checkpoint(tmp_path, 2, save=fail, state={})
    assert list_versions(tmp_path) == [1]
    write(tmp_path, 2)
    assert list_versions(tmp_path) == [1, 2]


def test_one_of_the_same_version_is_replaced(tmp_path: Path):
    write(tmp_path, 1, "old")
    write(tmp_path, 1, "new")
    assert (read_checkpoint(tmp_path, 1).model_dir / "model.safetensors").read_text() == "new"


def test_only_the_newest_are_kept(tmp_path: Path):
    for version in range(5):
        write(tmp_path, version)
    (tmp_path / "checkpoints" / ".partial-9").mkdir()
    assert prune_checkpoints(tmp_path, keep=None) == []
    assert prune_checkpoints(tmp_path, keep=2) == [0, 1, 2]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]
    with pytest.raises(ValueError, match="nothing to resume from"):
        prune_checkpoints(tmp_path, keep=0)


def test_the_published_version_is_kept_within_a_burst(tmp_path: Path):
    """A resumed run, and a cell that comes back before the burst's end, serve it from its checkpoint."""
    for version in range(6):
        write(tmp_path, version)
    assert prune_checkpoints(tmp_path, keep=1, published_version=3) == [0, 1, 2, 4]
    assert list_versions(tmp_path) == [3, 5]


def test_a_kill_while_a_checkpoint_is_deleted_leaves_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for version in range(3):
        write(tmp_path, version)

    def killed(folder: Path, ignore_errors: bool) -> None:
        (folder / "model" / "model.safetensors").unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_checkpoints(tmp_path, keep=1)
    assert all((read_checkpoint(tmp_path, v).model_dir / "model.safetensors").is_file() for v in list_versions(tmp_path))
    prune_checkpoints(tmp_path, keep=1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_an_absent_version_is_a_sentence(tmp_path: Path):
    with pytest.raises(StoreError, match="no whole checkpoint of version 4"):
        read_checkpoint(tmp_path, 4)


def test_export_copies_the_newest_model(tmp_path: Path):
    run, out = tmp_path / "run", tmp_path / "deep" / "out"
    with pytest.raises(UserError, match="there is no such run"):
        export_run(run, out)
    run.mkdir()
    with pytest.raises(UserError, match="no checkpoint yet"):
        export_run(run, out)
    write(run, 1, "old")
    write(run, 2, "new")
    assert export_run(run, out) == out
    assert (out / "model.safetensors").read_text() == "new"
    with pytest.raises(UserError, match="already holds something"):
        export_run(run, out)
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_export_takes_the_next_checkpoint_when_the_run_deletes_the_one_it_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, copytree = tmp_path / "run", shutil.copytree
    write(run, 1, "old")

    def overtaken(source: Path, target: Path) -> None:
        copytree(source, target)
        if source.parent.name == "1":
            write(run, 2, "new")
            prune_checkpoints(run, keep=1)
            raise shutil.Error([(str(source / "config.json"), str(target), "no such file")])

    monkeypatch.setattr("gyre.training.export.shutil.copytree", overtaken)
    assert (export_run(run, tmp_path / "out") / "model.safetensors").read_text() == "new"


def test_reading_checkpoints_imports_no_torch():
    code = "import sys, gyre.training.export, gyre.training.hf; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
