"""`RUN/lock`: who may write a run.

A driver takes the lock exclusively, which proves that no other driver and no orphan of a killed one is writing; once it has, it
shares it, and each process that it starts shares it too. So a resumed run begins only after the last process of the killed one
has gone. Readers take no lock: every file of the store is safe to read at any time. The kernel drops a dead process's lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from gyre.errors import UserError

POLL_S = 0.05
"""Pause between two tries."""


class RunLock:
    """The lock of one run directory, held until `release` or the end of the process."""

    def __init__(self, run_dir: Path | str) -> None:
        self._path = Path(run_dir) / "lock"
        self._fd: int | None = None

    def acquire_exclusive(self, *, wait_s: float = 0.0) -> None:
        """Take the run for this process alone.

        Args:
            wait_s: How long to wait for the processes of a killed driver to go.

        Raises:
            UserError: somebody still writes the run.
        """
        self._acquire(fcntl.LOCK_EX, wait_s)

    def acquire_shared(self, *, wait_s: float = 0.0) -> None:
        """Join the processes of a run that is going; also turns an exclusive lock into a shared one."""
        self._acquire(fcntl.LOCK_SH, wait_s)

    def release(self) -> None:
        """Let go of the run."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _acquire(self, mode: int, wait_s: float) -> None:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    self.release()
                    raise UserError(
                        f"{self._path.parent} is being written by another gyre process",
                        hint="wait until that run ends, stop it, or give another --run-dir",
                    ) from None
                time.sleep(POLL_S)
            else:
                return
