"""Export of a trained model: the newest checkpoint's Hugging Face folder, tokenizer included. What `gyre export RUN OUT` does."""

from __future__ import annotations

import shutil
from pathlib import Path

from gyre.errors import UserError
from gyre.training.checkpoint import Checkpoint, latest_checkpoint


def export_run(run_dir: Path, out: Path) -> Path:
    """Copy the model of a run's newest checkpoint to a new folder; nothing half-written is left under its name.

    Raises:
        UserError: the run has no checkpoint, or the folder holds something already.
    """
    if not run_dir.is_dir():
        raise UserError(f"{run_dir}: there is no such run", hint="give the run directory that gyre run printed")
    checkpoint = _newest(run_dir)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: already holds something", hint="give a new or empty folder")
    partial = out.with_name(f".{out.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    while True:
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(checkpoint.model_dir, partial)
            break
        except OSError:
            # A run that goes on deletes old checkpoints, this one perhaps while it was copied.
            if checkpoint.path.is_dir():
                raise
            checkpoint = _newest(run_dir)
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return out


def _newest(run_dir: Path) -> Checkpoint:
    checkpoint = latest_checkpoint(run_dir)
    if checkpoint is None:
        raise UserError(
            f"{run_dir}: the run has no checkpoint yet, so there is no model to export",
            hint="let the run finish a step, or export another run",
        )
    return checkpoint
