"""The links of a rig: what tc and ip are told."""

from __future__ import annotations

import pytest

from benchmarks.network.links import (
    BURST_BYTES,
    Link,
    ip_of_switch,
    kernel_settings,
    tc_of_host,
    tc_of_switch,
)
from earl.errors import ConfigError


def test_both_ends_of_a_link_have_its_rate() -> None:
    link = Link(0.25)
    commands = [*tc_of_host(2, link), *tc_of_switch(2, link)]
    interfaces = [command.split()[3] for command in commands]
    assert interfaces == ["eth0", "port0", "port1"]
    assert all("tbf rate 250000000 " in command for command in commands)


def test_a_delay_is_asked_for_once_on_the_way_from_host_to_host() -> None:
    link = Link(1.0, delay_ms=2.5)
    delays = [command for command in (*tc_of_host(2, link), *tc_of_switch(2, link)) if "netem" in command]
    assert len(delays) == 1
    assert "delay 2.5ms" in delays[0]
    assert not any("netem" in command for command in tc_of_host(2, Link(1.0)))


def test_a_port_has_room_for_what_all_others_may_send_at_once() -> None:
    link = Link(1.0, delay_ms=10.0)
    assert link.window_bytes > link.bytes_per_s * 0.010
    assert link.queue_bytes(16) > 15 * link.window_bytes
    assert kernel_settings(link)["ipv4/tcp_rmem"].endswith(f" {link.window_bytes}")


def test_no_packet_is_larger_than_a_bucket() -> None:
    """A packet that is would be dropped, and the connection would stand."""
    assert BURST_BYTES > 64 << 10


def test_every_host_has_a_port_at_the_bridge() -> None:
    commands = ip_of_switch([11, 12, 13])
    assert next(command for command in commands if "netns 12" in command).startswith("link add port1 ")
    assert sum("master bridge up" in command for command in commands) == 3


@pytest.mark.parametrize(("gbps", "delay_ms"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0)])
def test_links_that_do_not_exist_are_refused(gbps: float, delay_ms: float) -> None:
    with pytest.raises(ConfigError, match="Gbit/s"):
        Link(gbps, delay_ms)
