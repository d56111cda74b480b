"""A run whose processes are on the hosts of a rig, with TLS, tokens and a Valkey on the network.

    with HostedRun(rig, config, places) as run:      places: host by process, "valkey" among them
        run.start()                                  every process ready
        run.steps()                                  the trained steps so far
        run.ended()                                  processes that have ended, with their codes

The hosts share the run's directory and nothing else: arenas are read over the wire.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.children import late, process_error
from benchmarks.network.rig import Rig, RigHost
from benchmarks.record.checkout import ROOT
from earl.bus.embedded import server_binary
from earl.config.run import RunConfig
from earl.models.create import create_models
from earl.rpc import certificates, token_file
from earl.stack import plan
from earl.stack.process import last_lines
from earl.stack.starter import ready_line

START_S = 120.0
POLL_S = 0.02
_PORTS = {"scheduler": 7001, "gateway": 7002, "valkey": 6379}
_DAYS = 2


def hosted(config: RunConfig) -> RunConfig:
    """The run file for a rig: who listens does so on all interfaces of its host, and nobody watches."""

    def bound(section: str) -> dict[str, str]:
        return {"bind": f"0.0.0.0:{_PORTS[section]}"}

    return config.model_copy(
        update={
            "scheduler": config.scheduler.model_copy(update=bound("scheduler")),
            "gateway": config.gateway.model_copy(update=bound("gateway")),
            "bus": config.bus.model_copy(update={"redis_url": "redis://valkey"}),
            "data_plane": config.data_plane.model_copy(update={"bind": "0.0.0.0", "trusted_network": True}),
            "dashboard": config.dashboard.model_copy(update={"bind": ""}),
        }
    )


class HostedProcess:
    """A process of the run on a host: its log, and whether it is ready."""

    def __init__(self, name: str, command: list[str], host: RigHost, environment: dict[str, str], log: Path):
        self.name, self.log = name, log
        self._ready = log.with_suffix(".ready")
        with open(log, "ab") as output, open(self._ready, "ab") as printed:
            self.process = subprocess.Popen(
                [*host.enter, *command], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=output,
            )  # fmt: skip

    @property
    def ready(self) -> bool:
        return any(ready_line(line) is not None for line in self._ready.read_bytes().splitlines())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(START_S)


class HostedRun:
    """The processes of one run; leaving the block ends them."""

    def __init__(self, rig: Rig, config: RunConfig, places: Mapping[str, int]) -> None:
        """places: the host of each process of the plan, and of "valkey"."""
        self._rig, self._places = rig, dict(places)
        self.config = hosted(config)
        self.directory = Path(config.runs_dir) / config.name
        self.processes: dict[str, HostedProcess] = {}
        self._password = secrets.token_urlsafe(16)
        self._steps: list[int] = []
        # How much of the metrics file they are from.
        self._read_bytes = 0
        # The variables of every process; none before `start`.
        self._environment: dict[str, str] = {}

    def __enter__(self) -> HostedRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes.values()):
            process.kill()

    def host(self, name: str) -> RigHost:
        """The host that a process is on."""
        return self._rig.hosts[self._places[name]]

    def start(self) -> None:
        """Starts every process, each once those that it needs are ready. Raises ProcessFailed."""
        logs = self.directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        run_json = self.directory / "run.json"
        run_json.write_text(self.config.model_dump_json(indent=1))
        create_models(self.directory, self.config)
        shared = self._environment = self._credentials()
        self._start_valkey(logs)
        for spec in plan.plan(self.config, run_json):
            if spec.job:
                continue
            for need in spec.needs:
                if need in self.processes:
                    self._until_ready(self.processes[need])
            host = self.host(spec.name)
            environment = {**shared, **spec.environment, "EARL_ADVERTISE": host.address}
            if spec.name not in _PORTS:
                environment["EARL_BIND"] = "0.0.0.0:0"
            command = [sys.executable, *spec.arguments]
            self.processes[spec.name] = HostedProcess(
                spec.name, command, host, environment, logs / f"{spec.name}.log"
            )
        for process in self.processes.values():
            self._until_ready(process)

    def ended(self) -> dict[str, int]:
        """Exit codes of the processes that have ended, by name."""
        codes = {name: process.process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def steps(self) -> list[int]:
        """The training steps that are recorded, in order."""
        path = self.directory / "metrics.jsonl"
        if path.exists():
            with open(path, "rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            self._read_bytes += len(whole) + bool(whole)
            records = [json.loads(line) for line in whole.splitlines()]
            self._steps += [record["step"] for record in records if "step" in record and "loss" in record]
        return self._steps

    def lost_tickets(self) -> int:
        """Counts issued tickets that are in no state.

        Raises ProcessFailed or DeadlineExceeded where the scheduler does not answer.
        """
        command = [*self.host("scheduler").enter, sys.executable, "-m", "benchmarks.network.fleet_status"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=START_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise late("the scheduler's status", START_S) from error
        if done.returncode:
            raise process_error("the scheduler's status", done.returncode, done.stderr)
        counts = json.loads(done.stdout)
        known = ("trained", "replayed", "evaluated", "dropped", "live")
        return counts["issued"] - sum(counts[state] for state in known)

    def _credentials(self) -> dict[str, str]:
        """The variables of every process: certificates, tokens of every role, addresses."""
        folder = self.directory / "credentials"
        made = certificates.make(
            folder, [host.address for host in self._rig.hosts], days=_DAYS, authority_days=_DAYS
        )
        tokens = folder / "tokens.toml"
        token_file.write(tokens, [token_file.make(role) for role in token_file.Role])
        valkey = self.host("valkey").address
        addresses = plan.StackAddresses(
            f"{self.host('scheduler').address}:{_PORTS['scheduler']}",
            f"{self.host('gateway').address}:{_PORTS['gateway']}",
            f"redis://:{self._password}@{valkey}:{_PORTS['valkey']}",
        )
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "EARL_TLS_CERT": str(made.path("server.pem")),
            "EARL_TLS_KEY": str(made.path("server.key")),
            "EARL_TLS_CA": str(made.path("ca.pem")),
            "EARL_TOKENS": str(tokens),
            **addresses.environment(),
        }

    def _start_valkey(self, logs: Path) -> None:
        host, folder = self.host("valkey"), self.directory / "valkey"
        folder.mkdir(mode=0o700, exist_ok=True)
        settings = folder / "valkey.conf"
        settings.write_text(
            f"bind {host.address}\nport {_PORTS['valkey']}\nrequirepass {self._password}\ndir {folder}\n"
            'save ""\nappendonly yes\nappendfsync always\n'
        )
        command = [str(server_binary()), str(settings)]
        self.processes["valkey"] = HostedProcess(
            "valkey", command, host, dict(os.environ), logs / "valkey.log"
        )

    def _until_ready(self, process: HostedProcess) -> None:
        if process.name == "valkey":
            return  # whoever connects first tries it for some seconds
        ends_s = time.monotonic() + START_S
        while not process.ready:
            if (code := process.process.poll()) is not None:
                raise process_error(process.name, code, "\n".join(last_lines(process.log, 40)))
            if time.monotonic() > ends_s:
                raise late(f"the start of {process.name}", START_S)
            time.sleep(POLL_S)
