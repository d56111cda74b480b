"""Starts the ranks of a trainer on this machine through torchrun's own agent.

    python -m services.trainer ─┬─ one rank: it is the rank itself, nothing to supervise
                                └─ more: torchrun's agent here, `python -m services.trainer` per rank

On several nodes the same is started on each, whose environment says how many there are (EARL_NODES), which
of them it is (EARL_NODE, from 0) and where the first is reached (EARL_MASTER, host:port): each has a part
of the ranks.

A rank that dies ends the group (no restarts): its exit code becomes the group's. SIGTERM goes to every rank,
those that torchrun starts later too; they save and leave, and the agent then ends with 0. While there is no
rank, the agent just ends: nothing is lost.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from earl.bulk_import import bulk_import
from earl.errors import ConfigError
from earl.rpc.auth import split_address

AGENT = "EARL_TRAINER_AGENT"
# A group that lost a rank cannot save: the others get this long to close their files.
LOST_S = 5
# How soon a rank that was started after a signal is sent it.
LATE_S = 0.1
SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines that a group of ranks runs on.

    count: how many; number: which of them this is, from 0. master: host:port that the first one opens.
    """

    count: int = 1
    number: int = 0
    master: str = ""

    @classmethod
    def from_environment(cls) -> Nodes:
        """The nodes that EARL_NODES, EARL_NODE and EARL_MASTER name; one machine without them.

        Raises ConfigError.
        """
        given = {name: os.environ.get(name, "") for name in ("EARL_NODES", "EARL_NODE", "EARL_MASTER")}
        count, number, master = given.values()
        if (count or "1") == "1":
            return cls()
        if not (count.isdecimal() and number.isdecimal() and int(number) < int(count)):
            raise ConfigError(
                f"EARL_NODES={count} EARL_NODE={number} is no node of a trainer", "EARL_NODE counts from 0"
            )
        split_address(master)
        return cls(int(count), int(number), master)

    def share(self, ranks: int) -> int:
        """Returns how many of all ranks each node has. Raises ConfigError unless all have equally many."""
        if ranks % self.count:
            raise ConfigError(
                f"{ranks} ranks do not divide into EARL_NODES={self.count} nodes",
                "give every node equally many ranks",
            )
        return ranks // self.count


def launch(arguments: Sequence[str], ranks: int, module: str = "services.trainer") -> int:
    """Runs `python -m <module> <arguments>` once per rank of this node; returns the group's exit code.

    ranks: of all nodes together. Raises ConfigError.
    """
    nodes = Nodes.from_environment()
    relay = SignalRelay()
    with bulk_import():
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        from services.trainer.ranks.rendezvous import BACKEND

    config = LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=nodes.share(ranks),
        run_id=module if nodes.master else f"{module}-{os.getpid()}",
        rdzv_backend="static" if nodes.master else BACKEND,
        rdzv_endpoint=nodes.master,
        rdzv_configs={"rank": nodes.number} if nodes.master else {},
        max_restarts=0,
        monitor_interval=0.1,
        # SIGTERM and SIGINT are passed on (SignalRelay), so that the ranks can save.
        signals_to_handle="SIGHUP,SIGQUIT",
        **shutdown_options(LaunchConfig),
    )
    os.environ[AGENT] = str(os.getpid())
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        # A rank killed by a signal has a negative code; the first to fail is the cause.
        first = min(error.failures.values(), key=lambda failure: failure.timestamp).exitcode
        if relay.signalled and -first in SIGNALS:
            return 0  # stopped before it listened, when it had nothing to save
        return first if first > 0 else next((code for code in codes if code > 0), 1)
    finally:
        relay.ended = True
    return 0


def shutdown_options(config: type) -> dict[str, Any]:
    """The bound on how long a group that lost a rank may take to end; torch 2.11 takes none."""
    return {"shutdown_timeout": LOST_S} if "shutdown_timeout" in signature(config).parameters else {}


class SignalRelay(threading.Thread):
    """Passes SIGTERM and SIGINT on to the ranks, each of which torchrun starts in a session of its own.

    It receives them in a thread: the main one may be waiting inside of torch, for another node. signalled:
    one came. ended: set when the group has ended, after which there is nothing to pass on.
    """

    def __init__(self) -> None:
        super().__init__(name="signal-relay", daemon=True)
        self.signalled = False
        self.ended = False
        self._wakeup, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the interpreter writes its number into the pipe
        self.start()

    def run(self) -> None:
        latest, sent = 0, set[int]()
        while True:
            readable, _, _ = select.select([self._wakeup], [], [], LATE_S if self.signalled else None)
            written = os.read(self._wakeup, 64) if readable else b""
            received = [number for number in written if number in SIGNALS]
            if self.ended:
                return
            if received:
                latest, sent = received[-1], set[int]()
                if not self.signalled and not _child_pids():
                    # A rank that is being started now ends by itself: see follow_agent.
                    os._exit(0)
                self.signalled = True
            if self.signalled:
                sent |= _send(latest, set(_child_pids()) - sent)


def _send(number: int, pids: set[int]) -> set[int]:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it left in between
    return pids


def follow_agent() -> None:
    """Makes the kernel send this rank SIGTERM when its agent dies, so that no rank is left behind.

    Raises SystemExit if it has died already.
    """
    agent = os.environ.get(AGENT, "")
    if not agent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(agent):
        raise SystemExit(0)  # before the call above; nothing has begun


def _child_pids() -> list[int]:
    """Processes whose parent this process is."""
    pids = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids += [int(pid) for pid in (task / "children").read_text().split()]
        except FileNotFoundError:
            pass  # a thread that ended
    return pids
