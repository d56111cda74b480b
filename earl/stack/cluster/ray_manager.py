"""Ray as a cluster's manager, through a process of the Python that has Ray (`ray_side.py`).

Ray's client is no dependency of EARL: it lives in an environment of its own, with which the Ray cluster was
started too.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from earl.config.cluster import ClusterConfig
from earl.errors import ConfigError, ServiceUnavailable
from earl.stack.cluster.manager import CALL_S, ClusterNode, JobRequest, JobStatus

SIDE = Path(__file__).with_name("ray_side.py")
DEFAULT_PYTHON = Path(".venv-ray/bin/python")
# The first call waits for Ray's client to connect, too.
CONNECT_S = 60.0
# The probe begins a worker of Ray on every node; nodes that are slower are not asked.
PROBE_S = 60.0


class RayManager:
    """A Ray cluster. One process of Ray's Python answers all calls; it ends with this one."""

    name = "ray"

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError where there is no Python with Ray."""
        self._python = Path(config.ray_python) if config.ray_python else DEFAULT_PYTHON.absolute()
        if not self._python.is_file():
            raise ConfigError(
                f"--on ray: there is no Python with Ray at {self._python}",
                "make one with: make setup-ray, or set cluster.ray_python",
            )
        # In a job: of the cluster that runs it.
        here = os.environ.get("EARL_RAY_ADDRESS", "")
        self._address = config.ray_address or here or os.environ.get("RAY_ADDRESS", "")
        self._lock = threading.Lock()
        self._side: subprocess.Popen[str] | None = None
        # Its standard error: a file, for nobody reads a pipe while all is well.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115

    def nodes(self) -> Sequence[ClusterNode]:
        return [ClusterNode(**node) for node in self._call("nodes")]

    def submit(self, job: JobRequest) -> str:
        # Names of Ray's actors are unique in the cluster; a process has one job after the other.
        name = f"{job.name}-{os.urandom(4).hex()}"
        return self._call(
            "submit",
            name=name,
            command=list(job.command),
            variables=dict(job.variables or {}),
            log=job.log,
            cpus=job.size.cpus,
            memory_bytes=job.size.memory_bytes,
            gpus=job.size.gpus,
            requeue=job.requeue,
        )

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        chosen = list(jobs)
        if not chosen:
            return {}
        try:
            answers = self._call("statuses", jobs=chosen)
        except ConfigError as error:
            raise ServiceUnavailable(error.message, "see if the cluster answers: ray status") from None
        return {job: JobStatus(**answer) for job, answer in answers.items()}

    def cancel(self, jobs: Iterable[str]) -> None:
        if chosen := list(jobs):
            self._call("cancel", jobs=chosen)

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        return self._call(
            "probe", PROBE_S + CALL_S, file=file, value=value, nodes=list(nodes), timeout_s=PROBE_S
        )

    @staticmethod
    def node_address() -> str:
        return os.environ.get("EARL_RAY_NODE_ADDRESS", "") or socket.gethostname()

    def close(self) -> None:
        """Ends the process of Ray's Python; the next call begins another."""
        if self._side is not None:
            self._side.kill()
            self._side.wait()
            self._side = None

    def _call(self, call: str, within_s: float = CALL_S, /, **arguments: Any) -> Any:
        """Calls the side of Ray; within_s: bound on its answer.

        Raises ConfigError for what Ray refuses, ServiceUnavailable without an answer.
        """
        with self._lock:
            line = self._answer(json.dumps({"call": call, **arguments}), within_s)
        answer = json.loads(line) if line else {}
        if "error" in answer:
            raise ConfigError(f"Ray refused {call}: {answer['error'].splitlines()[0]}", "see: ray status")
        if "answer" not in answer:
            raise ServiceUnavailable(
                f"Ray did not answer {call}: {self._last_words()}",
                "start a cluster with: ray start --head, or set cluster.ray_address to one that runs",
            )
        return answer["answer"]

    def _answer(self, request: str, timeout_s: float) -> str:
        if self._side is None or self._side.poll() is not None:
            timeout_s += CONNECT_S
            self._side = subprocess.Popen(
                [str(self._python), str(SIDE), *([self._address] if self._address else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                text=True,
                start_new_session=True,
            )
        side = self._side
        assert side.stdin is not None and side.stdout is not None
        try:
            side.stdin.write(request + "\n")
            side.stdin.flush()
        except BrokenPipeError:
            return ""
        readable, _, _ = select.select([side.stdout], [], [], timeout_s)
        if not readable:
            side.kill()  # an answer that came late would be taken for the next call's
            return ""
        return side.stdout.readline()

    def _last_words(self) -> str:
        self.close()
        self._words.seek(0)
        text = self._words.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it wrote nothing"
