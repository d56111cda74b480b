"""`earl bench dispatch` runs: every arm brings every byte, behind cards too, and from a busy producer."""

from __future__ import annotations

import pytest

from benchmarks.dispatch import busy, caps
from benchmarks.dispatch.arms import ARMS, absent
from benchmarks.dispatch.measure import measure
from benchmarks.dispatch.pattern import CONSUMERS, Pattern


@pytest.mark.slow
async def test_every_arm_moves_what_it_must() -> None:
    """The bench itself refuses wrong bytes; here: twice as many through a controller as without."""
    arms = [name for name in ARMS if not absent([name])]
    found = await measure(arms, [0.5], rounds=1)
    wanted = CONSUMERS * Pattern.of(0.5).worker_bytes
    assert {arm: one["moved_bytes"] // wanted for arm, one in found["0.5"].items()} == {
        arm: 2 if arm.startswith("central") else 1 for arm in arms
    }


@pytest.mark.slow
async def test_capped_hosts_send_all_but_their_own_through_their_cards() -> None:
    found = await caps.measure(2, gbps=100.0, host_mib=1.0, rounds=1)
    half_host = [1 << 19, 1 << 19]
    assert found["curve"][0]["direct_busiest_card_bytes"] == half_host
    assert found["curve"][0]["central_busiest_card_bytes"] == half_host


async def test_a_busy_producer_is_read() -> None:
    found = await busy.measure(["shm"], rounds=1, interval_s=0.05)
    assert all(one["reads"] > 0 for one in found["shm"].values())
