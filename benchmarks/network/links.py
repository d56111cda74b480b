"""The links between hosts of a rig, and the commands of ip and tc that make them. Pure.

    host 0  eth0 ══ link ══ port0 ┐
    host 1  eth0 ══ link ══ port1 ┼ bridge of the switch
    host 2  eth0 ══ link ══ port2 ┘

A link is full duplex. A token bucket at eth0 limits what its host sends, another at its port what the
host receives. The port's queue holds all that the other hosts may have on the way, so nothing is dropped:
a receiver that many send to delays its senders, as a switch with flow control does.
"""

from __future__ import annotations

from dataclasses import dataclass

from earl.errors import ConfigError

INTERFACE, BRIDGE = "eth0", "bridge"
MAX_HOSTS = 64
# Packets of 9,000 bytes: TCP's and IP's headers take 0.7 % of the wire, with 1,500 bytes 4.4 %.
MTU_BYTES = 9000
# The kernel hands a whole segment of 64 KiB to a veth interface; a bucket lets no packet pass that is larger
# than its depth.
BURST_BYTES = 128 << 10
# What one connection may have on the way, and how many times the bytes that a delay keeps there it may
# have beside them.
WINDOW_BYTES = 512 << 10
DELAY_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one host, the same both ways.

    gbps: 1e9 bits a second, of packets with their headers. delay_ms: what a packet takes from one host to
    another beside its time on the links. Raises ConfigError for values that no link has.
    """

    gbps: float
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.gbps <= 0 or self.delay_ms < 0:
            raise ConfigError(
                f"a link of {self.gbps} Gbit/s with a delay of {self.delay_ms} ms",
                "give more than 0 Gbit/s, and no negative delay",
            )

    @property
    def bytes_per_s(self) -> float:
        return self.gbps * 1e9 / 8

    @property
    def window_bytes(self) -> int:
        """The most that one connection may have on the way."""
        return WINDOW_BYTES + round(DELAY_WINDOWS * self.bytes_per_s * self.delay_ms / 1e3)

    def queue_bytes(self, hosts: int) -> int:
        """The bytes that a port's queue holds: two windows of every other host."""
        return 2 * hosts * self.window_bytes + BURST_BYTES


def port(host: int) -> str:
    """The name of a host's interface at the switch."""
    return f"port{host}"


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def ip_of_switch(pids: list[int]) -> list[str]:
    """Commands for `ip -batch` in the switch's namespace. pids: a process in each host's namespace."""
    commands = [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} mtu {MTU_BYTES} up"]
    for host, pid in enumerate(pids):
        ends = f"{port(host)} mtu {MTU_BYTES} type veth peer name {INTERFACE} mtu {MTU_BYTES} netns {pid}"
        commands += [f"link add {ends}", f"link set {port(host)} master {BRIDGE} up"]
    return commands


def ip_of_host(host: int) -> list[str]:
    """Commands for `ip -batch` in a host's namespace, once its interface is there."""
    return [
        "link set lo up",
        f"address add {address(host)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
    ]


def tc_of_switch(hosts: int, link: Link) -> list[str]:
    """Commands for `tc -batch` that limit what each host receives."""
    return [_bucket(port(host), hosts, link) for host in range(hosts)]


def tc_of_host(hosts: int, link: Link) -> list[str]:
    """Commands for `tc -batch` that limit, and delay, what a host sends."""
    delay = f"qdisc replace dev {INTERFACE} parent 1:1 netem delay {link.delay_ms:g}ms limit 100000"
    return [_bucket(INTERFACE, hosts, link), *([delay] if link.delay_ms else [])]


def _bucket(interface: str, hosts: int, link: Link) -> str:
    return (
        f"qdisc replace dev {interface} root handle 1: tbf rate {round(link.gbps * 1e9)} "
        f"burst {BURST_BYTES} limit {link.queue_bytes(hosts)}"
    )


def kernel_settings(link: Link) -> dict[str, str]:
    """Settings of a host's kernel, by the path below /proc/sys/net."""
    window = f"4096 131072 {link.window_bytes}"
    # A connection that was idle begins where it was, as fleets are commonly configured.
    return {"ipv4/tcp_rmem": window, "ipv4/tcp_wmem": window, "ipv4/tcp_slow_start_after_idle": "0"}
