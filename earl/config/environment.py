"""`[environment]` and `[gateway]`: what the agent acts in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from earl.config.base import ConfigSection


class EnvironmentConfig(ConfigSection):
    # Registered name of the environment, for example "open_spiel/tic_tac_toe".
    #
    # docs/adapters.md lists those that come with EARL; for your own, give the name that it registers.
    name: str
    # Settings of the task, given to every reset. Which ones exist is up to the environment.
    #
    # Set them to make tasks easier while all rewards of a group are equal, and harder once most episodes
    # succeed.
    task: dict[str, Any] = {}
    # What the run's own host processes serve, as "package.module:Class" or "package.module:factory". Empty:
    # the run starts none.
    #
    # Leave it empty if hosts connect from outside (`earl env serve`).
    serve: str = ""
    # Number of host processes that the run starts.
    #
    # Raise it if `earl top` shows that engines wait for the environment and cores are free.
    hosts: int = Field(default=1, ge=0)
    # Episodes that one host process plays at the same time.
    #
    # Lower it for environments that need much memory or processor time.
    sessions_per_host: int = Field(default=512, ge=1)
    # Seconds that a run waits for the first host that serves the environment; then it ends.
    #
    # Raise it if hosts are started by hand, or after the run by somebody else.
    wait_s: float = Field(default=600.0, gt=0)
    # Seconds that an episode waits until a host has free capacity for it; then its attempt fails.
    #
    # Raise it if hosts start slowly or have few sessions.
    queue_s: float = Field(default=60.0, gt=0)
    # Seconds that a reset may take.
    #
    # Raise it for environments that start containers or servers.
    reset_s: float = Field(default=30.0, gt=0)
    # Seconds that a step may take.
    #
    # Raise it for tools that compute for long.
    step_s: float = Field(default=30.0, gt=0)


class GatewayConfig(ConfigSection):
    # host:port at which the environment gateway listens; port 0 takes any free one.
    #
    # Give a fixed port if hosts connect from outside; off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"
    # Addresses, "host:port", of environment hosts that listen: the gateway connects to them. All other hosts
    # connect to the gateway.
    #
    # Set it for hosts that cannot open connections themselves, as behind a firewall.
    dial: list[Annotated[str, StringConstraints(pattern=r"^.+:[0-9]+$")]] = []
    # Seconds after its last message until a host counts as lost.
    #
    # Raise it for hosts whose event loop is blocked for longer; lower it to replace lost hosts sooner.
    lease_s: float = Field(default=5.0, gt=0)
    # Seconds within which a host whose connection broke may return and keep its sessions.
    #
    # Raise it on networks that lose connections.
    reconnect_s: float = Field(default=0.5, ge=0)
    # Number of hosts on which the reset of an episode is tried: one whose host is lost before the first step
    # starts again on another host.
    #
    # Raise it if hosts come and go often; 1 fails the attempt at once.
    reset_attempts: int = Field(default=3, ge=1)
    # Largest message of a host, in bytes of the whole result.
    #
    # Raise it for environments with long observations.
    max_text_bytes: int = Field(default=1 << 20, ge=1024)
    # Consecutive faults of a host's environment after which it gets no sessions for quarantine_s.
    #
    # Raise it for an environment that fails often on all hosts alike; lower it to leave broken hosts sooner.
    quarantine_faults: int = Field(default=5, ge=1)
    # Seconds for which an environment of a host gets no sessions after quarantine_faults faults. Each further
    # quarantine is twice as long, at most 16 times as long.
    #
    # Raise it if broken hosts take longer to recover; lower it if faults are brief.
    quarantine_s: float = Field(default=30.0, gt=0)
