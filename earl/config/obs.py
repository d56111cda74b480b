"""`[obs]`: metrics, traces and sinks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection


class ObsConfig(ConfigSection):
    """Destinations of a run's metrics and traces besides its own files."""

    # host:port at which each service serves GET /metrics for Prometheus; port 0 takes any free one, ""
    # switches it off. The addresses are in endpoints.json of the run's directory.
    #
    # Change the host so that a Prometheus on another machine can read them; off loopback it needs TLS and a
    # token.
    metrics: str = "127.0.0.1:0"
    # Address of an OTLP collector (gRPC) that receives traces of tickets and switches, for example
    # "http://127.0.0.1:4317"; "" for none. It needs the extra `otel`; off loopback only https:// is allowed.
    #
    # Set it to see where the time of single episodes and switches goes.
    traces: str = Field(default="", pattern=r"^(https?://[^/\s]+)?/?$")
    # Fraction of tickets that are traced; the same tickets whenever the run is repeated.
    #
    # Raise it, up to 1, to analyse a small run; in a large one more traces slow the services down.
    trace_fraction: float = Field(default=0.01, ge=0, le=1)

    # Bytes of the run's history on disk: what happened to every ticket and version, which
    # `earl check-history` checks. The oldest segments go first; 0 writes none.
    #
    # Raise it if a long run is to be proven from its beginning: a million tickets take about 30 MB.
    history_bytes: int = Field(default=256 << 20, ge=0)

    # Services that also receive the run's metrics, each through a process of its own and with the extra of
    # its name. If one fails, the run continues.
    #
    # Name the ones in which you compare runs already; `earl sink` sends a run that has ended.
    sinks: list[Literal["tensorboard", "wandb"]] = []

    @property
    def traced_fraction(self) -> float:
        """The fraction of tickets that are traced; 0 without a collector."""
        return self.trace_fraction if self.traces else 0.0
