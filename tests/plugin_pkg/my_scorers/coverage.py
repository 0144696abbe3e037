"""`my_scorers/coverage`: how much of the solution file is more than blank lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.records import Assessment, Batch, ClosedExecution, Store, op


@op("coverage")
class Coverage:
    """Score the share of lines of a file that are not blank; a missing file scores 0."""

    def __init__(self, *, file: str = "solution.py", weight: float = 1.0, store: Store) -> None:
        """Take the settings.

        Args:
            file: the file, relative to the workspace.
            weight: what a full score is worth.
            store: the run.
        """
        self.file = file
        self.weight = weight
        self.run_dir = store.run_dir

    def run(self, closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        """Score each closed execution once."""
        return Batch.of(Assessment, [self._assess(row) for row in closed.rows()])

    def _assess(self, row: Mapping[str, Any]) -> dict[str, Any]:
        share = share_of_lines(self.run_dir / row["workspace"] / self.file)
        return {
            "execution_id": row["execution_id"],
            "attempt": row["attempt"],
            "designated": False,
            "valid": True,
            "score": self.weight * share,
            "reason": f"{share:.0%} of the lines of {self.file} are not blank",
            "artifact_version": row["artifact_version"],
            "artifact_ref": row["workspace"],
            "branch": "",
            "try": 1,
            "created_at_s": time.time(),
        }


def share_of_lines(path: Path) -> float:
    """Share of lines that are not blank; 0 where the file is missing or empty."""
    if not path.is_file():
        return 0.0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(bool(line.strip()) for line in lines) / len(lines) if lines else 0.0
