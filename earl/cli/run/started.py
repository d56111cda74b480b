"""A run that was started in the background: what its command shows, or raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from earl.cli.lib.find_run import addresses_of
from earl.cli.run.detached import LaunchNews
from earl.config.deadlines import checkpoint_bytes, start_seconds
from earl.config.run import RunConfig
from earl.errors import EarlError, ProcessFailed
from earl.rpc.errors import catalogue
from earl.stack.process import last_lines
from earl.stack.record import read_record
from earl.stack.run_files import DASHBOARD_LINK, LOGS
from earl.stack.rundir import run_path

# Bound on an abandoned launch that ends what it had started.
GIVEN_UP_S = 20.0
# Beyond what bounds every step of a launch: imports, and the end of what is left.
SLACK_S = 60.0


@dataclass(slots=True)
class StartedRun:
    """A run that is up. seconds: from the command's start until every process was ready."""

    directory: Path
    pid: int
    seconds: float
    processes: list[str]
    addresses: Mapping[str, str] = field(default_factory=dict)
    # The environment that the run starts no host of.
    awaited: str = ""
    # The job of its head, where a cluster's manager runs it.
    job: str = ""

    def as_object(self) -> dict[str, Any]:
        return {
            "run": self.directory.name,
            "directory": str(self.directory),
            "pid": self.pid,
            "ready_s": round(self.seconds, 3),
            "processes": self.processes,
            "addresses": dict(self.addresses),
            **({"job": self.job} if self.job else {}),
        }

    def lines(self) -> list[str]:
        where, page = self.directory, self.addresses.get("dashboard")
        return [
            f"{where.name} is up after {self.seconds:.1f} s: {where}, {len(self.processes)} processes",
            *([f"page: {page}"] if page else []),
            *self._hosts(),
            f"show: earl status {where} · earl top {where} · earl logs {where} -f · earl dashboard {where}",
            f"end:  earl stop {where}",
        ]

    def _hosts(self) -> list[str]:
        if not self.awaited:
            return []
        gateway = self.addresses.get("gateway", "ADDRESS")
        return [f"hosts of {self.awaited} connect with: earl env serve MODULE:CLASS --gateway {gateway}"]


# Shows the processes' states; seconds since one of them changed, and until they are ready (0: not known).
Show = Callable[[Mapping[str, str], float, float], None]


def longest_pause_s(config: RunConfig) -> float:
    """The longest pause between reports: a process is ready within start_s, stopped within stop_s."""
    return start_seconds(config, checkpoint_bytes(config)) + 2 * config.stack.stop_s + SLACK_S


def started_run(config: RunConfig, news: LaunchNews, pid: int) -> StartedRun:
    directory = run_path(config)
    record = read_record(directory)
    names = [process.name for process in record.processes] if record is not None else []
    addresses = addresses_of(directory)
    with suppress(OSError):
        addresses["dashboard"] = (directory / DASHBOARD_LINK).read_text(encoding="utf-8").strip()
    awaited = ", ".join(dict.fromkeys(entry.name for entry in config.mixture if not entry.section.serve))
    return StartedRun(directory, pid, news.seconds, names, addresses, awaited)


def reason(news: LaunchNews, directory: Path, code: int) -> EarlError:
    """The error with which a launch failed, as the launcher raised it."""
    if news.kind == "failed":
        error = catalogue().get(news.error, ProcessFailed)(news.message, news.remedy)
        for note in news.notes:
            error.add_note(note)
        return error
    log = directory / LOGS / "earl.log"
    last = last_lines(log)
    error = ProcessFailed(
        f"the launcher ended with exit code {code} before the run was ready"
        + (f": {last[-1].strip()}" if last else ""),
        f"see {log}" if last else "see its output above",
    )
    if last:
        error.add_note("\n".join(last))
    return error
