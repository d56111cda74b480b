"""Imports of many modules at the start of a process, without the cyclic garbage collector.

    with bulk_import():
        from services.trainer.service import serve

An import allocates a great many objects and frees almost none. Each collection that they set off walks all
that exist and finds nothing: a fifth of the time that `import torch` takes. What exists at the end of the
block is never walked again, neither by later collections nor by the last one, as the process ends (with
torch 0.3 s).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bulk_import() -> Iterator[None]:
    """Pauses the collector for the block; afterwards whatever exists is taken to stay (`gc.freeze`).

    For the main program of a process, before it has data of its own. Leaves the collector off where it was.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
