"""The heartbeats of trainer and reference stage."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from earl.errors import ServiceUnavailable
from earl.parallelism import Parallelism
from earl.scheduler_client import HeartbeatReply
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.requests import StageRequests
from services.trainer.stage import stage_rank0
from services.trainer.stage.stage_rank0 import StageRank0


async def test_heartbeats_come_when_the_scheduler_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [HeartbeatReply(stop=False, next_s=7.0), HeartbeatReply(stop=True, next_s=30.0)]
    pauses_s: list[float] = []

    async def heartbeat(**_: object) -> HeartbeatReply:
        if not replies:
            raise ServiceUnavailable("it is gone")
        return replies.pop(0)

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    rank0 = object.__new__(StageRank0)
    requests = StageRequests()
    rank0._resources = SimpleNamespace(requests=requests, activity=Activity())  # type: ignore[assignment]
    rank0.scheduler = SimpleNamespace(heartbeat=heartbeat, parallelism=Parallelism())  # type: ignore[assignment]
    monkeypatch.setattr(stage_rank0, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(ServiceUnavailable):
        await asyncio.wait_for(rank0._heartbeats(), 30.0)
    assert pauses_s == [7.0, 30.0] and requests.run_ended.is_set()
