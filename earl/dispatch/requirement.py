"""Checks `data_plane.require` before anything starts, for owners and readers alike."""

from __future__ import annotations

import importlib.util

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.transport.nixl.agent import PACKAGE, wire_here
from earl.errors import TransportUnavailable


def refuse_unmet(config: DataPlaneConfig) -> None:
    """Raises TransportUnavailable when `require` names what this machine or configuration cannot give."""
    if config.require == "shm" and config.transport in ("ucx", "nixl"):
        raise TransportUnavailable(
            f'data_plane.require = "shm" with transport = "{config.transport}"',
            'set transport = "shm" or drop the requirement',
        )
    if config.require == "rdma" and config.transport in ("shm", "ucx"):
        raise TransportUnavailable(
            f'data_plane.require = "rdma" with transport = "{config.transport}", which goes over '
            + ("memory" if config.transport == "shm" else "TCP: the ucx transport does not require verbs"),
            'set transport = "nixl" or drop the requirement',
        )
    if config.require == "rdma" and importlib.util.find_spec(PACKAGE) is None:
        raise TransportUnavailable(
            'data_plane.require = "rdma", and NIXL is not installed', "install earl[nixl]"
        )
    if config.require == "rdma" and wire_here() != "rdma":
        raise TransportUnavailable(
            'data_plane.require = "rdma", and no RDMA port of this machine is up: NIXL would go over TCP',
            "see /sys/class/infiniband/*/ports/*/state, or drop the requirement",
        )
