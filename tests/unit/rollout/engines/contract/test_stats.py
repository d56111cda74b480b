"""Checks what every engine reports: transfers of its ranks, busy periods."""

from __future__ import annotations

from earl.worker_report import TransferTotals, totals_by_path
from services.rollout.engines.contract.stats import BusyClock


def test_transfers_of_ranks_add_up_by_path():
    parts = [
        TransferTotals(path="shm", size_bytes=3, seconds=0.5, transfers=1, retries=1),
        TransferTotals(path="ucx-tcp", size_bytes=5),
        TransferTotals(path="shm", size_bytes=4, seconds=1.5, transfers=2, retries=2),
    ]
    assert totals_by_path(parts) == [
        TransferTotals(path="shm", size_bytes=7, seconds=2.0, transfers=3, retries=3),
        TransferTotals(path="ucx-tcp", size_bytes=5),
    ]


def test_busy_periods_are_handed_over_once():
    busy = BusyClock()
    busy.start()
    busy.end()
    (period,) = busy.take()
    assert period.end_ns - period.start_ns == busy.total_ns and busy.take() == []
