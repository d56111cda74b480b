"""Four gloo ranks change how tensors are cut among them: every bit arrives, and a rank's death is no hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.forked import Forked
from tests.support.mover import RANKS, main
from tests.support.processes import ranks

MOVES_S = 100.0


@pytest.fixture(scope="module")
def movers() -> Iterator[list[Forked]]:
    """Ranks that move, of which rank 1 dies before the last move."""
    with ranks(main, RANKS) as started:
        yield started


@pytest.fixture(scope="module")
def moved(movers: list[Forked]) -> list[dict[str, Any]]:
    """Returns what each rank found."""
    return [rank.receive(MOVES_S) for rank in movers]


def test_every_bit_arrives_from_layout_to_layout_and_back(moved: list[dict[str, Any]]) -> None:
    assert [rank["rank"] for rank in moved] == list(range(RANKS))
    assert [rank["wrong"] for rank in moved] == [[]] * RANKS
    sent = [sum(move["sent_bytes"] for move in rank["moves"]) for rank in moved]
    assert min(sent) > 0


def test_ranks_do_not_wait_for_one_that_died(movers: list[Forked], moved: list[dict[str, Any]]) -> None:
    assert [rank.wait(MOVES_S) for rank in movers] == [0, 9, 0, 0]
    assert all(movers[rank].receive(MOVES_S) for rank in (0, 2, 3))
