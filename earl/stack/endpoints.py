"""endpoints.json: where the processes of a running run serve their metrics.

The format is that of Prometheus's file_sd_configs, so that a Prometheus that reads the file follows the
run; after the run there is no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from earl.expendable import ExpendableFile
from earl.stack.run_files import replace

NAME = "endpoints.json"


class Endpoints:
    """Keeps the file in `directory`. run: the run's name."""

    def __init__(self, directory: Path, run: str) -> None:
        self._path = directory / NAME
        self._run = run
        self._written: dict[str, str] = {}
        self._expendable = ExpendableFile(self._path)

    def show(self, addresses: Mapping[str, str]) -> None:
        """host:port by process; those without one are left out. Writes only what changed; what
        cannot be written is tried again with the next call."""
        served = {process: address for process, address in addresses.items() if address}
        if served != self._written:
            groups = [
                {
                    "targets": [address],
                    "labels": {"run": self._run, "process": process, "service": service(process)},
                }
                for process, address in served.items()
            ]
            with self._expendable.written():
                replace(self._path, json.dumps(groups, indent=1) + "\n")
                self._written = served

    def close(self) -> None:
        """Removes all addresses: nothing is served any more."""
        with self._expendable.written():
            self._path.unlink(missing_ok=True)


def service(process: str) -> str:
    """The kind of a process: "rollout" for "rollout-0"."""
    return re.sub(r"-\d+$", "", process)


def endpoints_of(directory: Path) -> dict[str, str]:
    """host:port of GET /metrics by process; empty where nothing is served or the run has ended."""
    try:
        groups = json.loads((directory / NAME).read_text(encoding="utf-8"))
        return {group["labels"]["process"]: group["targets"][0] for group in groups}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
