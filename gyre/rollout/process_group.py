"""Start a command as a process group of its own, wait for its leader, and leave nothing of the group behind.

Waits on a pidfd: no thread, no polling. At the deadline, and when the caller is cancelled, the whole group is killed; a command
that cannot start is a result with a reason, never an exception. Under `sandbox`, which decides what the command sees.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple


class ProcessEnd(NamedTuple):
    """How a sandboxed run ended."""

    exit_code: int | None
    """None where it did not start or was killed at the deadline; negative: killed by that signal."""
    is_timeout: bool
    """Killed at the deadline."""
    reason: str
    """One sentence for people."""

    @property
    def is_started(self) -> bool:
        """Whether the command ran at all."""
        return self.exit_code is not None or self.is_timeout


async def run_group(
    line: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    deadline_s: float,
    files: tuple[Path | None, Path, Path],
) -> ProcessEnd:
    """Start a process group and wait for its leader; whatever happens, nothing of the group is left."""
    stdin, stdout, stderr = files
    with ExitStack() as stack:
        streams = [stack.enter_context(open(stdin or os.devnull, "rb"))]
        streams += [stack.enter_context(open(path, "ab")) for path in (stdout, stderr)]
        try:
            process = subprocess.Popen(
                line,
                env=dict(env),
                cwd=cwd,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:  # ValueError: an argument with a NUL
            return ProcessEnd(None, False, f"{line[0]} could not be started: {error}")
    is_timeout = False
    try:
        is_timeout = not await _wait_exit(process.pid, deadline_s)
    finally:
        _kill_group(process.pid)
        exit_code = process.wait()
    if is_timeout:
        return ProcessEnd(None, True, f"killed at its deadline of {deadline_s:g} s")
    return ProcessEnd(exit_code, False, f"exit code {exit_code}" if exit_code >= 0 else f"killed by signal {-exit_code}")


async def _wait_exit(pid: int, deadline_s: float) -> bool:
    """Wait until a child has exited; False at the deadline. A pidfd costs no thread and no polling."""
    loop = asyncio.get_running_loop()
    has_exited = asyncio.Event()
    handle = os.pidfd_open(pid)
    loop.add_reader(handle, has_exited.set)
    try:
        await asyncio.wait_for(has_exited.wait(), max(deadline_s, 0.0))
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _kill_group(pid: int) -> None:
    """Kill what is left of a group. Its leader is not reaped yet, so its number cannot belong to anyone else."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
