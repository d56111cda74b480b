"""Formations of a stage: the processes that are its ranks, from one boundary of its work to another.

    processes          0 1 2 3 4 5 6       a pool of 8 devices: rollout keeps one at least
    formation 1, dp2   r r · · · · ·       · waits: no group, no part of the model
    formation 2, dp5   r r r r r · ·       begins with what was saved at the boundary between them

Rank 0 decides, and is a rank of every formation. The others read each formation in the store of torchrun's
agent, where every formation's group has a prefix of its own. A stage whose devices stay its own has a single
formation: the group that the environment names.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistStoreError

from earl.parallelism import Parallelism
from services.trainer.ranks.process_group import GroupPlan
from services.trainer.ranks.requests import FOLLOWS_S

# A process that waits is told of the next formation at once, and looks this often whether the stage ends.
NOTICE = timedelta(seconds=0.5)
STORE_S = 60.0
_KEY = "earl/formation"


@dataclass(frozen=True, slots=True)
class Formation:
    """The first `parallelism.devices` processes as ranks. group: None for the group of the environment."""

    number: int
    parallelism: Parallelism
    group: GroupPlan | None = None


class Formations:
    """The formations of this process's stage, one after the other. first: its parallelism.

    store: None where the stage keeps its ranks.
    """

    def __init__(self, first: Parallelism, store: Store | None = None) -> None:
        self._first, self._store = first, store
        self._number = 0
        self.rank = int(os.environ.get("RANK", "0"))

    @classmethod
    def open(cls, first: Parallelism, pooled: bool) -> Formations:
        """The formations of a stage whose ranks may change (pooled), or do not."""
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not pooled or not address:
            return cls(first)
        store = TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=STORE_S))
        return cls(first, store)

    def next(self, stop: threading.Event) -> Formation | None:
        """Waits for the next formation; None at the end, or FOLLOWS_S after `stop` was set: rank 0, which is
        told too, begins no further one."""
        self._number += 1
        if self._store is None:
            return Formation(1, self._first) if self._number == 1 else None
        if self.rank == 0 and self._number == 1:
            self._write(self._first)
        key = self._key
        stopped_s = None
        while not self._store.check([key]):
            if stop.is_set():
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s > FOLLOWS_S:
                    return None
            with suppress(DistStoreError):
                self._store.wait([key], NOTICE)
        text = self._store.get(key).decode()
        if not text:
            return None
        parallelism = Parallelism.parse(text)
        prefix = PrefixStore(f"{key}/group", self._store)
        group = GroupPlan(self._number, parallelism.devices, prefix)
        return Formation(self._number, parallelism, group)

    def ended(self, following: Parallelism | None) -> None:
        """This process's formation has ended. following: rank 0's decision, None for no further one."""
        if self.rank == 0 and self._store is not None:
            self._number += 1
            self._write(following)
            self._number -= 1

    @property
    def _key(self) -> str:
        return f"{_KEY}/{self._number}"

    def _write(self, parallelism: Parallelism | None) -> None:
        assert self._store is not None
        self._store.set(self._key, "" if parallelism is None else str(parallelism))
