"""The job of a run's head, from outside: is it there, and how it is ended."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from earl.errors import ConfigError, ServiceUnavailable
from earl.stack.cluster.folder import ClusterFolder, HeadJob, append

if TYPE_CHECKING:
    from earl.stack.cluster.manager import ClusterManager

# Commands that show a run ask again and again: the manager is asked at most so often.
FRESH_S = 2.0
POLL_S = 0.5
# Jobs that were cancelled have ended after this long, or are reported.
CANCELLED_S = 60.0
_managers: dict[tuple[str, str], ClusterManager] = {}
_answers: dict[tuple[str, str], tuple[float, bool]] = {}


def head_of(directory: Path) -> HeadJob | None:
    """The job of the head that a run on a cluster has, or had and lost; None once it has ended by itself."""
    head = ClusterFolder(directory).job
    return None if head is None or head.ended else head


def is_active(head: HeadJob) -> bool:
    """Returns whether a head's job is queued or running; False where its manager is not there to be asked."""
    key, now = (head.manager, head.job), time.monotonic()
    called_at, answer = _answers.get(key, (-FRESH_S, False))
    if now - called_at < FRESH_S:
        return answer
    # The schema of [cluster] takes longer to import than `earl status` without it.
    from earl.config.cluster import ClusterConfig
    from earl.stack.cluster.managers import manager_of

    try:
        if key not in _managers:
            _managers[key] = manager_of(head.manager, ClusterConfig(**head.cluster))
        status = _managers[key].statuses([head.job])[head.job]
    except ConfigError:
        return False
    except ServiceUnavailable:
        return True  # nobody starts a second one beside it
    # A job that was lost is requeued.
    active = status.phase != "ended"
    _answers[key] = now, active
    return active


def leave_cluster(directory: Path) -> None:
    """Prepares a run's directory for a launcher on this machine. Raises ConfigError if its head is active."""
    head = head_of(directory)
    if head is None:
        return
    if is_active(head):
        raise ConfigError(
            f"{directory} is run by {head.manager}'s job {head.job}", f"stop it with: earl stop {directory}"
        )
    folder = ClusterFolder(directory)
    folder.keep_job(replace(head, ended=True))
    folder.clear()


def request_stop(directory: Path, word: str) -> None:
    """Asks a head to end its run: STOP or NOW of earl.stack.cluster.folder."""
    append(ClusterFolder(directory).stop, word)


def until_inactive(head: HeadJob, bound_s: float) -> bool:
    """Waits until a head's job has ended; whether it did in time."""
    until = time.monotonic() + bound_s
    while is_active(head):
        if time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def end_jobs(manager: ClusterManager, jobs: list[str]) -> list[str]:
    """Cancels jobs and waits until they have ended. Returns those that have not within CANCELLED_S."""
    manager.cancel(jobs)
    until = time.monotonic() + CANCELLED_S
    while True:
        statuses = manager.statuses(jobs)
        jobs = [job for job in jobs if statuses[job].phase in ("queued", "running")]
        if not jobs or time.monotonic() > until:
            return jobs
        time.sleep(POLL_S)
