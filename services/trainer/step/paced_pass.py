"""The pace of passes over sequences, where the devices of a stage are simulated.

    an optimizer step: computed for real, with its update ─► waits until the replica's time for its sequences
    is over

The wait is part of the computing thread's step: heartbeats do not wait for it, and it is bounded. A replica
waits for its own share; what ranks wait for each other comes on top, as it does on real devices.
"""

from __future__ import annotations

import time

from earl.config.run import RunConfig
from earl.errors import OutOfMemory
from earl.pacing.pace import PaceCount
from earl.parallelism import Parallelism

# The longest wait of one pass.
MOST_WAIT_S = 60.0


class PacedPass:
    """Does nothing on real devices, or for a stage that the table has no rows of.

    layout: of the stage. count: of the passes that were paced.
    """

    def __init__(self, config: RunConfig, stage: str, layout: Parallelism) -> None:
        pace = config.pace
        self._pace = pace if pace is not None and pace.paces(stage) else None
        self._stage, self._layout = stage, layout
        self.count = PaceCount()
        self._began_s = time.perf_counter()

    @property
    def active(self) -> bool:
        return self._pace is not None

    def begin(self) -> None:
        """The first pass begins now."""
        self._began_s = time.perf_counter()

    def check(self, sequences: int, total_tokens: int) -> None:
        """Raises OutOfMemory if a replica's sequences are out of memory by the table."""
        if self._pace is None or not sequences:
            return
        tokens = total_tokens / sequences
        if not self._pace.fits(self._stage, self._layout, tokens, sequences * self._layout.dp):
            raise OutOfMemory(
                f"pace table {self._pace.table.name} has {self._layout} of {self._stage} out of memory for "
                f"{sequences} sequences of {tokens:.0f} tokens on a replica",
                f"use another parallelism of {self._stage}, or smaller batches",
            )

    def wait(self, sequences: int, total_tokens: int) -> None:
        """Returns when the time of a pass over a replica's sequences is over; the next one begins then."""
        if self._pace is None:
            return
        pace_s = self._pace.pass_s(self._stage, self._layout.replica, sequences, total_tokens)
        took_s = time.perf_counter() - self._began_s
        time.sleep(min(MOST_WAIT_S, self.count.wait_s(pace_s, took_s)))
        self.begin()
