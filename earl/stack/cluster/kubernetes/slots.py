"""The Pods of a run as its head sees them: each is a slot, in which one process after the other runs.

    head: next ─► Pod: taken.json ─► agent ─► left.json         the head reads how far a Pod has counted
              cancel ─────────────────┘                         in pod.json; one that stands still is lost

    cluster/slots/<process>/size.json    what the Pod has, written by the head
                            pod.json     the Pod that is there now, and its count
                            next         the folder of the job that it is to run
    cluster/jobs/<id>/taken.json         which Pod has taken the job
                      cancel             the head wants it ended
                      left.json          the agent's exit code, once that has ended

All Jobs of a run are made when it is submitted, and the head asks nobody for more: it needs no rights at
Kubernetes. A job of its board is named `<process>/<id>`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from earl.errors import ConfigError
from earl.json_fields import from_json
from earl.stack.cluster.folder import ClusterFolder, write
from earl.stack.cluster.manager import ClusterNode, JobRequest, JobSize, JobStatus
from earl.stack.cluster.names import SLOTS_VARIABLE
from earl.stack.run_files import read_object, replace

# A Pod whose count stands still for so long is lost: it counts every BEAT_S of earl.stack.cluster.folder, and
# a network file system may show a file as it was some time ago.
QUIET_S = 60.0


@dataclass(frozen=True, slots=True)
class PodBeat:
    """The Pod in a slot. start: a random name of its process. count: grows while that lives."""

    pod: str
    node: str
    start: str
    count: int


class SlotFiles:
    """The files of one slot, and of the jobs that it is given."""

    def __init__(self, folder: ClusterFolder, process: str) -> None:
        self._jobs = folder.jobs
        self.path = folder.slots / process
        self.size = self.path / "size.json"
        self.pod = self.path / "pod.json"
        self.next = self.path / "next"

    @property
    def beat(self) -> PodBeat | None:
        """The Pod that is there, or was last; None if there was none."""
        value = read_object(self.pod)
        return from_json(PodBeat, value) if value else None

    def write_beat(self, beat: PodBeat) -> None:
        write(self.pod, asdict(beat))

    def job(self) -> Path | None:
        """The folder of the job that the slot is to run; None if it was given none."""
        try:
            name = self.next.read_text(encoding="utf-8").strip()
        except OSError:
            return None
        return self._jobs / name if name else None


def make_slots(folder: ClusterFolder, sizes: Mapping[str, JobSize]) -> None:
    """Makes the slots of a run's processes; what Pods have written there stays."""
    folder.slots.mkdir(mode=0o700, exist_ok=True)
    for process, size in sizes.items():
        slot = SlotFiles(folder, process)
        slot.path.mkdir(mode=0o700, exist_ok=True)
        write(slot.size, asdict(size))


def is_in_pod() -> bool:
    """Returns whether this process is in the Pod of a run's head."""
    return bool(os.environ.get(SLOTS_VARIABLE))


def pod_address() -> str:
    """The name by which other Pods reach this one: in a domain of the run's Service, so that one certificate
    is valid for all; the Pod's address where it has no such name, or one that leads elsewhere."""
    name, address = socket.getfqdn(), os.environ.get("EARL_POD_IP", "")
    return name if "." in name and _leads_to(name, address) else address or name


def _leads_to(name: str, address: str) -> bool:
    """Returns whether a name is one of this address; of any where that is ""."""
    try:
        entries = socket.getaddrinfo(name, None)
    except OSError:
        return False
    return not address or address in {entry[4][0] for entry in entries}


def pods_domain(address: str) -> str:
    """All names of the domain of `pod_address`, for a certificate; an IP address is itself alone.

    >>> pods_domain("earl-x-head-0.earl-x.default.svc.cluster.local")
    '*.earl-x.default.svc.cluster.local'
    """
    first, _, domain = address.partition(".")
    return address if not domain or first.isdecimal() else f"*.{domain}"


class SlotManager:
    """`earl.stack.cluster.manager.ClusterManager` in the head's Pod: its nodes are the run's Pods."""

    name = "kubernetes"

    def __init__(self) -> None:
        self._folder = ClusterFolder(Path(os.environ[SLOTS_VARIABLE]).parents[1])
        self._changed: dict[str, tuple[PodBeat, float]] = {}

    def nodes(self) -> Sequence[ClusterNode]:
        """The Pods that the run asked for, whether they run yet or not. Raises ConfigError if it has none."""
        domain = pods_domain(pod_address())
        nodes = []
        for file in sorted(self._folder.slots.glob("*/size.json")):
            size = from_json(JobSize, read_object(file))
            node = ClusterNode(file.parent.name, domain, size.cpus, size.memory_bytes, size.gpus, up=True)
            nodes.append(node)
        if not nodes:
            raise ConfigError(f"{self._folder.slots} has no slots of Pods", "start the head with its order")
        return nodes

    def submit(self, job: JobRequest) -> str:
        process = job.name.removeprefix(f"earl-{self._folder.path.parent.name}-")
        folder = Path(job.command[-1])
        replace(SlotFiles(self._folder, process).next, folder.name + "\n")
        return f"{process}/{folder.name}"

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        now = time.monotonic()
        return {job: self._status(job, now) for job in jobs}

    def _status(self, job: str, now: float) -> JobStatus:
        process, _, name = job.partition("/")
        folder = self._folder.jobs / name
        if not name:  # the head's own
            head = self._folder.job
            return JobStatus("ended" if head is None or head.ended else "running")
        if not folder.is_dir():
            return JobStatus("ended", reason="its order is gone")
        beat = SlotFiles(self._folder, process).beat
        taken, left = read_object(folder / "taken.json"), read_object(folder / "left.json")
        if not taken:
            if (folder / "cancel").exists():
                return JobStatus("ended", reason="cancelled before a Pod took it")
            return JobStatus("queued", reason="no Pod has taken it (kubectl get pods has the reason)")
        holder = from_json(PodBeat, taken)
        if left:
            return JobStatus("ended", holder.node, f"its agent ended with code {left['code']}")
        if beat is None or beat.start != holder.start:
            return JobStatus("lost", holder.node, f"replaced: Pod {holder.pod} is gone")
        if self._is_unreachable(process, beat, now):
            return JobStatus(
                "lost", holder.node, f"unreachable: Pod {holder.pod} has not counted for {QUIET_S:g} s"
            )
        return JobStatus("running", holder.node)

    def _is_unreachable(self, process: str, beat: PodBeat, now: float) -> bool:
        last, changed_at = self._changed.get(process, (None, now))
        if last != beat:
            changed_at = now
        self._changed[process] = beat, changed_at
        return now - changed_at > QUIET_S

    def cancel(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            name = job.partition("/")[2]
            folder = self._folder.jobs / name
            if name and folder.is_dir():
                replace(folder / "cancel", "")

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        """Answers for no Pod: all of them mount the claim from which this one reads its own order."""
        return {}

    @staticmethod
    def node_address() -> str:
        return pod_address()
