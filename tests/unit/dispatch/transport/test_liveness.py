"""Silence of a peer counts only while this side ran, and until it answers."""

from __future__ import annotations

import asyncio

import pytest

from earl.dispatch.transport.connections import FIRST_PAUSE_S, TRIES, Connections
from earl.dispatch.transport.liveness import BEAT_S, UNANSWERED_S, Liveness
from earl.errors import PeerLost, PeerUnreachable
from tests.support.clock import stopped_clock

BEATS = round(UNANSWERED_S / BEAT_S)
ADDRESS = "127.0.0.1:1"


def test_a_peer_that_says_nothing_is_silent_after_two_seconds():
    liveness = Liveness(5.0)
    ticks = [liveness.tick(5.0 + i * BEAT_S) for i in range(1, BEATS + 2)]
    assert ticks == [False] * (BEATS - 1) + [True] * 2


def test_a_sign_of_life_begins_the_silence_anew():
    liveness, now_s = Liveness(0.0), 0.0
    for i in range(5 * BEATS):
        now_s += BEAT_S
        if i % (BEATS - 2) == 0:
            liveness.answered()
        assert not liveness.tick(now_s)


@pytest.mark.parametrize("stall_s", [0.6, 5.0, 3600.0])
def test_a_reader_that_did_not_run_does_not_blame_its_peer(stall_s: float):
    liveness, now_s = Liveness(0.0), 0.0
    for _ in range(BEATS - 1):
        now_s += BEAT_S
        assert not liveness.tick(now_s)
    assert not liveness.tick(now_s + stall_s)
    assert liveness.tick(now_s + stall_s + BEAT_S), "its silence goes on where it was"


class Line:
    """A connection that a test ends. retired: as of Closable."""

    def __init__(self) -> None:
        self.alive, self.retired = True, False

    async def close(self) -> None:
        self.alive = False


class Dialled:
    """Connections to one peer; each attempt to connect takes the next of `answers`, the last one for ever."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.lines: list[Line] = []
        self.attempts = 0
        self.connections = Connections(self._open, trusted=False)

    async def _open(self, address: str, peer: str, number: int) -> Line:
        answer = self.answers[min(self.attempts, len(self.answers) - 1)]
        self.attempts += 1
        if answer is not None:
            raise answer
        self.lines.append(Line())
        return self.lines[-1]

    async def ask(self, work) -> tuple[str, int]:
        """The outcome of `work` while the clock jumps over every pause."""
        with stopped_clock() as advance:
            asking = asyncio.create_task(self.connections.until_answered("o", ADDRESS, work))
            while not asking.done():
                await asyncio.sleep(0)
                advance(FIRST_PAUSE_S / 10)
        return await asking


async def well(line: Line) -> str:
    return "answer"


async def test_a_silent_peer_is_asked_again_until_it_answers():
    dialled = Dialled(PeerUnreachable("o"), OSError(113, "No route to host"), None)
    assert await dialled.ask(well) == ("answer", 2)
    assert dialled.connections.unreachable(ADDRESS) is None


async def test_a_peer_that_stays_silent_is_given_up_typed():
    dialled = Dialled(PeerUnreachable("o"))
    with pytest.raises(PeerUnreachable):
        await dialled.ask(well)
    assert dialled.attempts == TRIES


async def test_a_connection_that_ends_is_made_again_once():
    dialled = Dialled(None)

    async def ends(line: Line) -> str:
        if line is dialled.lines[0]:
            line.alive = False
            raise PeerLost("reset")
        return "answer"

    assert await dialled.ask(ends) == ("answer", 1)

    async def always_ends(line: Line) -> str:
        line.alive = False
        raise PeerLost("reset")

    with pytest.raises(PeerLost, match="reset"):
        await dialled.ask(always_ends)
    assert len(dialled.lines) == 3


@pytest.mark.parametrize("refusal", [ConnectionRefusedError(111, "refused"), EOFError()])
async def test_a_peer_that_refuses_is_lost_at_once(refusal: Exception):
    dialled = Dialled(refusal)
    with pytest.raises(PeerLost, match="cannot be reached"):
        await dialled.ask(well)
    assert dialled.attempts == 1


async def test_an_error_of_a_request_is_not_asked_again():
    dialled = Dialled(None)

    async def refused(line: Line) -> str:
        raise PeerLost("refused a read")

    with pytest.raises(PeerLost, match="refused a read"):
        await dialled.ask(refused)
    assert dialled.attempts == 1
