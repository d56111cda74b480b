"""Slurm as a cluster's manager: sbatch, squeue, scancel, sinfo, and srun for the probe.

A job's script has paths alone, and `--export=NIL` keeps the submitter's variables out of it: what is secret
goes through files of the run's directory.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from earl.config.cluster import ClusterConfig
from earl.errors import ConfigError, ServiceUnavailable
from earl.stack.cluster.manager import CALL_S, ClusterNode, JobRequest, JobStatus, Phase

NEEDED = ("sbatch", "squeue", "scancel", "sinfo", "srun", "scontrol")
MIB = 1 << 20
# Seconds that the probe of a node waits until that is free, and that it may take.
PROBE_WAIT_S, PROBE_S = 10, 45
PROBES_AT_ONCE = 16
ANSWERS = "see if slurmctld answers: scontrol ping"
_LOST = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED"}
_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
# States of a node that runs no jobs, or will run none.
_AWAY = ("down", "drain", "fail", "maint", "unk", "no_respond", "reboot")
_FORMAT = "%i|%T|%N|%r"
_NODE_FORMAT = "%N|%o|%c|%m|%G|%T"


class SlurmManager:
    """The Slurm of this machine's commands (and SLURM_CONF)."""

    name = "slurm"

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError where a command is missing."""
        missing = [program for program in NEEDED if shutil.which(program) is None]
        if missing:
            raise ConfigError(
                f"--on slurm: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH",
                "call it where jobs are submitted, with Slurm's client commands (Debian: slurm-client)",
            )
        self._config = config

    def nodes(self) -> Sequence[ClusterNode]:
        partition = self._config.partition
        chosen = [f"--partition={partition}"] if partition else []
        lines = self._called("sinfo", "--noheader", "--Node", f"--format={_NODE_FORMAT}", *chosen)
        nodes = parsed_nodes(lines)
        if not nodes:
            raise ConfigError(
                f"Slurm has no nodes{f' in partition {partition!r}' if partition else ''}",
                "set cluster.partition to one of: sinfo --summarize",
            )
        return nodes

    def submit(self, job: JobRequest) -> str:
        line = self._called("sbatch", *options(job, self._config), stdin=script(job))
        return line.strip().partition(";")[0]

    def statuses(self, jobs: Iterable[str]) -> Mapping[str, JobStatus]:
        chosen = tuple(jobs)
        if not chosen:
            return {}
        jobs_option = f"--jobs={','.join(chosen)}"
        done = _run(("squeue", "--noheader", "--states=all", f"--format={_FORMAT}", jobs_option))
        if done.returncode and "Invalid job id" not in done.stderr:
            raise ServiceUnavailable(f"squeue failed: {_words(done)}", ANSWERS)
        known = parsed_statuses(done.stdout)
        return {job: known.get(job, JobStatus("ended", reason="unknown to Slurm")) for job in chosen}

    def cancel(self, jobs: Iterable[str]) -> None:
        if chosen := tuple(jobs):
            _run(("scancel", "--quiet", *chosen))

    def probe(self, file: str, value: str, nodes: Sequence[str]) -> Mapping[str, bool]:
        test = f'[ "$(cat {shlex.quote(file)} 2>/dev/null)" = {value} ] && echo yes || echo no'
        config = self._config
        command = (
            "srun", "--nodes=1", "--ntasks=1", "--mem=16M", "--export=NIL", "--chdir=/", "--time=1",
            "--quiet", f"--immediate={PROBE_WAIT_S}", "--job-name=earl-probe",
            *([f"--partition={config.partition}"] if config.partition else []),
            *([f"--account={config.account}"] if config.account else []),
        )  # fmt: skip

        def answer(node: str) -> str:
            return _run((*command, f"--nodelist={node}", "/bin/sh", "-c", test), PROBE_S).stdout.strip()

        with ThreadPoolExecutor(PROBES_AT_ONCE) as threads:
            answers = dict(zip(nodes, threads.map(answer, nodes), strict=True))
        return {node: words == "yes" for node, words in answers.items() if words in ("yes", "no")}

    @staticmethod
    def node_address() -> str:
        node = os.environ.get("SLURMD_NODENAME", "")
        if node:
            done = _run(("scontrol", "show", "node", "--oneliner", node))
            for word in done.stdout.split():
                if word.startswith("NodeAddr="):
                    return word.removeprefix("NodeAddr=")
        return node or socket.gethostname()

    def _called(self, *command: str, stdin: str = "") -> str:
        """The output of a command. Raises ConfigError with Slurm's own words."""
        done = _run(command, stdin=stdin)
        if done.returncode:
            raise ConfigError(f"{command[0]} failed: {_words(done)}", "correct [cluster], or ask for less")
        return done.stdout


def options(job: JobRequest, config: ClusterConfig) -> list[str]:
    """The options of sbatch for a job."""
    given = {
        "job-name": job.name,
        "output": job.log.replace("%", "%%"),
        "open-mode": "append",
        "export": "NIL",
        "chdir": "/",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(job.size.cpus),
        "mem": f"{math.ceil(job.size.memory_bytes / MIB)}M",
        "gres": f"gpu:{job.size.gpus}" if job.size.gpus else "",
        "time": str(math.ceil(config.limit_s / 60)) if config.limit_s else "",
        "partition": config.partition,
        "account": config.account,
        "constraint": config.constraint,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value]
    return ["--parsable", "--requeue" if job.requeue else "--no-requeue", *words]


def script(job: JobRequest) -> str:
    """The script of a job: its command alone, in place of the shell, so that it gets the job's signals."""
    variables = [f"export {name}={shlex.quote(value)}" for name, value in (job.variables or {}).items()]
    return "\n".join(["#!/bin/sh", *variables, f"exec {shlex.join(job.command)}", ""])


def parsed_statuses(output: str) -> dict[str, JobStatus]:
    """The states of jobs, by the lines of squeue in the format _FORMAT."""
    statuses = {}
    for line in output.splitlines():
        job, state, node, reason = (part.strip() for part in line.split("|", 3))
        words = state if reason in ("", "None") else f"{state} ({reason})"
        statuses[job] = JobStatus(phase_of(state), node, words)
    return statuses


def phase_of(state: str) -> Phase:
    """The phase of a state of Slurm, such as "RUNNING"; one that is not known has ended."""
    if state in _LOST:
        return "lost"
    if state in _QUEUED:
        return "queued"
    return "running" if state in _RUNNING else "ended"


def parsed_nodes(output: str) -> list[ClusterNode]:
    """Nodes by the lines of sinfo in the format _NODE_FORMAT; each once, whatever partitions have it."""
    nodes: dict[str, ClusterNode] = {}
    for line in output.splitlines():
        name, address, cpus, memory, gres, state = (part.strip() for part in line.split("|"))
        up = not state.endswith("*") and not state.lower().startswith(_AWAY)
        memory_bytes = int(memory.rstrip("+")) * MIB
        nodes[name] = ClusterNode(name, address, int(cpus.rstrip("+")), memory_bytes, gpus_of(gres), up)
    return list(nodes.values())


def gpus_of(gres: str) -> int:
    """GPUs of a node by its generic resources, such as "gpu:a100:4(S:0-1),nvme:2".

    >>> gpus_of("gpu:a100:4(S:0-1),nvme:2")
    4
    """
    total = 0
    for entry in gres.replace("(null)", "").split(","):
        words = entry.partition("(")[0].split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdecimal() else 1
    return total


def _run(
    command: Sequence[str], timeout_s: float = CALL_S, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm. Raises ServiceUnavailable if it does not end in time."""
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ServiceUnavailable(f"{command[0]} did not answer within {timeout_s:g} s", ANSWERS) from None


def _words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    shown = " / ".join(line.removeprefix("sbatch: error: ") for line in lines)
    return shown or f"exit code {done.returncode}"
