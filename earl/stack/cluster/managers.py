"""The cluster managers that EARL can ask, by their names."""

from __future__ import annotations

from earl.config.cluster import ClusterConfig
from earl.errors import ConfigError
from earl.stack.cluster.manager import ClusterManager
from earl.stack.cluster.names import PLACES
from earl.stack.cluster.ray_manager import RayManager
from earl.stack.cluster.slurm import SlurmManager

MANAGERS: dict[str, type[SlurmManager] | type[RayManager]] = {"slurm": SlurmManager, "ray": RayManager}


def manager_of(name: str, config: ClusterConfig) -> ClusterManager:
    """The manager of this name. Raises ConfigError for an unknown name, or a manager that is not there."""
    return _kind(name)(config)


def node_address(name: str) -> str:
    """The address of this node, as the manager of this name knows it."""
    return _kind(name).node_address()


def _kind(name: str) -> type[SlurmManager] | type[RayManager]:
    if name not in MANAGERS:
        raise ConfigError(f"--on {name!r} is no cluster manager", f"give one of {', '.join(PLACES)}")
    return MANAGERS[name]
