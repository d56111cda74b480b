"""The ledger's store on a real Valkey: fences, heads, repeats, and the model's walks through kill -9."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from earl.bus import Bus, EmbeddedValkey
from earl.errors import BusUnavailable, LedgerFenced
from earl.v1.events_pb2 import Event
from services.scheduler.journal.redis_store import LedgerStore
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.facts import BatchCommitted, TrajectoryReady
from services.scheduler.state.stored import KINDS, LedgerChanges
from services.scheduler.state.tickets import EpisodeResult, Purpose
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image, World


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "r", source="test")
    yield bus
    await bus.close()
    await valkey.stop()


async def opened(bus: Bus) -> tuple[LedgerStore, Ledger]:
    store = LedgerStore(bus)
    return store, Ledger.restored(RULES, await store.open(), 0.0)


async def test_what_was_applied_is_read_again_with_its_events(bus: Bus) -> None:
    store, ledger = await opened(bus)
    ledger.membership.join(WorkerRecord(name="w", incarnation=5, capacity=9), 0.0)
    ledger.attempts.issue(Purpose.TRAIN, 3, 1, 1.0, index=0)
    ledger.lease("w", 5, 2, 0.0)
    await store.apply(ledger.tables.take_changes())
    _, again = await opened(bus)
    assert again.tables.counts() == {"leased": 2, "pending": 1}
    assert again.tables.workers["w"].capacity == 9 and again.tables.run == ledger.tables.run
    assert again.lease("w", 5, 5, 0.0)[0].id == 3
    async for _, event in bus.follow("0"):
        assert event.worker_joined.worker.name == "w" and event.source == "test"
        break


async def test_facts_are_kept_as_long_as_the_trajectories_beside_them(tmp_path: Path) -> None:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "r", stream_events=200)
    store = LedgerStore(bus)
    await store.open()
    for number in range(30):
        ready = tuple(TrajectoryReady(at, 1, "w", Purpose.TRAIN, EpisodeResult()) for at in range(50))
        keys = tuple(f"{number}/{at}/{'x' * 200}" for at in range(50))
        await store.apply(LedgerChanges((), (*ready, BatchCommitted(number + 1, number + 2, keys))))
    # Streams are trimmed by whole nodes of some 4 KiB or 100 entries.
    assert await bus.redis.xlen(bus.trajectories) < 400
    kept = [event.batch_committed.batch_id async for event in _facts(bus)]
    assert kept[-1] == 30 and len(kept) < 12
    await bus.close()
    await valkey.stop()


async def _facts(bus: Bus) -> AsyncIterator[Event]:
    entries: Any = await bus.redis.xrange(bus.stream)
    for _, fields in entries:
        yield Event.FromString(fields[b"e"])


async def test_a_newer_scheduler_fences_the_older(bus: Bus) -> None:
    old_store, old = await opened(bus)
    await opened(bus)
    old.attempts.issue(Purpose.TRAIN, 1, 1, 1.0, index=0)
    with pytest.raises(LedgerFenced, match="term"):
        await old_store.apply(old.tables.take_changes())
    assert not await bus.redis.exists(bus.key("ledger", "ticket"))


async def test_a_write_whose_answer_was_lost_is_repeated_without_effect(bus: Bus) -> None:
    store, ledger = await opened(bus)
    ledger.membership.join(WorkerRecord(name="w", incarnation=5), 0.0)
    changes = ledger.tables.take_changes()
    await store.apply(changes)
    store._revision -= 1
    await store.apply(changes)
    assert await bus.redis.xlen(bus.stream) == 1


async def test_a_record_that_is_not_what_was_believed_stops_the_scheduler(bus: Bus) -> None:
    store, ledger = await opened(bus)
    ledger.membership.join(WorkerRecord(name="w", incarnation=5), 0.0)
    ledger.attempts.issue(Purpose.TRAIN, 2, 1, 1.0, index=0)
    await store.apply(ledger.tables.take_changes())
    await bus.redis.hset(bus.key("ledger", "ticket"), "2", b"leased:99|x")  # type: ignore[misc]
    ledger.lease("w", 5, 2, 0.0)
    with pytest.raises(LedgerFenced, match="2 is leased:99, not absent"):
        await store.apply(ledger.tables.take_changes())
    assert await bus.redis.hget(bus.key("ledger", "ticket"), "1") is None  # type: ignore[misc]


async def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "r", outage_s=1.0)
    store, ledger = await opened(bus)
    await valkey.stop()
    ledger.attempts.issue(Purpose.TRAIN, 1, 1, 1.0, index=0)
    with pytest.raises(BusUnavailable, match="unix://"):
        await store.apply(ledger.tables.take_changes())
    await bus.close()


class ValkeyImage(Image):
    """The world's store on a real server, which dies with kill -9 now and then."""

    def __init__(self, directory: Path, runner: asyncio.Runner, choices: random.Random) -> None:
        super().__init__()
        self._directory = directory
        self._runner = runner
        self._choices = choices
        self._valkey = EmbeddedValkey()
        self._start()

    def _start(self) -> None:
        url = self._runner.run(self._valkey.start(self._directory))
        self._bus = self._runner.run(Bus.connect(url, "r"))
        self._store = LedgerStore(self._bus)

    def apply(self, changes: LedgerChanges) -> None:
        self.facts += changes.facts
        if changes:
            self._runner.run(self._store.apply(changes))

    def load(self) -> list[tuple[str, str, bytes]]:
        if self._choices.random() < 0.3:
            os.kill(self._valkey.pid, signal.SIGKILL)
            self._runner.run(self._valkey.wait())
            self.close()
            self._start()
        self._store = LedgerStore(self._bus)
        return self._runner.run(self._store.open())

    def peek(self) -> list[tuple[str, str, bytes]]:
        return self._runner.run(self._read())

    async def _read(self) -> list[tuple[str, str, bytes]]:
        found = []
        for kind in KINDS:
            stored: dict = await self._bus.redis.hgetall(self._bus.key("ledger", kind))  # type: ignore[misc]
            found += [(kind, name.decode(), data) for name, data in stored.items()]
        return found

    def close(self) -> None:
        self._runner.run(self._bus.close())
        self._runner.run(self._valkey.stop())


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("seed", range(3))
def test_walks_of_the_model_on_a_real_server(tmp_path: Path, runner: asyncio.Runner, seed: int) -> None:
    choices = random.Random(seed)
    image = ValkeyImage(tmp_path, runner, choices)
    try:
        world = World(choices, dataclasses.replace(RULES, staleness=seed), image)
        world.crash_chance = 0.02
        world.restart()
        world.wander(60)
        world.finish()
    finally:
        image.close()
