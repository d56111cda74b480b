"""Runs of `earl up --on` as their operator sees them, for drills on clusters of this machine's own."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from earl.stack.cluster.folder import ClusterFolder
from tests.support.launched import SMALL, TICTACTOE
from tests.support.paths import ROOT

GIB = 1 << 30
# One job fills a node of 1 core and a little more memory, so that every job has another.
EACH = {
    "cluster.cpus": "1",
    "cluster.head_cpus": "1",
    "cluster.memory_bytes": str(2 * GIB),
    "cluster.head_memory_bytes": str(2 * GIB),
    "data_plane.trusted_network": "true",
    # Nodes are lost at any time: the example's limit of the time of training would end the run before.
    "scheduler.train_limit_s": "0",
    # A machine that is every node has little for each.
    "stack.start_s": "300",
}
COMMAND_S = 420.0
# A manager notices a lost node within its timeout and a ping; then a process starts.
RECOVERY_S = 420.0
POLL_S = 0.5


class ClusterRuns:
    """Runs in a directory, on the cluster that the commands of `environment` reach. jobs: of the manager, for
    the message of a failure."""

    def __init__(
        self, place: str, runs: Path, environment: Mapping[str, str], jobs: Callable[[], object] = dict
    ) -> None:
        self.runs = runs
        self._place = place
        self._environment = environment
        self._jobs = jobs

    def earl(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "earl.cli.main", *arguments],
            env={**self._environment, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def up(self, name: str, **overrides: str) -> subprocess.CompletedProcess[str]:
        """`earl up` of a small run; overrides: keys, with "__" for the point."""
        keys = {**SMALL, **EACH, **{key.replace("__", "."): value for key, value in overrides.items()}}
        words = [word for key, value in keys.items() for word in (f"--{key}", value)]
        place = ("--on", self._place, "--runs-dir", str(self.runs), "--name", name)
        return self.earl("up", str(TICTACTOE), *place, *words)

    def secrets_of(self, name: str) -> list[str]:
        """Tokens and the bus's password of a run in progress, whose files only their owner may read."""
        folder = ClusterFolder(self.runs / name)
        begins = "".join(path.read_text() for path in folder.jobs.glob("*/begin.json"))
        passwords = re.findall(r"redis://:([^@]+)@", begins)
        tokens = re.findall(r'"(earl_\w+_[^"]+)"', (folder.secrets / "tokens.toml").read_text())
        assert len(tokens) == 4 and passwords
        assert {path.stat().st_mode & 0o77 for path in folder.path.rglob("*")} == {0}
        return [*tokens, *passwords]

    def status(self, name: str) -> dict[str, Any]:
        return json.loads(self.earl("status", str(self.runs / name), "--json").stdout)

    def until(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The run's status once this holds; fails after RECOVERY_S."""
        until, status = time.monotonic() + RECOVERY_S, {}
        while time.monotonic() < until:
            with contextlib.suppress(ValueError):  # no answer
                status = self.status(name)
                if holds(status):
                    return status
            time.sleep(POLL_S)
        logs = self.earl("logs", str(self.runs / name), "-n", "60").stdout
        raise AssertionError(f"{status.get('state')}, jobs {self._jobs()}:\n{logs}")

    def trains(self, name: str, more: int = 5) -> int:
        """The step of a run once it has trained so many more."""
        before = self.until(name, lambda status: status["status"]["phase"] == "train")["status"]["step"]
        return self.until(name, lambda status: beyond(status, before + more))["status"]["step"]

    def recovers(self, name: str, step: int) -> None:
        """Waits until a run has trained well beyond this step."""
        self.until(name, lambda status: beyond(status, step + 10))

    def nothing_is_left(self, name: str) -> None:
        """Checks that neither orders and secrets nor processes of a run that has ended are left."""
        folder = ClusterFolder(self.runs / name)
        assert sorted(path.name for path in folder.path.iterdir()) == ["job.json", "news.jsonl"]
        assert folder.job is not None and folder.job.ended
        ended = self.earl("stop", str(self.runs / name), "--json").stdout
        assert json.loads(ended)["remains"] == {"pids": [], "paths": []}


def beyond(status: dict[str, Any], step: int) -> bool:
    return status["state"] == "running" and status["status"]["step"] > step


def accounted(ledger: dict[str, Any]) -> bool:
    """Returns whether every ticket is in one place, and none was dropped but by a return to a checkpoint."""
    parts = ("trained", "replayed", "evaluated", "dropped_total", "live")
    whole = ledger["issued"] == sum(ledger[part] for part in parts)
    return whole and set(ledger["dropped"]) <= {"rolled_back"}
