"""Links between hosts that are cut while reads are under way: right bytes afterwards, and nobody ends."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from benchmarks.network.drops import WAYS, Way, dropped, require_firewall, reset
from benchmarks.network.links import Link
from benchmarks.network.rig import Rig, RigHost, RigUnavailable, network
from tests.support.needs import lacking
from tests.support.paths import ROOT

SIZE = 32 << 20
WAIT_S = 60.0
# Slow enough that a read takes a while, so that a cut meets one.
GBPS = 1.0


class Role:
    """A process of tests/support/link_plane.py on a host, and the lines that it prints."""

    def __init__(self, host: RigHost, role: str, given: str = "") -> None:
        command = [sys.executable, "-m", "tests.support.link_plane", role, host.address, str(SIZE)]
        self.process = subprocess.Popen(
            [*host.enter, *command], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(given)
        self.process.stdin.flush()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("ended")

    def until(self, begin: str, *, may_be_lost: bool = False) -> str:
        """The next line that begins so; those before it must not say that something is wrong."""
        wrong = {"wrong", "ended"} if may_be_lost else {"wrong", "ended", "lost"}
        while not (line := self.lines.get(timeout=WAIT_S)).startswith(begin):
            assert line not in wrong, line
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    try:
        require_firewall()
        with network(2, Link(GBPS)) as made:
            yield made
    except RigUnavailable as error:
        lacking(str(error))


@pytest.fixture(scope="module")
def roles(rig: Rig) -> Iterator[tuple[Role, Role, int]]:
    """The owner, the reader, and the owner's serving process by its number in its host."""
    owner = Role(rig.hosts[0], "owner")
    held = owner.until("{")
    reader = Role(rig.hosts[1], "reader", held + "\n")
    yield owner, reader, json.loads(held)["pid"]
    reader.end()
    owner.end()


def test_a_lost_link_costs_a_read_its_time_alone(rig: Rig, roles: tuple[Role, Role, int]) -> None:
    """The peer is found silent in mid-read; the same read ends right once the link is back."""
    owner, reader, _ = roles
    reader.until("read")
    with dropped(rig.hosts[0], rig.hosts[1]):
        reader.until("silent")
    assert int(reader.until("read").split()[1]) > 0
    reader.until("read 0")
    with reset(rig.hosts[0], rig.hosts[1]):
        # Nobody answers within the block; whoever asked is asked again, or told.
        pass
    reader.until("read 0", may_be_lost=True)
    assert owner.lines.empty(), owner.lines.get()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("silences", [4, 14])
def test_no_process_ends_when_a_long_outage_heals(
    rig: Rig, roles: tuple[Role, Role, int], way: Way, silences: int
) -> None:
    """A reader finds its peer silent every 3 s; after 30 s the serving process ends the connection."""
    owner, reader, _ = roles
    for _ in range(2 if silences < 10 else 1):
        reader.until("read 0", may_be_lost=True)
        with dropped(rig.hosts[0], rig.hosts[1], way):
            for _ in range(silences):
                reader.until("silent")
        reader.until("read 0", may_be_lost=True)
    assert owner.lines.empty(), owner.lines.get()
