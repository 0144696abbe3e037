"""Where a harness and a verifier run: a private view of the machine with a deadline.

Two backends with one surface. `bubblewrap` gives the process its own file tree (the system and Python read-only, what is bound,
and an empty /tmp), its own process and IPC namespaces and, on request, no network; everything it started dies with it. Started by
root, it gives its processes no more than a plain user has: neither capabilities nor the kernel's settings.
`process` is the fallback where bubblewrap is missing: the same clean environment, process group and limits, but the machine's
own file tree, so a bound folder is seen under its real path (`Sandbox.inside` says under which) and a child that leaves the
process group can outlive the run.

Invariants: the environment holds only what is given here; at the deadline, and when the caller is cancelled, the whole group is
killed; a run that could not start is a result with a reason, never an exception.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from gyre.rollout.process_group import ProcessEnd, run_group

PROBE_TIMEOUT_S = 10.0
"""A bubblewrap start costs about 10 ms; a machine that needs longer than this cannot use it."""

DEFAULT_FILE_BYTES = 1 << 30
"""Largest file a sandboxed process may write: a runaway log must not fill the run's disk."""

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Beside /usr and /etc; symbolic links into /usr on merged systems, folders of their own on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file of the host that the process sees."""

    source: Path
    """On the host."""
    target: str
    """Absolute path inside."""
    is_writable: bool = False
    """False: read-only (bubblewrap only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use. None means no limit."""

    memory_bytes: int | None = None
    """Address space of each process."""
    file_bytes: int | None = DEFAULT_FILE_BYTES
    """Size of each file it writes."""
    cpu_s: int | None = None
    """Processor seconds of each process."""


NO_EXTRA_LIMITS = Limits()


class Sandbox(Protocol):
    """A way to run a command away from the run's own files."""

    @property
    def name(self) -> str:
        """'bubblewrap' or 'process'."""
        ...

    @property
    def python(self) -> str:
        """Path of a Python interpreter inside."""
        ...

    def inside(self, bind: Bind) -> str:
        """Path under which the process sees a bind."""
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        binds: Sequence[Bind],
        cwd: Bind,
        deadline_s: float,
        stdout: Path,
        stderr: Path,
        stdin: Path | None = None,
        network: bool = False,
        limits: Limits = NO_EXTRA_LIMITS,
    ) -> ProcessEnd:
        """Run a command to its end or its deadline (seconds from now); output goes to the two files."""
        ...


def python_command() -> str:
    """The real interpreter behind this one: no virtual environment, no version manager's shim (whose start costs more)."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def base_environment(home: str) -> dict[str, str]:
    """The environment every sandboxed process starts from."""
    return {
        "PATH": f"{os.path.dirname(python_command())}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


class BubblewrapSandbox:
    """Runs commands under bubblewrap."""

    name = "bubblewrap"

    def __init__(self, command: str) -> None:
        self.python = python_command()
        alone = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
        self._prefix = [command, *_system_view(), *_without_root_rights(), *alone]

    def inside(self, bind: Bind) -> str:
        """Path under which the process sees a bind: its target."""
        return bind.target

    def wrap(self, argv: Sequence[str], *, env: Mapping[str, str], binds: Sequence[Bind], cwd: Bind, network: bool) -> list[str]:
        """The command line of one run; pure, so that a test can read it."""
        line = list(self._prefix)
        if not network:
            line.append("--unshare-net")
        for bind in [cwd, *(b for b in binds if b != cwd)]:
            line += ["--bind" if bind.is_writable else "--ro-bind", str(bind.source), bind.target]
        line.append("--clearenv")
        for key, value in {**base_environment("/tmp"), **env}.items():
            line += ["--setenv", key, value]
        return [*line, "--chdir", cwd.target, "--", *argv]

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        binds: Sequence[Bind],
        cwd: Bind,
        deadline_s: float,
        stdout: Path,
        stderr: Path,
        stdin: Path | None = None,
        network: bool = False,
        limits: Limits = NO_EXTRA_LIMITS,
    ) -> ProcessEnd:
        """Run a command to its end or its deadline."""
        missing = [str(b.source) for b in [cwd, *binds] if not b.source.exists()]
        if missing:
            return ProcessEnd(None, False, f"{missing[0]} does not exist, so it cannot be bound into the sandbox")
        line = self.wrap(argv, env=env, binds=binds, cwd=cwd, network=network)
        return await run_group([*_limit_prefix(limits), *line], env={}, cwd=None, deadline_s=deadline_s, files=(stdin, stdout, stderr))


class ProcessSandbox:
    """Runs commands as plain process groups: a clean environment and limits, but no file tree of its own."""

    name = "process"

    def __init__(self) -> None:
        self.python = python_command()

    def inside(self, bind: Bind) -> str:
        """Path under which the process sees a bind: its real one."""
        return str(bind.source)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        binds: Sequence[Bind],
        cwd: Bind,
        deadline_s: float,
        stdout: Path,
        stderr: Path,
        stdin: Path | None = None,
        network: bool = False,
        limits: Limits = NO_EXTRA_LIMITS,
    ) -> ProcessEnd:
        """Run a command to its end or its deadline."""
        with tempfile.TemporaryDirectory(prefix="gyre-home-") as home:
            return await run_group(
                [*_limit_prefix(limits), *_die_with_parent_prefix(), *argv],
                env={**base_environment(home), "TMPDIR": home, **env},
                cwd=cwd.source,
                deadline_s=deadline_s,
                files=(stdin, stdout, stderr),
            )


class SandboxChoice(NamedTuple):
    """The sandbox of a run and, where it is not what was asked for, the sentence that says so."""

    sandbox: Sandbox
    notice: str
    """Empty where nothing fell back."""


def choose_sandbox(kind: str = "auto") -> SandboxChoice:
    """Find the sandbox of a run once, at its start.

    Args:
        kind: 'auto' takes bubblewrap where it works, else processes; 'bubblewrap' and 'process' insist.

    Raises:
        ValueError: bubblewrap was insisted on and does not work here, or the kind is unknown.
    """
    if kind not in ("auto", "bubblewrap", "process"):
        raise ValueError(f"sandbox {kind!r} is unknown; write 'auto', 'bubblewrap' or 'process'")
    if kind == "process":
        return SandboxChoice(ProcessSandbox(), "")
    command, trouble = _probe_bubblewrap()
    if command:
        return SandboxChoice(BubblewrapSandbox(command), "")
    if kind == "bubblewrap":
        raise ValueError(f"the bubblewrap sandbox does not work here: {trouble}")
    return SandboxChoice(
        ProcessSandbox(), f"bubblewrap does not work here ({trouble}); harnesses and tests run as plain processes instead."
    )


def open_sandbox(kind: str = "auto") -> Sandbox:
    """`choose_sandbox`, with what fell back said once in the log."""
    choice = choose_sandbox(kind)
    if choice.notice:
        logging.getLogger(__name__).warning(choice.notice)
    return choice.sandbox


def _probe_bubblewrap() -> tuple[str, str]:
    """Path of a working bubblewrap and '', or '' and what is wrong."""
    command = shutil.which("bwrap")
    if command is None:
        return "", "it is not installed; Debian's package is called bubblewrap"
    probe = [*BubblewrapSandbox(command)._prefix, "--unshare-net", "--", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return (command, "") if done.returncode == 0 else ("", (done.stderr.strip().splitlines() or ["it failed"])[-1])


def _system_view() -> list[str]:
    """Bubblewrap arguments for the read-only system: /usr, /etc, the interpreter, fresh /proc, /dev and /tmp."""
    line = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            line += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            line += ["--ro-bind", folder, folder]
    prefix = os.path.dirname(os.path.dirname(python_command()))
    if not prefix.startswith("/usr"):
        line += ["--ro-bind", prefix, prefix]
    return [*line, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


def _without_root_rights() -> list[str]:
    """Bubblewrap arguments that take from root what makes the read-only view no view: with capabilities it could mount /usr writable.

    The kernel's settings are written by user 0 without any capability, and some name programs that the kernel starts outside.
    """
    if os.geteuid() != 0:
        return []
    sealed = [path for path in ("/proc/sys", "/proc/sysrq-trigger") if os.path.exists(path)]
    return ["--cap-drop", "ALL", *(word for path in sealed for word in ("--ro-bind", path, path))]


def _limit_prefix(limits: Limits) -> list[str]:
    """`prlimit` in front of a command: set before exec, so no fork in a threaded parent is needed."""
    flags = [
        *([f"--as={limits.memory_bytes}"] if limits.memory_bytes else []),
        *([f"--fsize={limits.file_bytes}"] if limits.file_bytes else []),
        *([f"--cpu={limits.cpu_s}"] if limits.cpu_s else []),
    ]
    command = shutil.which("prlimit")
    return [command, *flags, "--core=0", "--"] if command and flags else []


def _die_with_parent_prefix() -> list[str]:
    command = shutil.which("setpriv")
    return [command, "--pdeathsig", "KILL", "--"] if command else []
