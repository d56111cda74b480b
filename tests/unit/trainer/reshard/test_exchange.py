"""The memory of another rank: it is mapped, or there is a reason why not."""

from __future__ import annotations

import pytest

from earl.shm import SharedRegion
from services.trainer.reshard import exchange

SIZE_BYTES = 32


def test_memory_of_this_host_is_mapped_and_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    region = SharedRegion.create("earl-outbox", SIZE_BYTES)
    offer = exchange._offer(region)
    outbox = exchange._attach(offer, SIZE_BYTES)
    assert outbox is not None and outbox.shape == (2, SIZE_BYTES // 2) and not caplog.records
    region.end_sharing()
    assert exchange._attach(offer, SIZE_BYTES) is None
    assert "ranks exchange tensors by messages, for the memory of process" in caplog.text


def test_memory_of_another_host_and_none_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    region = SharedRegion.create("earl-outbox", SIZE_BYTES)
    elsewhere = b"another-host " + region.handle.encode()
    region.end_sharing()
    assert exchange._attach(elsewhere, SIZE_BYTES) is None and exchange._attach(b"", SIZE_BYTES) is None
    assert not caplog.records
