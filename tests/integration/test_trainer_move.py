"""Four gloo ranks change how tensors are cut among them: every bit arrives, and a rank's death is no hang."""

from __future__ import annotations

import json

import pytest

from tests.support.mover import RANKS
from tests.support.processes import run_ranks


@pytest.fixture(scope="module")
def said() -> list[list[dict]]:
    """What each rank printed; rank 1 died before the last move."""
    outputs = run_ranks("tests.support.mover", RANKS, "--die")
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
