"""The runs of a folder, each watched while somebody looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from earl.cli.lib.run_directory import config_of
from earl.cli.report.sections.alerts import Alerts
from earl.cli.report.sections.busy import BusyTable
from earl.cli.report.sections.history import RunHistory
from earl.cli.report.sections.run_file import SECRET
from earl.cli.report.sections.series import AXES, MetricTable
from earl.cli.report.sections.trajectories import Trajectories
from earl.config.run import RunConfig
from earl.dashboard.codec_services import Services
from earl.dashboard.feed import Feed
from earl.dashboard.live import Live
from earl.dashboard.watch import RunWatch
from earl.errors import ConfigError
from earl.obs.metrics import flat

# Runs that are watched at once; of more, the one that nobody looked at for the longest time is closed.
OPEN = 16
# The end of keys that every launch sets anew.
ADDRESS = ".bind"

ServicesOf = Callable[[Path, RunConfig], Services]


class ViewedRun:
    """One run's directory, as the page shows it."""

    def __init__(self, directory: Path, config: RunConfig, services: Services) -> None:
        self.directory = directory
        self.config = config
        self.feed = Feed()
        self.trajectories = Trajectories(directory)
        self._services = services
        self._metrics = MetricTable(directory / "metrics.jsonl")
        self._busy = BusyTable(directory / "timeline.jsonl")
        self._alerts = Alerts(directory)
        # One request at a time reads on in a file.
        self._reading = asyncio.Lock()
        history = RunHistory(directory, config)
        self.watch = RunWatch(history, self.trajectories, Live(directory, config, services), self.feed)
        self._task = asyncio.create_task(self.watch.run(), name=f"watch {directory.name}")

    async def metric_names(self) -> list[str]:
        """Names of all numbers of metrics.jsonl."""
        async with self._reading:
            await asyncio.to_thread(self._metrics.update)
        return self._metrics.names

    async def series(self, names: Iterable[str], over: str) -> dict[str, list[tuple[float, float]]]:
        """Points of each metric over "step" or "time_s"."""
        async with self._reading:
            await asyncio.to_thread(self._metrics.update)
        return {name: self._metrics.series(name, over if over in AXES else AXES[0]) for name in names}

    async def busy(self) -> dict[str, Any]:
        """Returns who was busy when: see BusyTable.section."""
        async with self._reading:
            await asyncio.to_thread(self._busy.update)
        return self._busy.section()

    async def alerts(self) -> list[dict[str, Any]]:
        """The last warnings and errors: see Alerts.update."""
        async with self._reading:
            return await asyncio.to_thread(self._alerts.update)

    async def close(self) -> None:
        self.feed.close()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._services.close()


class RunFolder:
    """The runs in a folder by name: the directories that have a run.json. services: clients of one's own."""

    def __init__(self, folder: Path, services: ServicesOf) -> None:
        self.folder = folder
        self._services = services
        self._open: dict[str, ViewedRun] = {}
        self._closed = False

    def names(self) -> list[str]:
        """Names of all runs, those first that were launched last."""
        files = sorted(self.folder.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        return [file.parent.name for file in files]

    async def view(self, name: str) -> ViewedRun:
        """The run of that name.

        Raises ConfigError if there is none, or it is of another version, or the folder is closed.
        """
        viewed = self._open.pop(name, None) or self._watched(name)
        self._open[name] = viewed  # the last is the one that was looked at last
        await self._evict()
        return viewed

    def _watched(self, name: str) -> ViewedRun:
        if self._closed:
            raise ConfigError(f"the page of {self.folder} is closing", "start earl dashboard again")
        if name not in self.names():
            raise ConfigError(f"{self.folder} has no run {name!r}", "choose one of its list")
        directory = self.folder / name
        config = config_of(directory)
        return ViewedRun(directory, config, self._services(directory, config))

    async def _evict(self) -> None:
        *others, _ = self._open
        idle = [name for name in others if not self._open[name].feed.followers]
        for viewed in [self._open.pop(name) for name in idle[: max(0, len(self._open) - OPEN)]]:
            await viewed.close()

    def end_streams(self) -> None:
        """Ends what browsers follow."""
        for viewed in self._open.values():
            viewed.feed.close()

    async def close(self) -> None:
        """Closes every view. Requests still under way read what they can of those, and open no other."""
        self._closed = True
        for viewed in list(self._open.values()):
            await viewed.close()


def differences(configs: dict[str, RunConfig]) -> list[dict[str, Any]]:
    """The keys in which the runs' files differ, each with its value in every run, by name.

    Without addresses, which every launch chooses, and without secrets.
    """
    tables = {name: flat(config.model_dump(mode="json")) for name, config in configs.items()}
    every = {key for table in tables.values() for key in table} - {"name"} - SECRET
    keys = sorted(key for key in every if not key.endswith(ADDRESS))
    return [
        {"key": key, "values": {name: table.get(key) for name, table in tables.items()}}
        for key in keys
        if len({repr(table.get(key)) for table in tables.values()}) > 1
    ]
