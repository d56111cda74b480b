"""The resources of every rank of a stage: opened in order, closed in reverse by the caller's stack.

    I/O thread ─► group of ranks ─► (the stage's policy) ─► bus, registry, dispatcher ─► (stores)

Promise: whatever fails, what was opened is closed; no arena file outlives the rank.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.rpc.peers import peer
from services.trainer.ranks.activity import Activity, gather_report
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group, GroupPlan
from services.trainer.ranks.requests import StageRequests

# How long a service that is not there yet is waited for, and how long closing may take.
OPEN_S = 30.0
CLOSE_S = 10.0


class RankProcess:
    """The resources of a rank before it reaches the rest of the run: its thread for I/O and its group.

    scheduler_address, redis_url: from the environment. activity: counts from here on.
    """

    def __init__(self, stack: ExitStack, device: str, planned: GroupPlan | None = None) -> None:
        """Starts the thread, which `stack` closes, and joins the group: the planned one, or that of the
        environment. device: "auto", "cpu" or "cuda".

        Raises ConfigError where the environment lacks the addresses of bus or scheduler.
        """
        self.redis_url, self.scheduler_address = peer("EARL_REDIS_URL"), peer("EARL_SCHEDULER")
        self.activity = Activity()
        self.io = IoThread()
        stack.callback(self.io.close)
        self.group = Group(device, planned)


class RankResources:
    """A rank's process, connected: its thread for I/O, group, bus, registry and dispatcher.

    name: of the stage, unique in the run. requests: set by signals and by rank 0's server. stack: closes all.
    """

    def __init__(
        self,
        stack: ExitStack,
        process: RankProcess,
        config: RunConfig,
        run_dir: Path,
        name: str,
        requests: StageRequests,
    ) -> None:
        """Opens bus and data plane. A collective. Raises BusUnavailable and what Dispatcher.create does."""
        self.stack, self.config, self.run_dir, self.name = stack, config, run_dir, name
        self.requests = requests
        self.scheduler_address, self.activity = process.scheduler_address, process.activity
        self.io = process.io
        self.join(process.group)
        io = self.io
        io.outage_s = config.bus.outage_s
        connecting = Bus.connect(
            process.redis_url,
            config.name,
            source=name,
            stream_events=config.bus.stream_events,
            outage_s=config.bus.outage_s,
        )
        self.bus = io.run(connecting, OPEN_S)
        stack.callback(lambda: io.run(self.bus.close(), CLOSE_S))
        self.registry = Registry(self.bus.redis, self.bus.prefix, config.data_plane.descriptor_lease_s)
        self.dispatcher = io.run(Dispatcher.create(self.registry, config.data_plane), OPEN_S)
        stack.callback(lambda: io.run(self.dispatcher.close(), CLOSE_S))

    def join(self, group: Group) -> None:
        """Works in this group from now on. A collective."""
        self.group = group
        self.activity.devices = gather_report(group).devices

    async def open_store(self, size_bytes: int, grows_to: int = 0) -> TensorStore:
        """A store with a new arena of this rank; the caller closes it. grows_to: as in Arena.create.

        The rank ends once the arena cannot be served any more.
        """
        store = await TensorStore.open(
            self.registry,
            self.config.data_plane,
            arena_directory(self.config.data_plane, self.run_dir),
            f"{self.name}-{self.group.rank}",
            incarnation=secrets.randbits(64),
            size_bytes=size_bytes,
            grows_to=grows_to,
        )
        self.io.watch(store.unserved())
        return store
