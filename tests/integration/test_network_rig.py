"""Hosts on shaped links: bytes flow no faster than the link, and nothing is left, however the maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.network import rig as rigs
from benchmarks.network.links import Link
from benchmarks.network.rig import Rig, RigHost, RigUnavailable, network
from earl.errors import ConfigError
from tests.support.needs import lacking
from tests.support.paths import ROOT

GBPS = 0.1
SENT_BYTES = 2 << 20
WAIT_S = 30.0
# Prints its port, then how many bytes came in how many seconds after the first.
RECEIVER = """
import socket, time
server = socket.create_server(("0.0.0.0", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
received = len(peer.recv(1))
began = time.monotonic()
while piece := peer.recv(1 << 20):
    received += len(piece)
print(received, time.monotonic() - began)
"""
SENDER = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
peer.sendall(bytes(int(sys.argv[3])))
peer.close()
"""
# Makes a rig, names a process of it, and waits to be killed.
MAKER = """
import subprocess, sys
from benchmarks.network.links import Link
from benchmarks.network.rig import network
with network(2, Link(1.0)) as rig:
    sleeper = subprocess.Popen([*rig.hosts[0].enter, "sleep", "1000"])
    print(rig.hosts[0].namespaces.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    try:
        with network(3, Link(GBPS)) as made:
            yield made
    except RigUnavailable as error:
        lacking(str(error))


def python(host: RigHost, script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [*host.enter, sys.executable, "-S", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def users(name: str) -> list[int]:
    """Processes in a network namespace."""
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "ns/net") == name:
                pids.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return pids


def wait_until_unused(name: str) -> None:
    end = time.monotonic() + WAIT_S
    while users(name):
        assert time.monotonic() < end, users(name)
        time.sleep(0.01)


def test_bytes_flow_no_faster_than_the_link(rig: Rig) -> None:
    """A veth pair without tc carries a hundred times as much."""
    before = rig.carried()
    receiver = python(rig.hosts[0], RECEIVER)
    assert receiver.stdout is not None
    port = receiver.stdout.readline().strip()
    with python(rig.hosts[1], SENDER, rig.hosts[0].address, port, SENT_BYTES) as sender:
        received, seconds = receiver.stdout.readline().split()
    assert (sender.wait(WAIT_S), receiver.wait(WAIT_S)) == (0, 0)
    assert int(received) == SENT_BYTES
    assert SENT_BYTES / float(seconds) < 2 * rig.link.bytes_per_s
    carried = [
        after.received_bytes - then.received_bytes for after, then in zip(rig.carried(), before, strict=True)
    ]
    assert carried[0] > SENT_BYTES > 100 * carried[2]
    assert [host.dropped for host in rig.carried()] == [0, 0, 0]


def test_a_host_sees_its_own_network_processes_and_shared_memory(rig: Rig) -> None:
    script = "ls /sys/class/net /dev/shm && touch /dev/shm/here && echo /proc/[0-9]*"
    shown = [
        subprocess.run([*host.enter, "sh", "-c", script], capture_output=True, text=True, check=True).stdout
        for host in rig.hosts[:2]
    ]
    for text in shown:
        assert "eth0" in text
        assert "port0" not in text
        assert "here" not in text
        assert len(text.splitlines()[-1].split()) < 10


def test_a_command_runs_in_the_checkout(rig: Rig) -> None:
    done = subprocess.run([*rig.hosts[0].enter, "pwd"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ROOT)


def test_links_get_another_rate(rig: Rig) -> None:
    for gbps, shown in ((2.0, "rate 2Gbit"), (GBPS, "rate 100Mbit")):
        rig.shape(Link(gbps))
        assert shown in rig.hosts[2].namespaces.run(("tc", "qdisc", "show", "dev", "eth0")).stdout


def test_a_command_is_killed_with_the_process_that_was_started_for_it(rig: Rig) -> None:
    before = users(namespace(rig.hosts[2].namespaces.pid))
    process = python(rig.hosts[2], "import time; print(1, flush=True); time.sleep(1000)")
    assert process.stdout is not None and process.stdout.readline()
    process.kill()
    process.wait()
    end = time.monotonic() + WAIT_S
    while len(users(namespace(rig.hosts[2].namespaces.pid))) > len(before):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_maker_is_ended(rig: Rig, ending: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as maker:  # fmt: skip
        assert maker.stdout is not None
        name = namespace(int(maker.stdout.readline()))
        assert users(name)
        maker.send_signal(ending)
        maker.wait(WAIT_S)
    wait_until_unused(name)


def test_nothing_is_left_when_the_block_fails(rig: Rig) -> None:
    name = ""
    with pytest.raises(ZeroDivisionError), network(1, rig.link) as other:
        name = namespace(other.hosts[0].namespaces.pid)
        raise ZeroDivisionError
    wait_until_unused(name)


def test_a_kernel_without_delays_is_told_of(rig: Rig) -> None:
    """Kernels that have netem delay packets."""
    try:
        with network(2, Link(GBPS, delay_ms=50.0)) as other:
            shown = other.hosts[0].namespaces.run(("tc", "qdisc", "show")).stdout
        assert "delay 50ms" in shown
    except RigUnavailable as error:
        assert "netem" in str(error)


def test_a_machine_that_permits_no_namespaces_is_told_of() -> None:
    """A process without capabilities asks for one."""
    script = """
from benchmarks.network.links import Link
from benchmarks.network.rig import RigUnavailable, network
try:
    with network(1, Link(1.0)):
        print("made")
except RigUnavailable as error:
    print(error)
"""
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    done = subprocess.run(
        [*drop, sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "permits no namespaces" in done.stdout, done.stderr


def test_a_machine_without_the_programs_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RigUnavailable, match="apt-get install iproute2 util-linux"):
        rigs.require_programs()


def test_a_rig_of_no_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 hosts"), network(0, Link(1.0)):
        pass
