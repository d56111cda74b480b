"""Four gloo ranks change how tensors are cut among them: every bit arrives, and a rank's death is no hang."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mover import RANKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def said() -> list[list[dict]]:
    """What each rank printed; rank 1 died before the last move."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.mover", "--die"],
            cwd=ROOT,
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def test_every_bit_arrives_from_cut_to_cut_and_back(said: list[list[dict]]) -> None:
    assert [rank[0]["rank"] for rank in said] == list(range(RANKS))
    assert [rank[0]["wrong"] for rank in said] == [[]] * RANKS
    sent = [sum(move["sent_bytes"] for move in rank[0]["moves"]) for rank in said]
    assert min(sent) > 0


def test_ranks_do_not_wait_for_one_that_died(said: list[list[dict]]) -> None:
    assert [rank[1:] for rank in said] == [
        [] if rank == 1 else [{"lost": said[rank][1]["lost"]}] for rank in range(RANKS)
    ]
