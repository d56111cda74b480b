"""`[data_plane]` and `[bus]`: where tensors lie, how they travel, where facts are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.loopback import is_loopback

# What an arena's regions above 32 KiB are rounded up to.
GRAIN_BYTES = 4 << 10


class DataPlaneConfig(ConfigSection):
    # A tmpfs; arenas are files in a directory of the run's own below it.
    arena_dir: str = "/dev/shm"
    # Where arenas are written: "cpu", or a GPU such as "cuda:0", from where what is sealed is copied into
    # the arena's file in arena_dir.
    arena_device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    # "auto": shared memory where the reader can open the arena, otherwise the wire (UCX). "nixl": NIXL (extra
    # `nixl`), over RDMA where a port of the machine is up.
    transport: Literal["auto", "shm", "ucx", "nixl"] = "auto"
    # Refuse to start, and to read a single arena, over anything else. "rdma": NIXL over an RDMA port.
    require: Literal["", "shm", "rdma"] = ""
    # Off loopback the wire carries no TLS: say that the network is trusted, or stay on loopback.
    trusted_network: bool = False
    bind: str = "127.0.0.1"
    read_s: float = Field(default=30.0, gt=0)
    # Descriptors lapse this long after their owner last renewed them.
    descriptor_lease_s: float = Field(default=60.0, gt=0)
    checksums: Literal["wire", "always", "off"] = "wire"

    @property
    def loopback(self) -> bool:
        """True while no other machine can reach what `bind` names."""
        return is_loopback(self.bind)

    @property
    def wire(self) -> Literal["ucx", "nixl"]:
        """What serves and reads arenas where shared memory does not."""
        return "nixl" if self.transport == "nixl" or self.require == "rdma" else "ucx"

    @property
    def mapped(self) -> bool:
        """True when arenas are read through shared memory where that can be."""
        return self.transport in ("auto", "shm") and self.require != "rdma"

    @property
    def wired(self) -> bool:
        """True when owners serve their arenas over the wire too."""
        if self.transport == "auto":
            return not self.loopback or self.require == "rdma"
        return self.transport != "shm"


class BusConfig(ConfigSection):
    # A Redis or Valkey server; empty: an embedded Valkey that keeps its data in the run's directory.
    redis_url: str = ""
    # Events kept in the stream, about.
    stream_events: int = Field(default=100_000, ge=1000)
