"""Latencies of the last minute, out of a gateway's counts since it began."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from earl.cli.lib.gateway_codec import GatewayEnvironment, HostLatency, environment_of
from earl.cli.lib.recent import WINDOW_S, Recent
from earl.obs.histogram import Histogram
from services.env_gateway.codec import listing
from services.env_gateway.state import pool
from services.env_gateway.state.counts import Counts
from tests.support.snapshots import GAMES


def said(counts: Counts) -> GatewayEnvironment:
    """Phrases an answer as an operator is told."""
    [entry] = listing({"game": pool.ListedEnvironment()}, counts).entries
    return environment_of(entry)


def test_a_fresh_regression_is_seen_though_most_steps_were_quick():
    recent, counts = Recent(), Counts()
    for _ in range(10_000):
        counts.answered("game", 1, 0.0005)
    [first] = recent.of([said(counts)], 0.0)
    assert (first.step.count, first.step.p99_s) == (10_000, 0.0005)  # nothing to compare it with
    for _ in range(20):
        counts.answered("game", 1, 0.1)
    [listed] = [said(counts)]
    assert listed.step.p99_s == 0.001  # since the gateway began: as if nothing had happened
    [late] = recent.of([listed], 1.0)
    assert (late.step.count, late.step.p50_s, late.step.p99_s) == (20, 0.1, 0.1)
    [quiet] = recent.of([listed], 1.0 + WINDOW_S)
    assert quiet.step.count == 0 and quiet.reset.count == 0


def test_a_gateway_that_was_started_again_counts_anew():
    recent, counts = Recent(), Counts()
    for _ in range(9):
        counts.answered("game", 1, 0.5)
    recent.of([said(counts)], 0.0)
    again = Counts()
    again.answered("game", 1, 0.002)
    [listed] = recent.of([said(again)], 1.0)
    assert (listed.step.count, listed.step.p99_s) == (1, 0.002)


def test_without_counts_it_is_what_the_gateway_says():
    recent = Recent()
    assert recent.of([GAMES], 0.0) == recent.of([GAMES], 1.0) == (GAMES,)


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.lists(st.floats(0.0, 200.0), max_size=4)), max_size=30))
def test_what_is_counted_lies_within_the_window_or_the_first_look_after_it(snapshots):
    """snapshots: seconds since the one before, and what was answered meanwhile."""
    recent, total, now_s = Recent(), Histogram(), 0.0
    came: list[tuple[float, int]] = []
    for passed_s, answered in snapshots:
        now_s += passed_s
        for value in answered:
            total.add(value)
        came.append((now_s, len(answered)))
        step = HostLatency(total.count, counts=tuple(total.counts), longest_s=total.longest)
        [listed] = recent.of([replace(GAMES, step=step)], now_s)
        if len(came) > 1:
            inside = sum(count for at_s, count in came[1:] if at_s > now_s - WINDOW_S)
            assert inside <= listed.step.count <= sum(count for _, count in came[1:])
