"""Addresses that stay the same when a service is started again.

A bind of `host:0` is given a free port once, before anything starts, so that a restarted service
serves where its peers look for it and every process can be told every address at its start.
"""

from __future__ import annotations

import os
import socket

from earl.config.run import RunConfig
from earl.errors import ConfigError, PortInUse

METRICS = "obs.metrics"


def binds(config: RunConfig) -> dict[str, str]:
    """Every address that a run binds on this machine, by its key in the run file; "" is none."""
    every = {
        "scheduler.bind": config.scheduler.bind,
        "gateway.bind": config.gateway.bind,
        "dashboard.bind": config.dashboard.bind,
        "rollout.bind": config.rollout.bind,
        "trainer.bind": config.trainer.bind,
        "reference.bind": config.reference.bind,
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
    """`host:port` with a free port in place of 0; PortInUse if the port that was asked for is taken.

    key: the run file's key, for the error's message.
    """
    host, _, text = bind.rpartition(":")
    if not host or not text.isdigit() or int(text) > 65535:
        raise ConfigError(f'{key} = "{bind}" is no address', 'give "host:port", for example "127.0.0.1:0"')
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(text)))
        except OSError as error:
            raise PortInUse(
                f'{key} = "{bind}" cannot be used: {os.strerror(error.errno or 0).lower()}',
                f"free the port, or set {key} to {host}:0 for any free one",
            ) from None
        return f"{host}:{probe.getsockname()[1]}"
