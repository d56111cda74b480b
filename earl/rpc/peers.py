"""Addresses from the environment: where a service's peers are, and how they reach it.

    EARL_SCHEDULER, EARL_GATEWAY   host:port of the two services that others call
    EARL_REDIS_URL                 Redis or Valkey; EARL_REDIS_URL_FILE: a file with it, for it has a password
    EARL_ADVERTISE                 host, or host:port, by which others reach this process

The launcher of a local run sets the addresses; containers get them from their operator.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from earl.errors import ConfigError
from earl.rpc.auth import split_address

WILDCARDS = ("0.0.0.0", "::")


def variable_or_file(variable: str) -> str:
    """The value of a variable, or what the file holds that <variable>_FILE names; "" if neither is set.

    Raises ConfigError if both are, or the file cannot be read.
    """
    value, path = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE", "")
    if value and path:
        raise ConfigError(f"{variable} and {variable}_FILE are both set", "unset one of them")
    if not path:
        return value
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable}_FILE = {path!r} cannot be read: {error}", "name a text file") from None


def peer(variable: str) -> str:
    """The address of a peer, by `variable_or_file`. Raises ConfigError if it is not set."""
    value = variable_or_file(variable)
    if not value:
        raise ConfigError(f"{variable} is not set", "start the stack with `earl train`, or set it")
    return value


def advertised_address(address: str, *, keep_port: bool = False) -> str:
    """Returns the address by which others reach `address` (host:port as bound): EARL_ADVERTISE where set.

    keep_port: what listens there is not the service itself, so only the host of EARL_ADVERTISE counts.
    A process that listens on all interfaces is otherwise reached by the name of its machine. Raises
    ConfigError for an EARL_ADVERTISE that is neither a host nor host:port.
    """
    host, port = split_address(address)
    name = os.environ.get("EARL_ADVERTISE", "")
    if ":" in name and not name.endswith("]"):
        name, named_port = split_address(name)
        port = port if keep_port else named_port
    elif not name:
        if host not in WILDCARDS:
            return address
        name = socket.gethostname()
    name = name.removeprefix("[").removesuffix("]")
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
