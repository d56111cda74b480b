"""The cluster managers that EARL can ask, by their names."""

from __future__ import annotations

from earl.config.cluster import ClusterConfig
from earl.errors import ConfigError
from earl.stack.cluster.kubernetes.manager import KubernetesManager
from earl.stack.cluster.kubernetes.slots import SlotManager, is_in_pod
from earl.stack.cluster.manager import ClusterManager
from earl.stack.cluster.names import PLACES
from earl.stack.cluster.ray_manager import RayManager
from earl.stack.cluster.slurm import SlurmManager

ManagerKind = type[SlurmManager] | type[RayManager] | type[KubernetesManager]
MANAGERS: dict[str, ManagerKind] = {"slurm": SlurmManager, "ray": RayManager, "kubernetes": KubernetesManager}


def manager_of(name: str, config: ClusterConfig) -> ClusterManager:
    """The manager of this name; in the Pod of a run's head on Kubernetes, the run's Pods.

    Raises ConfigError for an unknown name, or a manager that is not there.
    """
    if name == SlotManager.name and is_in_pod():
        return SlotManager()
    return _kind(name)(config)


def node_address(name: str) -> str:
    """The address of this node, as the manager of this name knows it."""
    return _kind(name).node_address()


def _kind(name: str) -> ManagerKind:
    if name not in MANAGERS:
        raise ConfigError(f"--on {name!r} is no cluster manager", f"give one of {', '.join(PLACES)}")
    return MANAGERS[name]
