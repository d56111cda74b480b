"""`[environment]` and `[gateway]`: what the agent acts in."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from earl.config.base import Section


class EnvironmentConfig(Section):
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


class GatewayConfig(Section):
    bind: str = "127.0.0.1:0"
    # A host silent for this long is gone.
    lease_s: float = Field(default=5.0, gt=0)
    max_text_bytes: int = Field(default=1 << 20, ge=1024)
    # Host faults in a row after which the host is quarantined, and for how long.
    quarantine_faults: int = Field(default=5, ge=1)
    quarantine_s: float = Field(default=30.0, gt=0)
