"""`[obs]`: metrics, traces and sinks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection


class ObsConfig(ConfigSection):
    """Where a run sends metrics and traces besides its own files."""

    # Where each service serves GET /metrics for Prometheus: port 0 for any free one, "" for none. The local
    # stack writes what it got to endpoints.json in the run's directory. Off loopback it needs TLS and token.
    metrics: str = "127.0.0.1:0"
    # An OTLP collector (gRPC) that gets traces of tickets and switches, for example
    # "http://127.0.0.1:4317"; needs the extra `otel`. Off loopback https:// alone. "" for none.
    traces: str = Field(default="", pattern=r"^(https?://[^/\s]+)?/?$")
    # The fraction of tickets that are traced; the same tickets whenever the run is repeated.
    trace_fraction: float = Field(default=0.01, ge=0, le=1)

    # Besides its own files, give the run's figures to these, each by a process of its own: needs the extra
    # of that name. Their failure is not the run's.
    sinks: list[Literal["tensorboard", "wandb"]] = []

    @property
    def traced_fraction(self) -> float:
        """The fraction of tickets that are traced; 0 without a collector."""
        return self.trace_fraction if self.traces else 0.0
