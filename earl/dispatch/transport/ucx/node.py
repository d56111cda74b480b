"""UCX as a process uses it: its settings, and endpoints with a worker each.

Settings of UCX in the environment (UCX_TLS, UCX_NET_DEVICES, ...) come first, so that a machine with other
cards than Ethernet's uses them. Three are never taken from there: the registration cache, connections that
do not block, and devices beside loopback for what is bound to loopback.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Mapping

from earl.dispatch.transport.ucx import ucp
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.ucp import api
from earl.errors import TransportUnavailable

log = logging.getLogger(__name__)

# 512k segments bring UCX over TCP to a plain socket's speed; both directions are needed. The registration
# cache, and so the hooks on mmap that it needs, is a must: UCX 1.21 without it crashes the survivor when a
# peer dies in the middle of a rendezvous (openucx/ucx#11467). Sockets keep the kernel's own buffers: with
# 4 MiB what is in flight leaves the processor's cache, and a reader took 1.6 times as long over it.
_SETTINGS = {
    "TLS": "tcp",
    "RCACHE_ENABLE": "y",
    "TCP_TX_SEG_SIZE": "512k",
    "TCP_RX_SEG_SIZE": "512k",
    # Runs sent with one call; UCP goes no further.
    "TCP_MAX_IOV": "16",
    "KEEPALIVE_INTERVAL": "1s",
    # By default connecting blocks the process for as long as the peer's host does not answer.
    "TCP_CONN_NB": "y",
}
_FIXED = {"RCACHE_ENABLE", "TCP_CONN_NB"}
LOOPBACK, ALL = "lo", "all"


def settings(environment: Mapping[str, str], *, loopback: bool) -> dict[str, str]:
    """Returns the configuration of UCX. loopback: to be reachable from this machine only."""
    chosen = dict(_SETTINGS, NET_DEVICES=LOOPBACK if loopback else ALL)
    fixed = _FIXED | {"NET_DEVICES"} if loopback else _FIXED
    for key in chosen.keys() - fixed:
        chosen[key] = environment.get(f"UCX_{key}") or chosen[key]
    return chosen


class UcxNode:
    """Makes endpoints with the same settings."""

    def __init__(self, *, loopback: bool) -> None:
        """loopback: to be reachable from this machine only. Raises TransportUnavailable."""
        self.settings = settings(os.environ, loopback=loopback)
        # An endpoint has about nine descriptors, and often only 1024 may be open unless more are asked for.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            self._context = api.UCXContext(self.settings, feature_flags=(api.Feature.TAG, api.Feature.WAKEUP))
            # What UCX cannot use it says here, not to the first peer.
            api.UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        except api.UCXError as error:
            chosen = f"UCX_TLS={self.settings['TLS']}, UCX_NET_DEVICES={self.settings['NET_DEVICES']}"
            raise TransportUnavailable(
                f"UCX cannot be used with {chosen}: {error}",
                "check these variables and data_plane.bind, and leave UCX_MEM_MMAP_HOOK_MODE unset",
            ) from error
        if ucp.refusal():
            log.warning("what lies in pieces is gathered before it is sent: %s", ucp.refusal())

    def endpoint(self, peer: str) -> Endpoint:
        """An endpoint that is not connected yet; peer: its name in errors. Raises TransportUnavailable."""
        return Endpoint(self._context, peer)

    def path(self, transports: tuple[str, ...]) -> str:
        """The name in receipts of what carried the bytes, such as "ucx-tcp"."""
        return "ucx-" + "/".join(transports or (self.settings["TLS"].replace(",", "/"),))
