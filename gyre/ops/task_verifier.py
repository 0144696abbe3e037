"""`task_verifier`: the scorer that runs a task's own `tests/test.sh` on the preserved workspace (paper section 5.2).

It knows nothing of how the execution ended: what counts is the workspace. One call is one try.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Literal

from gyre.records import Assessment, Batch, ClosedExecution, Store, op


@op("task_verifier")
class TaskVerifier:
    """Score with the task's own verifier (Harbor: `tests/test.sh` writes `/logs/verifier/reward.txt` or `reward.json`)."""

    def __init__(self, *, timeout_s: float | None = None, sandbox: Literal["auto", "bubblewrap", "process"] = "auto", store: Store) -> None:
        """Take the limits of a verification.

        Args:
            timeout_s: longest verification, in seconds; None takes the task's own `[verifier] timeout_sec`.
            sandbox: where tests run; 'auto' takes bubblewrap where it is installed.
            store: the run.
        """
        from gyre.rollout.sandbox import choose_sandbox

        self.timeout_s = timeout_s
        self.sandbox = choose_sandbox(sandbox).sandbox
        self.run_dir = store.run_dir

    async def run(self, closed: Batch[ClosedExecution]) -> Batch[Assessment]:
        """Verify each preserved workspace once."""
        from gyre.rollout.verifier import verify_workspace

        rows = []
        for row in closed.rows():
            config = json.loads(row["config"])
            verdict = await verify_workspace(
                Path(row["task_path"]),
                self.run_dir / row["workspace"],
                deadline_s=self.timeout_s or config.get("verifier_timeout_s") or 600.0,
                sandbox=self.sandbox,
                logs_dir=self.run_dir / "logs" / row["execution_id"],
                workdir=config.get("workdir") or "/app",
                env=config.get("verifier_env"),
            )
            rows.append(
                {
                    "execution_id": row["execution_id"],
                    "attempt": row["attempt"],
                    "designated": False,
                    "valid": verdict.valid,
                    "score": verdict.score if verdict.valid else None,
                    "reason": verdict.reason,
                    "artifact_version": row["artifact_version"],
                    "artifact_ref": row["workspace"],
                    "branch": "",
                    "try": 1,
                    "created_at_s": time.time(),
                }
            )
        return Batch.of(Assessment, rows)
