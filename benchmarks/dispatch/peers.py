"""Alternatives to the data plane: the Ray object store and TransferQueue, in an environment of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.record.checkout import ROOT
from benchmarks.role import RoleProcess
from earl.errors import EarlError

PEERS = ("ray", "transferqueue")
ENVIRONMENT = ".venv-queue"
# Ray, then TransferQueue and torch in each of eight actors: minutes where the cores are busy.
START_S = 600.0
PYTHON = ROOT / ENVIRONMENT / "bin" / "python"
COMPARES = (
    "peers: the same pattern and the same owned buffers at the headline's size, shm again in turn with "
    "them, in processes started after all else, for Ray's own take a share of the cores. Producers and "
    "consumers are Ray actors; a consumer's call depends on its producers' calls. ray: a producer returns "
    "its rows (one copy into the object store), a consumer maps them and copies its half rows out. "
    "transferqueue: put and get of its key-value interface, SimpleStorage with as many storage units as "
    "producers; a producer's rows are one sample, the fewest there can be, their halves its two fields, so "
    "that no consumer gets what it does not want. Both pay for putting, as data does not lie in their "
    "memory when it is produced."
)


class PeersAbsent(Exception):
    """Ray and TransferQueue cannot be measured here: says why, and what to do."""


async def start(arms: Sequence[str], rows: int, directory: str) -> RoleProcess:
    """Their process, its actors ready. Raises PeersAbsent."""
    if not PYTHON.exists():
        raise PeersAbsent(f"absent: {ENVIRONMENT} is not there; make it with: make setup-queue")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        role, _ = await RoleProcess.start(
            "benchmarks.dispatch.peer_side", python=str(PYTHON), environment=environment,
            start_s=START_S, arms=list(arms), rows=rows, directory=directory,
        )  # fmt: skip
    except EarlError as error:
        raise PeersAbsent(
            f"absent: Ray and TransferQueue did not start within {START_S:g} s ({error.message}); see above"
        ) from error
    return role
