"""The part of a launch that a cluster runs: which processes, how large, reached by which addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.loopback import is_loopback
from earl.rpc.auth import split_address
from earl.stack.cluster.jobs import JobBoard
from earl.stack.cluster.manager import ClusterNode, JobSize
from earl.stack.cluster.sizes import computing, gpus_of_nodes, job_sizes
from earl.stack.placement import Placement
from earl.stack.run_files import BIND_VARIABLE
from earl.stack.starter import StartedProcess, Starter, StartOrder

# Every interface: the address by which others reach it is the node's.
EVERY = "0.0.0.0"
SERVICES = ("scheduler", "gateway", "dashboard")


class JobStarter:
    """Starts one process as a job of this size."""

    def __init__(self, board: JobBoard, size: JobSize) -> None:
        self._board = board
        self._size = size

    async def start(self, order: StartOrder) -> StartedProcess:
        return await self._board.start(order, self._size)


class ClusterPlaces:
    """`earl.stack.elsewhere.Elsewhere` for a cluster's manager. address: of the head's node."""

    def __init__(
        self, config: RunConfig, board: JobBoard, nodes: Sequence[ClusterNode], address: str
    ) -> None:
        self._sizes = job_sizes(config, gpus_of_nodes(nodes))
        self._gpus = gpus_of_nodes(nodes)
        self._board = board
        self._address = address
        self.memory_bytes = config.cluster.memory_bytes

    def sized(self, config: RunConfig) -> RunConfig:
        return with_cluster_threads(config)

    def placement(self, config: RunConfig) -> Placement:
        """Each process has all devices of its job: numbers from 0, which the manager makes visible."""
        demands = computing(config)
        on_gpus = {process for stage in demands for process in stage.processes if stage.on_gpus(self._gpus)}
        devices = {process: tuple(range(stage.each)) for stage in demands for process in stage.processes}
        return Placement(0, devices, frozenset(on_gpus))

    def bound(self, config: RunConfig) -> RunConfig:
        return bound_to(config, self._address)

    def starters(self, names: Iterable[str]) -> Mapping[str, Starter]:
        return {name: JobStarter(self._board, self._sizes[name]) for name in names if name in self._sizes}


def with_cluster_threads(config: RunConfig) -> RunConfig:
    """The configuration with threads = 0 resolved: a job's cores, divided among its ranks or engines."""
    changes: dict[str, Any] = {}
    for stage in computing(config):
        section = getattr(config, stage.stage)
        threads = section.threads or max(1, config.cluster.cpus // stage.each)
        changes[stage.stage] = section.model_copy(update={"threads": threads})
    return config.model_copy(update=changes)


def bound_to(config: RunConfig, address: str) -> RunConfig:
    """The configuration of a launch whose services listen at this address of the head's node.

    A bind that the run file sets off loopback stays. Tensors and metrics are served at every interface of a
    node, unless all nodes are on loopback.
    """
    changes: dict[str, Any] = {}
    for name in SERVICES:
        section = getattr(config, name)
        changes[name] = section.model_copy(update={"bind": _moved(section.bind, address)})
    every = address if is_loopback(address) else EVERY
    changes["obs"] = config.obs.model_copy(update={"metrics": _moved(config.obs.metrics, every)})
    if config.data_plane.loopback:
        changes["data_plane"] = config.data_plane.model_copy(update={"bind": every})
    return config.model_copy(update=changes)


def address_variables(address: str) -> dict[str, str]:
    """The variables of the head's own processes, by which other nodes reach them."""
    shown = f"[{address}]" if ":" in address else address
    return {"EARL_ADVERTISE": address, BIND_VARIABLE: f"{shown}:0"}


def check_network(config: RunConfig, nodes: Sequence[ClusterNode]) -> None:
    """Raises ConfigError where tensors would go over a network that the run file does not call trusted."""
    reached = next((node for node in nodes if not is_loopback(node.address)), None)
    if reached is not None and not config.data_plane.trusted_network:
        raise ConfigError(
            f"node {reached.name} is reached over a network ({reached.address}), where tensors and Valkey's "
            "traffic are not encrypted",
            "set data_plane.trusted_network = true if nobody else can read it",
        )


def check_cluster(config: RunConfig, nodes: Sequence[ClusterNode]) -> None:
    """Raises ConfigError for a job of the run that no node can hold, and as the other two checks do."""
    check_supported(config)
    sizes = {"the head": JobSize(config.cluster.head_cpus, config.cluster.head_memory_bytes)}
    sizes |= job_sizes(config, gpus_of_nodes(nodes))
    for name, size in sizes.items():
        if not any(_holds(node, size) for node in nodes):
            most = max(nodes, key=lambda node: (node.gpus, node.cpus, node.memory_bytes))
            raise ConfigError(
                f"no node holds {name}: it asks for {_words(size)}, and the largest of {len(nodes)} nodes, "
                f"{most.name}, has {_words(JobSize(most.cpus, most.memory_bytes, most.gpus))}",
                "lower the keys of [cluster], or name another cluster.partition",
            )
    check_network(config, nodes)


def check_supported(config: RunConfig) -> None:
    """Raises ConfigError for what a run can only do on one machine."""
    numbered = next((stage for stage in computing(config) if stage.choice.numbers), None)
    if numbered is not None:
        raise ConfigError(
            f"{numbered.stage}.devices names devices of one machine, and each job gets its own",
            f"leave {numbered.stage}.devices out",
        )
    if config.alternates or config.stack.pool_devices:
        key = "stack.pool_devices" if config.stack.pool_devices else 'stack.share = "alternate"'
        raise ConfigError(
            f"{key} lets stages share devices of one machine, and each is a job of its own here",
            "leave it out",
        )
    if config.teacher.episodes and not config.warmup.episodes:
        raise ConfigError(
            f"teacher.episodes = {config.teacher.episodes} are played by the machine that runs `earl train`",
            "record them there, and give warmup.episodes (docs/algorithms.md)",
        )


def _holds(node: ClusterNode, size: JobSize) -> bool:
    return node.cpus >= size.cpus and node.memory_bytes >= size.memory_bytes and node.gpus >= size.gpus


def _words(size: JobSize) -> str:
    gpus = f", {size.gpus} GPUs" if size.gpus else ""
    return f"{size.cpus} cores, {size.memory_bytes / (1 << 30):.1f} GiB{gpus}"


def _moved(bind: str, address: str) -> str:
    """A bind on loopback, moved to this address; any other as it is."""
    if not bind:
        return bind
    host, port = split_address(bind)
    shown = f"[{address}]" if ":" in address else address
    return f"{shown}:{port}" if is_loopback(host) else bind
