"""A bound of this process's memory: allocations fail as they do on a machine that has no more."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from earl.models.return_pages import return_pages


@contextmanager
def no_more_than(more_bytes: int) -> Iterator[None]:
    """Bounds this process's address space to what it takes now and so much more."""
    return_pages()
    taken = psutil.Process().memory_info().vms
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
