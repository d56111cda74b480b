"""`earl bench dispatch`: its pattern, its network cards' arithmetic and its ratios are what they say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.children import MeasurementWrong
from benchmarks.dispatch import busy, caps, command, nic, peers
from benchmarks.dispatch.hosts import Plan
from benchmarks.dispatch.measure import RoundSamples
from benchmarks.dispatch.pattern import (
    COLUMNS,
    CONSUMERS,
    DTYPE,
    HALF,
    MIB,
    PRODUCERS,
    Pattern,
    fill,
    half,
    readers,
    right,
    sources,
)
from earl.dispatch.layout.box import Box, Layout, ShardBox
from earl.errors import ConfigError


def test_consumers_want_every_element_once_and_half_of_every_row_of_two_producers() -> None:
    pattern = Pattern.of(2)
    assert pattern.worker_bytes == 2 * MIB
    wanted = [ShardBox(str(one), pattern.target_box(one)) for one in range(CONSUMERS)]
    held = [ShardBox(str(one), pattern.held(one)) for one in range(PRODUCERS)]
    for shards in (wanted, held):
        Layout("rows", "int32", pattern.shape, tuple(shards)).validate()
        assert {shard.box.size * DTYPE.itemsize for shard in shards} == {pattern.worker_bytes}
    for consumer in range(CONSUMERS):
        for producer in range(PRODUCERS):
            common = pattern.target_box(consumer).intersect(pattern.held(producer))
            assert (common is not None) == (producer in sources(consumer)) == (consumer in readers(producer))
            if common is not None:
                assert common.shape == (pattern.rows, HALF)
                assert half(consumer) == slice(common.start[1], common.stop[1])
                first = common.start[0] - pattern.target_box(consumer).start[0]
                assert pattern.part(consumer, producer) == slice(first, first + pattern.rows)


def test_less_than_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.01 MiB.*; give 0\.0625 or more"):
        Pattern.of(0.01)


def test_what_a_producer_fills_is_what_a_consumer_checks() -> None:
    pattern = Pattern(70)
    whole = np.empty(pattern.shape, DTYPE)
    for producer in range(PRODUCERS):
        box = pattern.held(producer)
        fill(whole[box.slices()], box, 9)
    box = pattern.target_box(3)
    target = whole[box.slices()].copy()
    assert right(target, box, 9)
    assert not right(target, box, 10)
    assert not right(target, pattern.target_box(2), 9)
    target[-1, -1] ^= 1
    assert not right(target, box, 9)


@given(
    st.lists(st.tuples(st.integers(1, 5_000_000), st.integers(0, 200_000_000)), min_size=1, max_size=40),
    st.sampled_from([1e6, 125e6, 12.5e9]),
)
def test_a_link_never_carries_more_than_its_rate(sent: list[tuple[int, int]], rate: float) -> None:
    """Between any two moments no more than the rate and the bucket's depth; since its start, the rate."""
    free_at = now = 0
    passed: list[tuple[int, int, int]] = []
    for size, pause_ns in sent:
        now += pause_ns
        before, free_at = free_at, nic.reserve(free_at, now, size, rate)
        assert free_at >= before + round(size / rate * 1e9) or before < now - nic.BURST_NS
        passed.append((now, size, max(now, free_at)))
    total = 0
    for _, size, at in passed:
        total += size
        assert total <= rate * (at + len(passed)) / 1e9 + 1
    for i, (asked, _, _) in enumerate(passed):
        total = 0
        for _, size, at in passed[i:]:
            total += size
            assert total <= rate * (at - asked + nic.BURST_NS + len(passed)) / 1e9 + 1


def test_hosts_share_their_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members of one host queue for its card; another host's is free. The clock stands still."""
    monkeypatch.setattr(nic, "time", SimpleNamespace(monotonic_ns=lambda: 10**12))
    nic.Nics.create(tmp_path / "nics", 2)
    one, other = (nic.Nics(tmp_path / "nics", 1e9) for _ in range(2))
    one.start()
    first = one.take({(0, nic.EGRESS): 1_000_000})
    second = other.take({(0, nic.EGRESS): 1_000_000, (1, nic.INGRESS): 10})
    assert second == first + 1_000_000
    assert other.take({(1, nic.INGRESS): 10}) < second
    assert one.carried() == [2_000_000, 20]
    asyncio.run(one.carry({(1, nic.EGRESS): 1}))
    one.close()
    other.close()


def test_the_limit_of_capped_hosts() -> None:
    rate = nic.bytes_per_second(1)
    assert rate == 125e6
    assert nic.direct_seconds(16, 16 * 10**6, rate) == pytest.approx(15e6 / 125e6)
    assert nic.central_seconds(16, 16 * 10**6, rate) == pytest.approx(225e6 / 125e6)
    for hosts in (2, 4, 8, 16):
        found = caps.figures(hosts, 64 * MIB, rate, {"direct": 1.0, "central": hosts - 1.0})
        assert found["limit"] == found["speedup"] == hosts - 1
        assert found["within_limit_fraction"] == 1.0
    assert caps.curve(16) == [2, 4, 8, 16] and caps.curve(2) == [2]
    with pytest.raises(ConfigError, match="--hosts 6 is no power of two; give 2, 4"):
        caps.curve(6)


@pytest.mark.parametrize("hosts", [2, 4, 16])
def test_hosts_hold_and_want_the_whole_tensor_all_to_all(hosts: int) -> None:
    plan = Plan(hosts, 40)
    for box in (plan.held, plan.target_box):
        shards = tuple(ShardBox(str(one), box(one)) for one in range(hosts))
        Layout("rows", "int32", plan.shape, shards).validate()
    assert plan.target_box(1) == Box((0, COLUMNS // hosts), (hosts * 40, 2 * COLUMNS // hosts))
    for ranges in (plan.slabs(4), plan.slabs(1), plan.frames()):
        assert [row for first, stop in ranges for row in range(first, stop)] == list(range(40))
    assert plan.others(1)[0] == 2 % hosts and sorted([*plan.others(1), 1]) == list(range(hosts))


def test_ratios_are_of_the_arms_that_ran() -> None:
    ms = {
        "shm": 40.0, "ucx": 100.0, "memcpy_floor": 32.0, "socket": 95.0, "central_shm": 100.0,
        "central_ucx": 250.0, "central_grpc_threads": 480.0, "central_grpc_asyncio": 460.0,
        "shm_verified": 66.0, "memcpy_hash_floor": 60.0,
    }  # fmt: skip
    arms = {name: {"ms": value} for name, value in ms.items()}
    found = command.ratios(arms)
    assert found == {
        "central_grpc": "central_grpc_asyncio",
        "speedup_vs_central_grpc": 11.5,
        "speedup_vs_central_same_transport": 2.5,
        "times_memcpy_floor": 1.25,
        "unverified": 1.25,
        "verified": 1.1,
        "ucx_speedup_vs_central_grpc": 4.6,
        "ucx_speedup_vs_central_same_transport": 2.5,
        "ucx_vs_socket": 0.95,
    }
    assert command.ratios({"shm": {"ms": 1.0}}) == {}
    slower = {**arms, "ucx": {"ms": 190.0}}
    whole = command.summary({"16": slower, "187": arms, "256": slower})
    assert whole["headline_mib"] == 187 and whole["speedup_vs_central_grpc"] == 11.5
    assert whole["ucx_vs_socket"] == 0.5, "the worst size counts"


def test_figures_are_medians_and_bytes_must_agree() -> None:
    samples = RoundSamples()
    for total_ms, read_ms in ((3.0, 1.0), (1.0, 1.0), (2.0, 4.0)):
        samples.add({"total_ms": total_ms, "publish_ms": 0.0, "read_ms": read_ms, "moved_bytes": 64})
    assert samples.figures() == {"ms": 2.0, "ms_min": 1.0, "ms_max": 3.0, "read_ms": 1.0, "moved_bytes": 64}
    samples.moved_bytes.add(65)
    with pytest.raises(MeasurementWrong, match="64, 65"):
        samples.figures()


def test_peers_that_are_not_installed_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "python")
    with pytest.raises(peers.PeersAbsent, match=r"^absent: \.venv-queue is not there.* make setup-queue"):
        asyncio.run(peers.start(peers.PEERS, 1, str(tmp_path)))


def test_a_producers_loss_is_less_of_a_core_times_slower() -> None:
    alone = {"iterations": 1000, "wall_s": 10.0, "cpu_s": 9.0, "waited_s": 0.1}
    read = {"iterations": 720, "wall_s": 10.0, "cpu_s": 7.2, "waited_s": 1.1}
    found = busy.loss(alone, read)
    assert found["loss_percent"] == pytest.approx(28)
    assert found["less_cpu_percent"] == pytest.approx(20) and found["slower_percent"] == pytest.approx(10)
    assert found["waiting_for_a_core_percent"] == pytest.approx(10)


@pytest.mark.parametrize(
    "options", [["--arms", "shm,nothing"], ["--sizes", "46,much"], ["--sizes", "0"], ["--hosts", "6"]]
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    options: list[str], tmp_path: Path
) -> None:
    found = CliRunner().invoke(command.app, [*options, "--results", str(tmp_path)])
    # typer's own refusal, or the catalogue's, which `earl` ends with.
    code = found.exception.exit_code if isinstance(found.exception, ConfigError) else found.exit_code
    assert code == 2
