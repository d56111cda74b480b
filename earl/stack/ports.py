"""Addresses that stay the same when a service is started again.

A bind of `host:0` is given a free port once, before anything starts, so that a restarted service
serves where its peers expect it and every process can get every address at its start.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections import deque
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import ConfigError, PortInUse

METRICS = "obs.metrics"

# The lowest port that is given for port 0, and Linux's range for the near ends of outgoing connections.
_LOWEST = 20_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
# Given by this process a short time ago: most likely nobody listens there yet.
_given: deque[int] = deque(maxlen=1024)


def binds(config: RunConfig) -> dict[str, str]:
    """Every address that a run binds on this machine, by its key in the run file; "" is none."""
    every = {
        "scheduler.bind": config.scheduler.bind,
        "gateway.bind": config.gateway.bind,
        "dashboard.bind": config.dashboard.bind,
        "rollout.bind": config.rollout.bind,
        "trainer.bind": config.trainer.bind,
        "reference.bind": config.reference.bind,
        "teacher.bind": config.teacher.bind,
        "reward_model.bind": config.reward_model.bind,
        METRICS: config.obs.metrics,
    }
    return {key: bind for key, bind in every.items() if bind}


def resolve_all(config: RunConfig) -> dict[str, str]:
    """`binds` with a free port in place of each 0; raises what a launch would: ConfigError, PortInUse."""
    resolved = {key: resolve_bind(bind, key) for key, bind in binds(config).items()}
    host, _, port = config.obs.metrics.rpartition(":")
    if METRICS in resolved and int(port):
        raise ConfigError(
            f'{METRICS} = "{config.obs.metrics}" names one port for all processes of this machine',
            f'give it port 0, for any free one: "{host}:0"',
        )
    return resolved


def resolve_bind(bind: str, key: str) -> str:
    """`host:port` with a free port in place of 0; PortInUse if the port that it names is taken.

    key: the run file's key, for the error's message.
    """
    host, _, text = bind.rpartition(":")
    if not host or not text.isdigit() or int(text) > 65535:
        raise ConfigError(f'{key} = "{bind}" is no address', 'give "host:port", for example "127.0.0.1:0"')
    try:
        return f"{host}:{_bound(host, int(text)) if int(text) else free_port(host)}"
    except OSError as error:
        raise PortInUse(
            f'{key} = "{bind}" cannot be used: {os.strerror(error.errno or 0).lower()}',
            f"free the port, or set {key} to {host}:0 for any free one",
        ) from None


def free_port(host: str) -> int:
    """A free port of this machine's address `host`, for example "127.0.0.1", for a server to be started.

    The kernel's own choice for port 0 comes from the range that outgoing connections use too, so that one
    of those could take it before a service listens, or while it is started again. This one lies below that
    range; it is the kernel's choice where the system names no such range, or a hundred ports below it are
    taken.
    Raises OSError when the address cannot be bound.
    """
    apart = _apart()
    for port in random.SystemRandom().sample(apart, min(_TRIES, len(apart))):
        if port in _given:
            continue
        try:
            _bound(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        _given.append(port)
        return port
    return _bound(host, 0)


def _apart() -> range:
    """The ports from _LOWEST to the range of outgoing connections; empty where nothing lies between."""
    try:
        first = int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError):
        return range(0)
    return range(_LOWEST, first)


def _bound(host: str, port: int) -> int:
    """The port that a socket gets there; for 0 one of the kernel's choice. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), port))
        return probe.getsockname()[1]
