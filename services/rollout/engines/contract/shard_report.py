"""The outcome of one rank's part of a call: one message for all engines whose ranks share the work.

rank r ── ShardReport(call, error | load | kv) ──► rank 0 ──(all ranks have reported)──► one answer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from earl.errors import EarlError
from earl.worker_report import TransferTotals
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import LoadReport


class KvShardReport(msgspec.Struct, tag=True):
    """KV that one rank published or read."""

    size_bytes: int
    seconds: float


class ShardReport(msgspec.Struct, tag=True, array_like=True):
    """error: why the part failed. result: what it took, of weights or of KV. transfers: the rank's totals by
    path since it started."""

    call: int
    error: wire.WireError | None
    result: LoadReport | KvShardReport | None
    transfers: list[TransferTotals]

    @classmethod
    def of(
        cls, call: int, outcome: LoadReport | KvShardReport | EarlError, transfers: list[TransferTotals]
    ) -> ShardReport:
        """The report of a call whose part on this rank ended with `outcome`."""
        if isinstance(outcome, EarlError):
            return cls(call, wire.WireError.of(outcome), None, transfers)
        return cls(call, None, outcome, transfers)


def refuse_failed(reports: Iterable[ShardReport]) -> None:
    """Raises the error of the first report that has one."""
    for report in reports:
        if report.error is not None:
            raise report.error.rebuild()


def whole_load(reports: Sequence[ShardReport]) -> LoadReport:
    """One load over all ranks: bytes summed, the slowest rank's seconds. Raises the first rank's error."""
    refuse_failed(reports)
    parts = [report.result for report in reports if isinstance(report.result, LoadReport)]
    return LoadReport(
        version=parts[0].version,
        size_bytes=sum(part.size_bytes for part in parts),
        read_s=max(part.read_s for part in parts),
    )


def whole_kv_bytes(reports: Iterable[ShardReport]) -> int:
    """Bytes of KV that all ranks published or read together."""
    return sum(report.result.size_bytes for report in reports if report.result is not None)
