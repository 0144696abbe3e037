"""The gate in front of the clients sees what they try: without this, 'nothing was tried' would mean little."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.gated_sandbox import GatedSandbox

from gyre.rollout.sandbox import Bind

pytestmark = pytest.mark.harness

TRIES = """
import socket, sys, urllib.request
print(urllib.request.urlopen(sys.argv[1]).read().decode())
for address in ("192.0.2.1", "2001:db8::1"):
    try:
        socket.create_connection((address, 443), timeout=2)
    except OSError as error:
        print("refused", address)
try:
    socket.getaddrinfo("updates.example.invalid", 443)
except OSError as error:
    print("unknown")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x" * 20, ("192.0.2.2", 8125))
"""


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def test_the_gate_lets_one_port_through_and_notes_the_rest(tmp_path: Path) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sandbox = GatedSandbox(url, tmp_path / "gate")
    (tmp_path / "app").mkdir()
    cwd = Bind(source=tmp_path / "app", target="/app", is_writable=True)
    out, err = tmp_path / "out", tmp_path / "err"
    end = await sandbox.run([sandbox.python, "-c", TRIES, url], env={}, binds=[], cwd=cwd, deadline_s=60, stdout=out, stderr=err)
    server.close()
    assert end.exit_code == 0, err.read_text()
    assert out.read_text().split("\n")[0] == "hello"
    attempts = sandbox.attempts()
    assert {"tcp 192.0.2.1:443", "tcp 2001:db8::1:443", "udp 192.0.2.2:8125"} <= set(attempts)
    assert any(line.startswith("name updates.example.invalid of ") for line in attempts), attempts
    assert not any(line.startswith("tcp 127.0.0.1") for line in attempts), attempts
