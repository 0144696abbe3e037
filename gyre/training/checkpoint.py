"""Checkpoints of a run: `RUN/checkpoints/<version>/` with `model/`, `optimizer.pt` and `state.json`.

A checkpoint is the commit point of a step: it is either wholly there under its version's name or not there. It is written into a
temporary folder, every file is flushed to the disk, and the folder is renamed into place. `state.json` carries what the scheduler
needs to go on (counters, consumed group ids, version). On resume the newest checkpoint decides, and the store is reconciled to it.

This file imports no torch, so that reading a run's state stays cheap.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gyre.errors import StoreError


class Checkpoint(NamedTuple):
    """One whole checkpoint on the disk."""

    version: int
    """Policy version of its weights."""
    path: Path
    """Its folder."""
    state: dict[str, Any]
    """What `state.json` says."""

    @property
    def model_dir(self) -> Path:
        """Hugging Face folder of the weights."""
        return self.path / "model"


def checkpoints_dir(run_dir: Path) -> Path:
    """Folder of a run's checkpoints."""
    return run_dir / "checkpoints"


def write_checkpoint(run_dir: Path, version: int, *, save: Callable[[Path], None], state: Mapping[str, Any]) -> Checkpoint:
    """Write a checkpoint so that it is wholly there or not there; one of the same version is replaced.

    Args:
        run_dir: of the run.
        version: policy version of the weights.
        save: writes `model/` and `optimizer.pt` into the folder it is given (`MegatronLearner.save_checkpoint`).
        state: counters, consumed group ids and the like; JSON.
    """
    parent = checkpoints_dir(run_dir)
    parent.mkdir(parents=True, exist_ok=True)
    final, partial, old = parent / str(version), parent / f".partial-{version}", parent / f".old-{version}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save(partial)
    content = {**state, "version": version}
    (partial / "state.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    _flush_tree(partial)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial.rename(final)
    _flush(parent)
    shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(version, final, content)


def list_versions(run_dir: Path) -> list[int]:
    """Versions with a whole checkpoint, oldest first."""
    parent = checkpoints_dir(run_dir)
    if not parent.is_dir():
        return []
    return sorted(int(p.name) for p in parent.iterdir() if p.name.isdecimal() and (p / "state.json").is_file())


def read_checkpoint(run_dir: Path, version: int) -> Checkpoint:
    """Read a checkpoint's state.

    Raises:
        StoreError: there is no whole checkpoint of this version.
    """
    path = checkpoints_dir(run_dir) / str(version)
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: no whole checkpoint of version {version} ({error})") from error
    return Checkpoint(version, path, state)


def latest_checkpoint(run_dir: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None where there is none."""
    versions = list_versions(run_dir)
    return read_checkpoint(run_dir, versions[-1]) if versions else None


def prune_checkpoints(run_dir: Path, *, keep: int | None, published_version: int | None = None) -> list[int]:
    """Delete all but the newest `keep` checkpoints (None keeps all) and leftovers of crashes; returns what was deleted.

    The published version's checkpoint stays as well: within a burst newer ones are there, and a resumed run, or a cell that comes
    back, serves the published one from the disk. Each checkpoint leaves its name before it is deleted, so none is ever seen in part.
    """
    parent = checkpoints_dir(run_dir)
    if parent.is_dir():
        for leftover in [*parent.glob(".partial-*"), *parent.glob(".old-*")]:
            shutil.rmtree(leftover, ignore_errors=True)
    if keep is None:
        return []
    if keep < 1:
        raise ValueError(f"keep={keep} would leave nothing to resume from; keep at least one checkpoint")
    doomed = [version for version in list_versions(run_dir)[:-keep] if version != published_version]
    for version in doomed:
        old = parent / f".old-{version}"
        (parent / str(version)).rename(old)
        shutil.rmtree(old, ignore_errors=True)
    return doomed


def _flush_tree(folder: Path) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            _flush(Path(directory) / name)
        _flush(Path(directory))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
