"""Sums over the ranks of an engine whose processes share a host: through shared memory, without the kernel.

A decoded token needs two sums a layer, of a few kilobytes each. What they cost is not the bytes but waking
a process that sleeps on a socket. So a rank that waits watches a counter, and gives its core away only after
a while.

    memory   counters [R], a cache line each │ slots [R, 2, SLOT_BYTES]

    add_up(x): own slot ← x · own counter ← n · wait until every counter is n · x ← slot 0 + slot 1 + …

Every rank adds in the same order, so all get the same bits. Two slots a rank suffice: one that is written for
sum n was last read for sum n - 2, and a counter that shows n - 1 says that its rank is done with that.
"""

from __future__ import annotations

import os
import platform
import time

import torch

from earl import shm
from earl.errors import EngineError
from earl.shm import SharedRegion

SLOT_BYTES = 1 << 20
_LINE_BYTES = 64
# Looks at a counter before the core is offered to others (few: with more ranks than cores it is another rank
# that wants it). How long it is offered before the rank sleeps between looks: a kernel gives a core sooner to
# who slept than to who looked on, and where others want it too that is what counts.
_SPINS = 5
_WATCH_S = 0.000_2
_NAP_S = 0.000_1


def available() -> bool:
    """True on x86, where processes see each other's stores to memory in order, without a fence."""
    return platform.machine() in ("x86_64", "AMD64") and shm.AVAILABLE


class SharedSum:
    """One rank's end of an all-reduce through shared memory. memory: an inherited descriptor of
    earl.shm.new_memory, the same on all ranks and new for each group; it is closed here. deadline_s: the
    longest wait of one sum.

    Raises EngineError if not all ranks come within deadline_s.
    """

    def __init__(self, memory: int, rank: int, size: int, deadline_s: float) -> None:
        self._rank, self._deadline_s = rank, deadline_s
        header = size * _LINE_BYTES
        region = SharedRegion.inherit(memory, header + size * 2 * SLOT_BYTES)
        self._counters = region.data[:header].cast("q")
        slots = torch.frombuffer(region.data[header:], dtype=torch.uint8).view(size, 2, SLOT_BYTES)
        self._slots = [list(pair) for pair in slots]
        self._others = [each for each in range(size) if each != rank]
        self._met = 0
        self._meet()

    def add_up(self, x: torch.Tensor) -> None:
        """x, contiguous and of the same shape and dtype on every rank, becomes the sum of all ranks'.

        Raises EngineError if another rank is not there within the deadline.
        """
        for part in x.view(-1).split(SLOT_BYTES // x.element_size()):
            turn = self._met % 2
            slots = [pair[turn][: part.nbytes].view(part.dtype) for pair in self._slots]
            slots[self._rank].copy_(part)
            self._meet()
            torch.add(slots[0], slots[1], out=part)
            for slot in slots[2:]:
                part.add_(slot)

    def _meet(self) -> None:
        """Says that this rank's part is there, and waits for the others'."""
        self._met += 1
        counters, met = self._counters, self._met
        counters[self._rank * _LINE_BYTES // 8] = met
        for other in self._others:
            place = other * _LINE_BYTES // 8
            for _ in range(_SPINS):
                if counters[place] >= met:
                    break
            else:
                self._wait(other, place)

    def _wait(self, other: int, place: int) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _WATCH_S:
            os.sched_yield()
            if self._counters[place] >= self._met:
                return
        ends = began + self._deadline_s
        while self._counters[place] < self._met:
            if time.monotonic() > ends:
                raise EngineError(
                    f"rank {other} of the engine was not there for {self._deadline_s:g} s",
                    "see its log on stderr; the engine is replaced",
                )
            time.sleep(_NAP_S)
