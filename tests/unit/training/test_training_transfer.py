"""Weights through Mooncake: whole and checked, or a TransferError."""

from __future__ import annotations

import pytest
import torch

from gyre.errors import TransferError
from gyre.training.transfer import TransferEndpoint, WeightSink, WeightSource, checksum

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def owner() -> TransferEndpoint:
    return TransferEndpoint()


@pytest.fixture(scope="module")
def reader() -> TransferEndpoint:
    return TransferEndpoint()


def test_a_pull_brings_the_bytes(owner: TransferEndpoint, reader: TransferEndpoint):
    source, into = WeightSource(owner, 5000), torch.zeros(5000)
    for version in (1, 2):
        source.buffer.normal_()
        descriptor = source.expose(version)
        assert descriptor["version"] == version
        WeightSink(reader).pull(descriptor, into)
        assert torch.equal(into, source.buffer)
    source.close()


def test_a_snapshot_that_changed_is_refused(owner: TransferEndpoint, reader: TransferEndpoint):
    source = WeightSource(owner, 100)
    descriptor = source.expose(3)
    source.buffer[50] = 1.0
    with pytest.raises(TransferError, match="version 3 arrived with checksum"):
        WeightSink(reader).pull(descriptor, torch.zeros(100))
    source.close()


def test_another_model_is_refused(owner: TransferEndpoint, reader: TransferEndpoint):
    source = WeightSource(owner, 100)
    with pytest.raises(TransferError, match="400 bytes of weights, this model 396"):
        WeightSink(reader).pull(source.expose(1), torch.zeros(99))
    source.close()


def test_a_dead_owner_is_an_error(reader: TransferEndpoint, owner: TransferEndpoint):
    source = WeightSource(owner, 100)
    descriptor = source.expose(1) | {"session": "127.0.0.1:1"}
    with pytest.raises(TransferError, match=r"could not read 400 bytes from 127\.0\.0\.1:1"):
        WeightSink(reader).pull(descriptor, torch.zeros(100))
    source.close()


def test_unregistered_memory_is_refused_before_mooncake_sees_it(owner: TransferEndpoint, reader: TransferEndpoint):
    source, into = WeightSource(owner, 100), torch.zeros(100)
    reader.register(into)
    reader.unregister(into)
    with pytest.raises(TransferError, match="of which 0 bytes are registered"):
        reader.read(owner.session, source.buffer.data_ptr(), into, 400)
    with pytest.raises(TransferError, match="only a contiguous CPU tensor"):
        reader.register(torch.zeros(10, 10).t())
    source.close()


def test_checksum_sees_every_byte():
    assert checksum(torch.zeros(4)) != checksum(torch.tensor([0.0, 0.0, 0.0, 1e-45]))
