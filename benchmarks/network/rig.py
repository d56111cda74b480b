"""Hosts as namespaces of this machine, joined by shaped links; all of them are gone when their maker ends.

    with network(hosts=3, link=Link(gbps=0.25)) as rig:
        subprocess.run([*rig.hosts[0].enter, "python", ...])        runs on host 0, address 10.77.0.1

A host has network, mount, process, IPC and name namespaces of its own, with its own /sys, /proc and
/dev/shm. Its first process reads a pipe that only the maker holds. However the maker ends, the pipe ends;
then that process ends, the kernel kills all others of the host, and the host's interfaces go with it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.children import late
from benchmarks.network import links
from benchmarks.network.links import Link
from benchmarks.record.checkout import ROOT
from earl.errors import ConfigError

PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2",
            "tc": "iproute2"}  # fmt: skip
COMMAND_S = 30.0
READY = "ready"
# The first process of a host. What it mounts is seen by this host's processes alone.
FIRST = f"mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm && echo {READY} && exec cat"


class RigUnavailable(ConfigError):
    """This machine has not what the rig is made of, or does not permit it; nothing was left behind."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The bytes that a host's link has carried since the rig was made, headers included, both ways.

    dropped: packets that a queue had no room for.
    """

    sent_bytes: int
    received_bytes: int
    dropped: int


class Namespaces:
    """The namespaces of a host or of the switch, and the first process in them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def create(cls) -> Namespaces:
        """Raises RigUnavailable where this machine does not permit them, DeadlineExceeded."""
        kinds = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
        process = subprocess.Popen(
            ["unshare", *kinds, "sh", "-c", FIRST], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        made = cls(process)
        assert process.stdout is not None and process.stderr is not None
        if not select.select([process.stdout], [], [], COMMAND_S)[0]:
            process.kill()
            made.close()
            raise late("the start of a host", COMMAND_S)
        if process.stdout.readline().strip() != READY:
            reason = process.stderr.read().strip()
            made.close()
            raise RigUnavailable(
                f"this machine permits no namespaces: {reason}",
                "run it as root, in a container with --privileged",
            )
        return made

    @property
    def pid(self) -> int:
        """A process in these namespaces, by its number outside them."""
        return self._process.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """A command begins with this to run in these namespaces, in the checkout's directory.

        It is killed when the process ends that was started so.
        """
        target = ("nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", "--ipc", "--wd")
        return (*target, f"--pid=/proc/{self.pid}/ns/pid_for_children", "setpriv", "--pdeathsig", "KILL")

    def apply(self, program: str, commands: Sequence[str]) -> None:
        """Runs `ip` or `tc` with these commands in the network namespace. Raises RigUnavailable."""
        batch = "".join(f"{command}\n" for command in commands)
        done = self.run((program, "-batch", "-"), batch)
        if done.returncode:
            raise RigUnavailable(
                f"{program} refuses what the rig needs: {done.stderr.strip()}",
                "use a kernel with veth, bridge and tbf; a delay needs netem as well",
            )

    def run(self, command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a short command in the network namespace alone. Raises DeadlineExceeded."""
        inside = ["nsenter", "--target", str(self.pid), "--net", *command]
        try:
            return subprocess.run(
                inside, input=text, capture_output=True, text=True, check=False, timeout=COMMAND_S
            )
        except subprocess.TimeoutExpired as error:
            raise late(" ".join(command), COMMAND_S) from error

    def tell_kernel(self, settings: dict[str, str]) -> None:
        """Writes below /proc/sys/net of the network namespace. Raises RigUnavailable."""
        script = "".join(f"echo '{value}' > /proc/sys/net/{path}\n" for path, value in settings.items())
        done = self.run(("sh", "-e"), script)
        if done.returncode:
            raise RigUnavailable(
                f"the kernel's settings are refused: {done.stderr.strip()}", "run it as root"
            )

    def close(self) -> None:
        """Ends every process in these namespaces, and returns when they have ended."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(COMMAND_S)
        except subprocess.TimeoutExpired as error:
            raise late("the end of a host", COMMAND_S) from error


@dataclass(frozen=True, slots=True)
class RigHost:
    """A host. address: at which the others reach it. enter: what a command on it begins with."""

    address: str
    enter: tuple[str, ...]
    namespaces: Namespaces


class Rig:
    """Hosts and the switch that joins them."""

    def __init__(self, link: Link, switch: Namespaces, hosts: Sequence[Namespaces]) -> None:
        self.link = link
        self._switch = switch
        self.hosts = [RigHost(links.address(i), made.enter, made) for i, made in enumerate(hosts)]

    def join(self) -> None:
        """Makes the links. Raises RigUnavailable."""
        self._switch.apply("ip", links.ip_of_switch([host.namespaces.pid for host in self.hosts]))
        for index, host in enumerate(self.hosts):
            host.namespaces.apply("ip", links.ip_of_host(index))
        self.shape(self.link)

    def shape(self, link: Link) -> None:
        """Makes every link one like this; connections stay. Raises RigUnavailable."""
        self.link = link
        count = len(self.hosts)
        self._switch.apply("tc", links.tc_of_switch(count, link))
        for host in self.hosts:
            host.namespaces.apply("tc", links.tc_of_host(count, link))
            host.namespaces.tell_kernel(links.kernel_settings(link))

    def carried(self) -> list[Carried]:
        """Reads the counters of every host's link."""
        counters = {entry["ifname"]: entry["stats64"] for entry in self._json("ip", "-s", "-j", "link")}
        queues = {entry["dev"]: entry for entry in self._json("tc", "-s", "-j", "qdisc")}
        ports = [links.port(index) for index in range(len(self.hosts))]
        return [
            Carried(counters[name]["rx"]["bytes"], counters[name]["tx"]["bytes"], queues[name]["drops"])
            for name in ports
        ]

    def _json(self, *command: str) -> list[dict]:
        return json.loads(self._switch.run(command).stdout)


@contextmanager
def network(hosts: int, link: Link) -> Iterator[Rig]:
    """Hosts that reach one another over links of this rate, until the block ends.

    Raises ConfigError for a number of hosts that no rig has, RigUnavailable where namespaces, or tc, are
    not there or not permitted.
    """
    if not 1 <= hosts <= links.MAX_HOSTS:
        raise ConfigError(f"a rig of {hosts} hosts", f"give 1 to {links.MAX_HOSTS}")
    require_programs()
    with ExitStack() as stack:

        def create() -> Namespaces:
            made = Namespaces.create()
            stack.callback(made.close)
            return made

        rig = Rig(link, create(), [create() for _ in range(hosts)])
        rig.join()
        yield rig


def require_programs() -> None:
    """Raises RigUnavailable without what the rig is made of, or without the rights of root."""
    missing = {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}
    if missing:
        raise RigUnavailable(
            f"the rig needs {', '.join(missing)}",
            f"apt-get install {' '.join(sorted(set(missing.values())))}",
        )
    if os.geteuid() != 0:
        raise RigUnavailable("namespaces with links of their own are for root", "run it as root")
