"""A small Slurm cluster on this machine: munge, one controller, several slurmd as nodes, in a directory.

    with SlurmCluster(tmp_path, nodes=3) as cluster:
        subprocess.run(["earl", "up", ...], env=cluster.environment)
        cluster.lose("n2")          # as if its power were cut: slurmd, job steps and all processes at once

Nodes are processes of one machine: they share its memory and disks, which real nodes do not. They are reached
by the machine's own network address where it has one, so that calls need TLS and tokens.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.needs import lacking, program

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "srun", "scontrol")
PACKAGES = "slurm-wlm munge"
START_S = 60.0
END_S = 20.0
POLL_S = 0.2


class SlurmCluster:
    """Nodes n1, n2, … of `cpus` cores and `memory_mb` each, whatever the machine has."""

    def __init__(self, directory: Path, nodes: int = 3, cpus: int = 4, memory_mb: int = 4096) -> None:
        for name in PROGRAMS:
            program(name, PACKAGES)
        if os.geteuid():
            lacking("a Slurm cluster of this machine's own needs root: run the tests as root")
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.address = network_address()
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        ports = free_ports(nodes + 1)
        self._size = f"CPUs={cpus} RealMemory={memory_mb}"
        self._ports = dict(zip(self.nodes, ports, strict=False))
        self._controller_port = ports[-1]

    def __enter__(self) -> SlurmCluster:
        for name in ("state", "log", "run", "munge", *(f"spool/{node}" for node in self.nodes)):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "munge").chmod(0o700)
        key = self.directory / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        (self.directory / "slurm.conf").write_text(self._configuration())
        try:
            self._call(
                "munged", "--force", f"--socket={self.directory}/munge/socket", f"--key-file={key}",
                f"--pid-file={self.directory}/run/munged.pid", f"--log-file={self.directory}/munge/log",
                f"--seed-file={self.directory}/munge/seed",
            )  # fmt: skip
            self._call("slurmctld")
            for node in self.nodes:
                self.join(node)
            self.until_up(*self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.SubprocessError):
            self.end_jobs()
        for node in self.nodes:
            self._kill(self._of_node(node))
        for daemon in ("slurmctld", "munged"):
            self._kill(self._pids(daemon))

    def join(self, node: str, hidden: Path | None = None) -> None:
        """Starts a node's slurmd. hidden: a folder in whose place the node has an empty one."""
        if hidden is None:
            self._call("slurmd", "-N", node)
        else:
            shell = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec slurmd -N {node}"
            self._call("unshare", "--mount", "/bin/sh", "-c", shell)

    def lose(self, node: str) -> None:
        """Ends everything of a node at once, without a word to anybody."""
        self._kill(self._of_node(node))

    def state(self, node: str) -> str:
        """The state of a node, such as "idle" or "down*"."""
        return self._call("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()

    def until_up(self, *nodes: str) -> None:
        until = time.monotonic() + START_S
        while any(self.state(node) not in ("idle", "mixed", "allocated") for node in nodes):
            assert time.monotonic() < until, {node: self.state(node) for node in nodes}
            time.sleep(POLL_S)

    def jobs(self) -> dict[str, tuple[str, str]]:
        """(state, node) of each job that is not over, by its name."""
        lines = self._call("squeue", "--noheader", "--format=%j|%T|%N").splitlines()
        return {name: (state, node) for name, state, node in (line.split("|") for line in lines)}

    def assert_no_jobs(self) -> None:
        """A run is over a moment before the job of its head is."""
        until = time.monotonic() + END_S
        while jobs := self.jobs():
            assert time.monotonic() < until, jobs
            time.sleep(POLL_S)

    def end_jobs(self) -> None:
        """Cancels what a test has left."""
        if jobs := self._call("squeue", "--noheader", "--format=%i").split():
            self._call("scancel", *jobs)
        until = time.monotonic() + END_S
        while self._call("squeue", "--noheader") and time.monotonic() < until:
            time.sleep(POLL_S)

    def _of_node(self, node: str) -> list[int]:
        """slurmd of a node, the steps that it started, and every process that carries the node's name."""
        marked = [
            pid
            for pid in processes()
            if f"SLURMD_NODENAME={node}".encode() in contents(pid, "environ").split(b"\0")
        ]
        parents = {parent(pid) for pid in marked}
        steps = [pid for pid in parents if contents(pid, "comm").startswith(b"slurmstepd")]
        return [*self._pids(f"slurmd-{node}"), *steps, *marked]

    def _pids(self, daemon: str) -> list[int]:
        file = self.directory / "run" / f"{daemon}.pid"
        return [int(file.read_text())] if file.exists() else []

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _call(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=START_S, check=False
        )
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def _configuration(self) -> str:
        host, here = socket.gethostname(), self.directory
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr={self.address} Port={port} {self._size}"
            for node, port in self._ports.items()
        ]
        return "\n".join(
            [
                "ClusterName=earl",
                f"SlurmctldHost={host}({self.address})",
                f"SlurmctldPort={self._controller_port}",
                "SlurmUser=root",
                "SlurmdUser=root",
                "AuthType=auth/munge",
                # A job that is requeued waits for the end of its credential.
                f"AuthInfo=socket={here}/munge/socket,cred_expire=5",
                f"StateSaveLocation={here}/state",
                f"SlurmdSpoolDir={here}/spool/%n",
                f"SlurmctldPidFile={here}/run/slurmctld.pid",
                f"SlurmdPidFile={here}/run/slurmd-%n.pid",
                f"SlurmctldLogFile={here}/log/slurmctld.log",
                f"SlurmdLogFile={here}/log/slurmd-%n.log",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SwitchType=switch/none",
                "MpiDefault=none",
                "ReturnToService=2",
                "SlurmdTimeout=5",
                "KillWait=5",
                "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_Core_Memory",
                "SlurmdParameters=config_overrides",
                *nodes,
                "PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
                "",
            ]
        )


def network_address() -> str:
    """This machine's address towards the network; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))


def contents(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    stat = contents(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if len(stat) > 1 else 0
