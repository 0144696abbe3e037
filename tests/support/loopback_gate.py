"""Inside a sandbox without a network: carries one loopback port to a socket of the host, and notes whatever else is tried.

    python loopback_gate.py PORT HOST_SOCKET NOTES -- COMMAND …

Every address is made local to this network namespace, so that no connection leaves it and each attempt is a packet on `lo`. The first
packet of every TCP connection and every UDP packet that is not for PORT becomes a line of NOTES, with the name asked for where it
is a question to a name server. Ends with the command's exit code. Stand-alone: imports nothing of gyre.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading

ROUTE_FLAGS = 0x0005 | 0x0400 | 0x0200  # request and acknowledge, create, exclusive
NEW_ROUTE, LOOPBACK_INDEX, LOCAL_TABLE, LOCAL_SCOPE = 24, 1, 255, 254


def make_everything_local() -> None:
    """`ip route add local default dev lo`, for both families, without `ip`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        for family in (socket.AF_INET, socket.AF_INET6):
            route = struct.pack("BBBBBBBBI", family, 0, 0, 0, LOCAL_TABLE, 3, LOCAL_SCOPE, 2, 0)
            device = struct.pack("HHI", 8, 4, LOOPBACK_INDEX)
            length = 16 + len(route) + len(device)
            link.sendto(struct.pack("IHHII", length, NEW_ROUTE, ROUTE_FLAGS, 1, 0) + route + device, (0, 0))
            error = struct.unpack_from("i", link.recv(4096), 16)[0]
            if error and not (family == socket.AF_INET6 and not socket.has_ipv6):
                raise OSError(-error, "everything could not be made local")


def watch(port: int, notes: str, listener: socket.socket) -> None:
    """Note every packet that opens something elsewhere."""
    seen: set[str] = set()
    while True:
        line = read_attempt(listener.recv(65535), port)
        if line and line not in seen:
            seen.add(line)
            with open(notes, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def read_attempt(packet: bytes, port: int) -> str:
    """What a packet attempts; empty where it is none, or the allowed one."""
    if packet[0] >> 4 == 4:
        protocol, payload, address = packet[9], packet[4 * (packet[0] & 15) :], socket.inet_ntop(socket.AF_INET, packet[16:20])
    else:
        protocol, payload, address = packet[6], packet[40:], socket.inet_ntop(socket.AF_INET6, packet[24:40])
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP) or len(payload) < 8:
        return ""
    source, target = struct.unpack_from("!HH", payload)
    if protocol == socket.IPPROTO_TCP:
        opens = payload[13] & 0x12 == 0x02
        return f"tcp {address}:{target}" if opens and (address, target) != ("127.0.0.1", port) else ""
    if source == 53 or target != 53:
        return "" if source == 53 else f"udp {address}:{target}"
    labels, at = [], 20
    while at < len(payload) and 0 < payload[at] < 64:
        labels.append(payload[at + 1 : at + 1 + payload[at]].decode("latin-1"))
        at += 1 + payload[at]
    return f"name {'.'.join(labels)} of {address}"


def carry(port: int, host_socket: str) -> None:
    """Accept connections to the port and join each to the host's socket."""
    server = socket.create_server(("127.0.0.1", port), backlog=64)
    while True:
        client, _ = server.accept()
        host = socket.socket(socket.AF_UNIX)
        host.connect(host_socket)
        for source, target in ((client, host), (host, client)):
            threading.Thread(target=pump, args=(source, target), daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one end closes; a broken connection stays broken."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
            except OSError:
                pass


def main() -> int:
    """Open the gate, run the command."""
    port, host_socket, notes = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    make_everything_local()
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    listener.bind(("lo", 0))
    threading.Thread(target=watch, args=(port, notes, listener), daemon=True).start()
    threading.Thread(target=carry, args=(port, host_socket), daemon=True).start()
    code = subprocess.call(sys.argv[sys.argv.index("--") + 1 :])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
