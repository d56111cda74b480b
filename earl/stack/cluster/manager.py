"""A cluster's manager as the run sees it: submit a job, its state, cancel it, what the nodes have.

    submit ─► queued ─► running on a node ─► ended
                            └► lost (the node, not the job)

The calls block for as long as the manager takes to answer, at most CALL_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

CALL_S = 30.0

Phase = Literal["queued", "running", "ended", "lost"]


@dataclass(frozen=True, slots=True)
class JobSize:
    """Cores, memory and GPUs of a job."""

    cpus: int
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to submit: `command` on one node.

    log: file for what the job itself prints. requeue: the manager starts it again if its node is lost.
    variables: of its environment; no secrets.
    """

    name: str
    command: tuple[str, ...]
    log: str
    size: JobSize
    requeue: bool = False
    variables: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job. reason: why it is queued, or what ended it, in the manager's words."""

    phase: Phase
    node: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node. address: by which others reach it. up: it takes jobs."""

    name: str
    address: str
    cpus: int
    memory_bytes: int
    gpus: int
    up: bool


class ClusterManager(Protocol):
    """A cluster's manager. Every call raises ConfigError where the manager is not there or refuses."""

    @property
    def name(self) -> str: ...

    def nodes(self) -> Sequence[ClusterNode]:
        """The nodes that jobs of the run may get."""
        ...

    def submit(self, job: JobRequest) -> str:
        """Submits a job. Returns its name at the manager."""
        ...

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        """The state of each of these jobs; a job that the manager has forgotten has ended.

        Raises ServiceUnavailable if the manager does not answer.
        """
        ...

    def cancel(self, jobs: Iterable[str]) -> None:
        """Ends jobs; nothing for those that have ended."""
        ...

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        """Reads a file on those of these nodes that are free: whether it has this value there."""
        ...

    @staticmethod
    def node_address() -> str:
        """The address of the node that calls this."""
        ...
