"""`[environment]` and `[gateway]`: what the agent acts in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from earl.config.base import ConfigSection


class EnvironmentConfig(ConfigSection):
    # Registered name, for example "open_spiel/tic_tac_toe".
    name: str
    # Given to every reset.
    task: dict[str, Any] = {}
    # "package.module:Class or factory" that the run's own hosts serve; empty: hosts dial in from outside.
    serve: str = ""
    hosts: int = Field(default=1, ge=0)
    sessions_per_host: int = Field(default=512, ge=1)
    queue_s: float = Field(default=60.0, gt=0)
    reset_s: float = Field(default=30.0, gt=0)
    step_s: float = Field(default=30.0, gt=0)


class GatewayConfig(ConfigSection):
    bind: str = "127.0.0.1:0"
    # "host:port" of env hosts that listen: the gateway dials them, others dial the gateway.
    dial: list[Annotated[str, StringConstraints(pattern=r"^.+:[0-9]+$")]] = []
    # How long after its last message a host counts as gone.
    lease_s: float = Field(default=5.0, gt=0)
    # A host whose stream broke keeps its sessions if it is back within this.
    reconnect_s: float = Field(default=0.5, ge=0)
    # Hosts that a session's reset is tried on: one whose host is lost before its first step starts anew on
    # another.
    reset_attempts: int = Field(default=3, ge=1)
    max_text_bytes: int = Field(default=1 << 20, ge=1024)
    # Host faults in a row after which the host is quarantined, and for how long.
    quarantine_faults: int = Field(default=5, ge=1)
    quarantine_s: float = Field(default=30.0, gt=0)
