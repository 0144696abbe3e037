"""Scorers of tests, found by a pipeline as `scorers:NAME` with this folder on PYTHONPATH."""

from __future__ import annotations

import time
import zlib

from gyre.records import Assessment, Batch, ClosedExecution, op


@op("by_name")
def by_name(closed: Batch[ClosedExecution]) -> Batch[Assessment]:
    """Score by the execution's id alone: rewards differ within a group, whatever the policy does."""
    return Batch.of(
        Assessment,
        [
            {
                "execution_id": row["execution_id"],
                "attempt": row["attempt"],
                "designated": False,
                "valid": True,
                "score": zlib.crc32(row["execution_id"].encode()) % 11 / 10,
                "reason": "by name",
                "artifact_version": row["artifact_version"],
                "artifact_ref": row["workspace"],
                "branch": "",
                "try": 1,
                "created_at_s": time.time(),
            }
            for row in closed.rows()
        ],
    )
