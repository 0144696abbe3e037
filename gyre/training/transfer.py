"""Weights between processes through Mooncake's transfer engine. The only file that imports mooncake.

The core keeps its flat weights in a registered buffer (`WeightSource`) and hands out a descriptor; a reader (`WeightSink`) pulls the
bytes into its own registered buffer without the core's help and checks the checksum, so a read that met a half-written snapshot, a
dead peer or a stale descriptor raises TransferError. Nobody raises a version on a failed pull.

Mooncake answers success for a read into memory that was never registered, so ranges are checked here.
"""

from __future__ import annotations

import zlib
from typing import TypedDict

import numpy as np
import torch
from mooncake.engine import TransferEngine
from torch import Tensor

from gyre.errors import TransferError


class WeightDescriptor(TypedDict):
    """Where a snapshot lies; plain data, so that it travels as JSON."""

    session: str
    """Address of the owner's transfer engine."""
    address: int
    """Address of the buffer in the owner's memory."""
    nbytes: int
    """Size of the snapshot."""
    version: int
    """Policy version of the weights."""
    crc32: int
    """Checksum of the bytes."""


class TransferEndpoint:
    """This process's transfer engine; one per process, shared by its sources and sinks."""

    def __init__(self, host: str = "127.0.0.1", *, protocol: str = "tcp", device: str = "") -> None:
        """Start the engine.

        Args:
            host: address at which other processes reach this one.
            protocol: "tcp" or "rdma".
            device: network device for rdma; empty: Mooncake chooses.

        Raises:
            TransferError: the engine did not start.
        """
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, device) != 0:
            raise TransferError(f"Mooncake's transfer engine did not start on {host} with protocol {protocol}")
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self._registered: dict[int, tuple[Tensor, int]] = {}

    def register(self, buffer: Tensor) -> None:
        """Make a flat tensor readable by, or writable from, other processes; it is kept alive until `unregister`.

        Raises:
            TransferError: the tensor is not one contiguous block of CPU memory, or Mooncake refused it.
        """
        if not buffer.is_contiguous() or buffer.device.type != "cpu":
            raise TransferError("only a contiguous CPU tensor can be registered for transfer")
        address, nbytes = buffer.data_ptr(), buffer.numel() * buffer.element_size()
        if address in self._registered:
            return
        if self._engine.register_memory(address, nbytes) != 0:
            raise TransferError(f"Mooncake refused to register {nbytes} bytes at {address:#x}")
        self._registered[address] = (buffer, nbytes)

    def unregister(self, buffer: Tensor) -> None:
        """Withdraw a tensor and let go of it."""
        if self._registered.pop(buffer.data_ptr(), None) is not None:
            self._engine.unregister_memory(buffer.data_ptr())

    def read(self, session: str, remote_address: int, into: Tensor, nbytes: int) -> None:
        """Read bytes of another process into the front of a registered tensor.

        Raises:
            TransferError: the local range is not registered, or the read failed.
        """
        _, registered_bytes = self._registered.get(into.data_ptr(), (None, 0))
        if nbytes > registered_bytes:
            raise TransferError(f"a read of {nbytes} bytes goes into memory of which {registered_bytes} bytes are registered")
        if self._engine.transfer_sync_read(session, into.data_ptr(), remote_address, nbytes) != 0:
            raise TransferError(f"Mooncake could not read {nbytes} bytes from {session}; its owner is gone or unreachable")


class WeightSource:
    """The owner's side: a registered flat float32 buffer and the descriptor of what is in it.

    `write_flat(source.buffer)`, then `descriptor = source.expose(version)`; whoever pulls a descriptor while the buffer is being
    refilled fails the checksum.
    """

    def __init__(self, endpoint: TransferEndpoint, num_weights: int) -> None:
        self._endpoint = endpoint
        self.buffer = torch.zeros(num_weights, dtype=torch.float32)
        endpoint.register(self.buffer)

    def expose(self, version: int) -> WeightDescriptor:
        """Describe what the buffer holds now."""
        return WeightDescriptor(
            session=self._endpoint.session,
            address=self.buffer.data_ptr(),
            nbytes=self.buffer.numel() * self.buffer.element_size(),
            version=version,
            crc32=checksum(self.buffer),
        )

    def close(self) -> None:
        """Withdraw the buffer."""
        self._endpoint.unregister(self.buffer)


class WeightSink:
    """The reader's side: pulls snapshots into registered buffers."""

    def __init__(self, endpoint: TransferEndpoint) -> None:
        self._endpoint = endpoint

    def pull(self, descriptor: WeightDescriptor, into: Tensor) -> None:
        """Read a snapshot into a flat float32 tensor and check it; the tensor is registered at its first use.

        Raises:
            TransferError: the tensor has another size, the read failed, or the bytes are not what the owner described.
        """
        nbytes = into.numel() * into.element_size()
        if nbytes != descriptor["nbytes"]:
            raise TransferError(
                f"version {descriptor['version']} has {descriptor['nbytes']} bytes of weights, this model {nbytes}; "
                "both sides must hold the same model"
            )
        self._endpoint.register(into)
        self._endpoint.read(descriptor["session"], descriptor["address"], into, nbytes)
        found = checksum(into)
        if found != descriptor["crc32"]:
            raise TransferError(
                f"version {descriptor['version']} arrived with checksum {found:#010x} instead of "
                f"{descriptor['crc32']:#010x}; the snapshot changed while it was read"
            )


def checksum(buffer: Tensor) -> int:
    """CRC-32 of a flat tensor's bytes."""
    return zlib.crc32(buffer.numpy().view(np.uint8).data)
