"""The ranks as one group: small agreements over gloo, tensors over the device's own backend.

torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) numbers the ranks; without it the
process is a group of one. Every collective ends within COLLECTIVE_S: a rank that died is noticed by
torchrun at once, which ends the others.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from earl.loopback import is_loopback
from services.trainer.ranks.subgroups import Subgroups, forget_meshes

COLLECTIVE_S = 600.0
# The address at which gloo and NCCL listen; by default that of the machine's name, which others may reach.
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of the first `size` of all processes. number: of the group, from 1; store: its rendezvous,
    under a prefix that no other group has."""

    number: int
    size: int
    store: Any


class Group:
    """This process's place among the ranks. device: where this rank computes."""

    def __init__(self, device: str = "auto", planned: GroupPlan | None = None) -> None:
        """Joins the group that is planned, or the one that the environment names. device: "auto", "cpu" or
        "cuda"."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = planned.size if planned is not None else int(os.environ.get("WORLD_SIZE", "1"))
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if kind == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            self.device = torch.device("cuda", torch.cuda.current_device())
        else:
            self.device = torch.device("cpu")
        backend = "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl"
        master = os.environ.get("MASTER_ADDR", "")
        alone = not master
        if alone or is_loopback(master):
            for name in INTERFACES:
                os.environ.setdefault(name, "lo")
        store = planned.store if planned is not None else HashStore() if alone else None
        dist.init_process_group(
            backend,
            store=store,
            rank=-1 if store is None else self.rank,
            world_size=-1 if store is None else self.size,
            timeout=timedelta(seconds=COLLECTIVE_S),
        )
        # Process groups of some of the ranks.
        self.subgroups = Subgroups(self.rank, self.size, kind)
        # torch finds what it keeps for a mesh by ranks and names: a later group's is another.
        name = f"fsdp-{planned.number}" if planned is not None else "fsdp"
        self.mesh: DeviceMesh = init_device_mesh(kind, (self.size,), mesh_dim_names=(name,))

    @property
    def leads(self) -> bool:
        """Rank 0 speaks for the group."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """`values` (on the CPU) becomes the sum over ranks; returned."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """`values` (on the CPU) becomes the elementwise maximum over ranks; returned."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def agree(self, ok: bool) -> bool:
        """True on every rank if every rank is ok."""
        if self.size == 1:
            return ok
        return not int(self.max(torch.tensor([0 if ok else 1]))[0])

    def barrier(self) -> None:
        self.agree(True)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank; the others' argument is ignored."""
        if self.size == 1:
            return data
        size = torch.tensor([len(data)])
        dist.broadcast(size, src=0)
        buffer = torch.empty(int(size[0]), dtype=torch.uint8)
        if self.leads and data:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if buffer.numel():
            dist.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes by rank, on every rank."""
        if self.size == 1:
            return [data]
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        self.sum(sizes)
        longest = int(sizes.max())
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        if longest:
            dist.all_gather(parts, mine)
        return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def close(self) -> None:
        """Ends the group, with those of some of its ranks."""
        self.subgroups.forget()
        dist.destroy_process_group()
        forget_meshes()


def leave(code: int) -> NoReturn:
    """Ends the process once everything is closed.

    gloo's threads outlive their group (torch 2.13) and now and then abort the process in its exit
    handlers ("terminate called without an active exception"): so none are run.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
