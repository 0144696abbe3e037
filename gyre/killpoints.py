"""Named places where a test may kill a run, to prove that it resumes from there.

`GYRE_KILL_POINT=name:FILE` kills the run's driver and this process with SIGKILL the first time that `name` is passed; FILE marks
that it has happened, so that the resumed run passes. Without the variable a kill point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

KILL_POINTS = (
    "after_claim",
    "after_reduction",
    "between_update_and_checkpoint",
    "between_checkpoint_and_steps_row",
    "between_steps_row_and_publication",
    "between_publication_and_dispatch",
    "between_harness_end_and_score",
    "inside_store_append",
)
"""Every name that may be given."""


def is_armed(name: str) -> bool:
    """True where `kill_point(name)` would kill now."""
    armed, _, marker = os.environ.get("GYRE_KILL_POINT", "").partition(":")
    return armed == name and not Path(marker).exists()


def kill_point(name: str) -> None:
    """Kill the run here, once, where the environment asks for it."""
    if not is_armed(name):
        return
    marker = os.environ["GYRE_KILL_POINT"].partition(":")[2]
    Path(marker).write_text(name, encoding="utf-8")
    driver = os.environ.get("GYRE_DRIVER_PID")
    if driver:
        os.kill(int(driver), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
