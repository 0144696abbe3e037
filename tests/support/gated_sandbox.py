"""A bubblewrap sandbox whose process reaches one loopback port and nothing else, and that tells what else it tried."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gyre.rollout.process_group import ProcessEnd
from gyre.rollout.sandbox import Bind, BubblewrapSandbox

GATE = Path(__file__).with_name("loopback_gate.py")


class GatedSandbox(BubblewrapSandbox):
    """Runs commands with no network but the port of `url`; `attempts()` are the connections and names they tried beside it."""

    def __init__(self, url: str, folder: Path) -> None:
        command = shutil.which("bwrap")
        assert command is not None, "bubblewrap is not installed: make setup"
        super().__init__(command)
        self._port = urlsplit(url).port or 80
        self._folder = folder
        self._notes = folder / "attempts"

    def attempts(self) -> list[str]:
        """One line for each address or name that was tried."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def wrap(self, argv: Sequence[str], *, env: Mapping[str, str], binds: Sequence[Bind], cwd: Bind, network: bool) -> list[str]:
        """The gate in front of the command, in a network namespace of its own."""
        gate = [self.python, "-I", "-S", "/run/gate/gate.py", str(self._port), "/run/gate/socket", "/run/gate/attempts", "--", *argv]
        line = super().wrap(
            gate, env=env, binds=[*binds, Bind(source=self._folder, target="/run/gate", is_writable=True)], cwd=cwd, network=False
        )
        end = line.index("--")
        # What is not root outside must be it inside to see every packet of its own namespace.
        user = [] if os.getuid() == 0 else ["--unshare-user", "--uid", "0", "--gid", "0"]
        return [*line[:end], *user, "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_RAW", *line[end:]]

    async def run(self, argv: Sequence[str], **options: Any) -> ProcessEnd:
        """Run a command with the gate open."""
        self._folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(GATE, self._folder / "gate.py")
        server = await asyncio.start_unix_server(self._carry, self._folder / "socket")
        try:
            return await super().run(argv, **options)
        finally:
            server.close()
            (self._folder / "socket").unlink()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer), return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()  # broken here is broken there
