"""The file by which an engine's ranks find each other at start; removed when the start has ended."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from earl import shm


class Rendezvous:
    """The rendezvous of an engine's ranks.

    store: file of the process group's store, "" for one rank. sums: descriptor of the memory in which ranks
    on CPUs add up (shm_allreduce.py), given to each; -1 for one rank, or where there is no such memory.
    The memory is freed with the last process that has the descriptor.
    """

    def __init__(self, engine: str, ranks: int) -> None:
        several = ranks > 1
        parent = os.environ.get("EARL_SOCKETS") or None
        self._directory = tempfile.mkdtemp(prefix="earl-engine-", dir=parent) if several else ""
        self.store = str(Path(self._directory) / "store") if several else ""
        self.sums = shm.new_memory(f"{engine}-sums") if several and shm.AVAILABLE else -1

    def end(self) -> None:
        """Removes the rendezvous, because the ranks have connected or never will. Idempotent."""
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""
        if self.sums >= 0:
            os.close(self.sums)
            self.sums = -1
