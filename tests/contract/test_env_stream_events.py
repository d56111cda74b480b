"""A quarantine is a fact on the bus, against a real server; without one the gateway works all the same."""

import asyncio
from contextlib import suppress

from earl.bus import Bus, EmbeddedValkey
from services.env_gateway.events import BACKLOG, QuarantineEvents


async def cancelled(task):
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_quarantines_are_published(tmp_path):
    valkey = EmbeddedValkey()
    url = await valkey.start(tmp_path)
    bus = await Bus.connect(url, "run")
    events = QuarantineEvents(url, "run", "env_gateway")
    publishing = asyncio.create_task(events.run())
    events.announce("open_spiel/tic_tac_toe", "host-1", "step 3 took longer than 30 s")
    async with asyncio.timeout(30):
        async for _, event in bus.follow("0"):
            assert event.source == "env_gateway"
            fact = event.environment_quarantined
            assert (fact.environment, fact.host) == ("open_spiel/tic_tac_toe", "host-1")
            assert fact.reason == "step 3 took longer than 30 s"
            break
    await cancelled(publishing)
    await bus.close()
    await valkey.stop()


async def test_without_a_bus_events_are_dropped_and_counted(tmp_path):
    events = QuarantineEvents(f"unix://{tmp_path}/nobody", "run", "env_gateway")
    publishing = asyncio.create_task(events.run())
    for _ in range(BACKLOG + 5):
        events.announce("game", "host", "boom")
    assert events.dropped == 5
    await cancelled(publishing)
