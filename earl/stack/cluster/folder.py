"""The folder `cluster/` of a run's directory, by which the machines of a run tell each other what to do.

    cluster/job.json          the head's job: its manager and name; whether it has ended
    cluster/order.json        what the head runs, with the variables of whoever submitted it
    cluster/head.json         which head runs, and its count: `Fence`
    cluster/news.jsonl        how far the head is, for `earl up`
    cluster/stop              what `earl stop` asks of the head: "stop" or "now"
    cluster/probe             a random value, which nodes read before anything starts
    cluster/secrets/          tokens and certificates of the run
    cluster/slots/            on Kubernetes, the run's Pods: earl.stack.cluster.kubernetes.slots
    cluster/jobs/<id>/        one process that was placed:
        order.json            what its agent starts               begin.json   variables with which it begins
        placed.json           its node, once its agent runs       signals      numbers, a line each
        ready.json            where it serves                     ended.json   its exit code

The folder has mode 700 and every file 600; each is replaced as a whole. Orders hold secrets: they go when the
run ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from earl.expendable import ExpendableFile
from earl.json_fields import from_json
from earl.stack.run_files import CLUSTER, read_object, replace

# How often the head counts, and how long its count may stand still before it is taken for gone. A network
# file system may show a file as it was a minute ago.
BEAT_S, GONE_S = 5.0, 120.0
STOP, NOW = "stop", "now"


@dataclass(frozen=True, slots=True)
class HeadJob:
    """The job of a run's head. manager: its name, as for `earl up --on`. ended: it has ended by itself.

    cluster: the run's [cluster], with which the manager is asked. order: a random name of what it runs, where
    a manager may start that anew when it has ended; code: its exit code, then.
    """

    manager: str
    job: str
    ended: bool = False
    cluster: Mapping[str, Any] = field(default_factory=dict)
    order: str = ""
    code: int = 0


class ClusterFolder:
    """The folder of one run's directory."""

    def __init__(self, run: Path) -> None:
        self.path = run / CLUSTER
        self.order = self.path / "order.json"
        self.head = self.path / "head.json"
        self.news = self.path / "news.jsonl"
        self.stop = self.path / "stop"
        self.probe = self.path / "probe"
        self.secrets = self.path / "secrets"
        self.jobs = self.path / "jobs"
        self.slots = self.path / "slots"
        self._job = self.path / "job.json"
        self._names = self.path / "jobs.txt"

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    @property
    def job(self) -> HeadJob | None:
        """The head's job; None for a run that had none."""
        try:
            return from_json(HeadJob, json.loads(self._job.read_bytes()))
        except (OSError, ValueError):
            return None

    def keep_job(self, job: HeadJob) -> None:
        replace(self._job, json.dumps(asdict(job)) + "\n")

    def add_job(self) -> Path:
        """A new folder for one process that is to be placed."""
        self.jobs.mkdir(mode=0o700, exist_ok=True)
        path = self.jobs / secrets.token_hex(6)
        path.mkdir(mode=0o700)
        return path

    def keep_name(self, job: str) -> None:
        """Records the manager's name of a job that the head submitted."""
        append(self._names, job)

    def names(self) -> list[str]:
        """The manager's names of the jobs that heads have submitted and not seen ended."""
        return lines(self._names)

    def clear(self) -> None:
        """Removes what a head leaves: orders, secrets, and requests to it."""
        for directory in (self.jobs, self.secrets, self.slots):
            shutil.rmtree(directory, ignore_errors=True)
        for file in (self.order, self.head, self.stop, self.probe, self._names):
            file.unlink(missing_ok=True)


class Fence:
    """Tells by the head's count if this head, or the head of this process, is still the run's.

    mine: the head's random name. An old head and its agents see another name, or a count that stands still.
    """

    def __init__(self, file: Path, mine: str) -> None:
        self._file = file
        self._mine = mine
        self._expendable = ExpendableFile(file)
        self._count = 0
        self._last = (-1, time.monotonic())

    def beat(self) -> None:
        """Counts on, as the head. On a full disk the count stands still, and the head is taken for gone."""
        self._count += 1
        with self._expendable.written():
            replace(self._file, json.dumps({"head": self._mine, "count": self._count}))

    def broken(self) -> str:
        """The reason why this head is not the run's any more; "" if it is, as far as can be seen."""
        now, state = time.monotonic(), read_object(self._file)
        head = state.get("head", self._mine)
        if head != self._mine:
            return "another head runs the run"
        if state and state.get("count") != self._last[0]:
            self._last = (int(state.get("count", 0)), now)
        if now - self._last[1] > GONE_S:
            return f"the head has not counted for {GONE_S:g} s"
        return ""


def append(path: Path, line: str) -> None:
    """Adds a line to a file of mode 600."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def lines(path: Path) -> list[str]:
    """The whole lines of a file; none where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    return text.split("\n")[:-1]


def write(path: Path, value: Mapping[str, Any]) -> None:
    replace(path, json.dumps(value))
