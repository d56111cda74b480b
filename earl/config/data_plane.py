"""`[data_plane]` and `[bus]`: where tensors are kept, how they are transferred, where facts are stored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from earl.config.base import ConfigSection
from earl.loopback import is_loopback

# What an arena's regions above 32 KiB are rounded up to.
GRAIN_BYTES = 4 << 10


class DataPlaneConfig(ConfigSection):
    @model_validator(mode="before")
    @classmethod
    def _without_arena_device(cls, table: Any) -> Any:
        """Earlier run files could name the device of arenas, which was the processor's memory always."""
        if isinstance(table, dict) and table.get("arena_device") == "cpu":
            return {key: value for key, value in table.items() if key != "arena_device"}
        return table

    # A tmpfs that is large enough for the run's arenas, which are files in a directory below it.
    #
    # Change it if /dev/shm is small, as in many containers.
    arena_dir: str = "/dev/shm"
    # How tensors are read. "auto": through shared memory where the reader can open the arena, otherwise over
    # UCX. "nixl": over NIXL (extra `nixl`), with RDMA if the machine has an active RDMA port.
    #
    # Set "nixl" on machines with RDMA, "shm" or "ucx" to compare or to rule the other out.
    transport: Literal["auto", "shm", "ucx", "nixl"] = "auto"
    # Refuses to start, and to read, over anything else: "shm" is shared memory, "rdma" NIXL over an RDMA
    # port.
    #
    # Set it where a slow transport would be a mistake.
    require: Literal["", "shm", "rdma"] = ""
    # Allows tensors to be read over a network that is not loopback. That traffic is not encrypted.
    #
    # Set it only for a network that you trust.
    trusted_network: bool = False
    # Address of the interface at which arenas are served to other machines.
    #
    # Set it to this machine's address in a fleet.
    bind: str = "127.0.0.1"
    # Seconds that a read may take.
    #
    # Raise it for large models on slow networks.
    read_s: float = Field(default=30.0, gt=0)
    # Seconds after which the descriptors of an owner expire that no longer renews them.
    #
    # Raise it if processes are paused for longer and should keep what they published; lower it to forget lost
    # owners sooner.
    descriptor_lease_s: float = Field(default=60.0, gt=0)
    # Which reads verify checksums, of the bytes that they read: all ("always"), those over a network ("wire")
    # or none ("off"). Owners compute them when they publish.
    #
    # Set "wire" or "off" to save one pass of a hash over published bytes for owner and reader each, where
    # memory (and the network) can be trusted.
    checksums: Literal["always", "wire", "off"] = "always"
    # Largest part of a version of the weights that its changed elements may take to be published beside it.
    # 0: they are not. A worker that copied the version before, as one on another host does, reads them alone.
    #
    # Set it, to 0.3 for example, if the model is bfloat16, the learning rate small and the network slow. The
    # trainer's arenas grow by that part, and a version becomes known later, for it is compared first.
    changes_fraction: float = Field(default=0.0, ge=0, le=1)

    @property
    def checksums_by_memory(self) -> bool:
        """True when reads through shared memory verify checksums."""
        return self.checksums == "always"

    @property
    def loopback(self) -> bool:
        """True while no other machine can reach what `bind` names."""
        return is_loopback(self.bind)

    @property
    def wire(self) -> Literal["ucx", "nixl"]:
        """The transport that serves and reads arenas where shared memory does not."""
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
    # A Redis or Valkey server, for example "redis://127.0.0.1:6379/0". Empty: the run starts a Valkey of its
    # own, with its data in the run's directory.
    #
    # Set it in a fleet, where all machines use one server.
    redis_url: str = ""
    # Approximate number of events that the bus keeps.
    #
    # Raise it if consumers of yours read rarely.
    stream_events: int = Field(default=100_000, ge=1000)
    # Seconds for which a process of the run keeps trying a Redis server, or a scheduler, that it has reached
    # before and cannot reach now. Then it ends.
    #
    # Raise it if networks between your machines may be cut off for longer.
    outage_s: float = Field(default=120.0, gt=0)
