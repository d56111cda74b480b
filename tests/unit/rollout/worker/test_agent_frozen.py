"""The agent loop against a frozen version: which seat is whose, and what is left of the opponent's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from earl.env.base import Ending, Limits
from earl.errors import VersionGone
from earl.v1 import scheduler_pb2
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.worker.actions import AgentBounds
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.ticket_codec import decode_episodes
from tests.unit.rollout.worker.test_agent import TICKET, Letters, Says, Sessions
from tests.unit.rollout.worker.test_agent_seats import over, text_of, turn

AGAINST = replace(TICKET, min_version=5, frozen_version=3, seat=0, session_seats=2)


@dataclass
class Opponent(Says):
    """A frozen version that says what it is told to, and counts who plays against which version."""

    played: list = field(default_factory=list)
    playing_now: int = 0
    error: Exception | None = None

    @asynccontextmanager
    async def playing(self, version):
        if self.error is not None:
            raise self.error
        self.played.append(version)
        self.playing_now += 1
        try:
            yield
        finally:
            self.playing_now -= 1


def agent(policy, opponent, sessions, context=100, **bounded):
    bounds = AgentBounds(Limits(), context, 4, TokenizerCache(Letters()), **bounded)
    return EpisodeAgent(policy, sessions, BusySpans(), {TICKET.label: bounds}, opponent)


@pytest.mark.parametrize("seat", [0, 1])
async def test_the_tickets_seat_is_the_policys_and_the_other_the_frozen_versions(seat: int):
    policy, opponent = Says(["x."], version=6), Opponent(["y."], version=3)
    sessions = Sessions(turn("cd", 1), turn("ef", 0), over(1.0, -1.0))
    outcome = await agent(policy, opponent, sessions).play(replace(AGAINST, seat=seat, transcript=True))
    assert sessions.seats == 2
    assert sessions.session.actions == (["x.", "y.", "x."] if seat == 0 else ["y.", "x.", "y."])
    # The outcome is the learner's alone: its own observations, tokens and reward.
    assert (outcome.ending, outcome.others) == (Ending.OK, ())
    assert text_of(outcome) == ("abx.efx." if seat == 0 else "cdx.")
    assert outcome.reward == (1.0 if seat == 0 else -1.0)
    assert set(outcome.columns.versions) == {6} and outcome.columns.oldest_version == 6
    assert [each.text for each in outcome.transcript if each.role == "user"] == (
        ["ab", "ef"] if seat == 0 else ["cd"]
    )
    assert opponent.played == [3] and not opponent.playing_now


async def test_a_frozen_seat_has_a_context_and_a_seed_of_its_own():
    policy, opponent = Says(["x."], version=6), Opponent(["y.", "z."], version=3)
    steps = [turn(text, seat, 0.0, 0.0, 0.0) for text, seat in (("cd", 1), ("ef", 2), ("gh", 1))]
    sessions = Sessions(*steps, over(0.0, 0.0, 0.0))
    await agent(policy, opponent, sessions).play(replace(AGAINST, session_seats=3))
    [first, second, third] = opponent.requests
    assert [request.session for request in opponent.requests] == ["7/2/1", "7/2/2", "7/2/1"]
    assert third.ids == [1, *map(ord, "cdy.gh")] and second.ids == [1, *map(ord, "ef")]
    assert first.temperature == TICKET.temperature
    # Seeds of tickets are below 2**63.
    seeds = {policy.requests[0].seed, first.seed, second.seed}
    assert len(seeds) == 3 and min(first.seed, second.seed) >= 1 << 63 and third.seed == first.seed
    assert policy.released == ["7/2/0"] and opponent.released == ["7/2/1", "7/2/2"]


async def test_the_frozen_seats_seed_follows_from_the_tickets():
    seeds = []
    for sample_seed in (12, 12, 13):
        opponent = Opponent(["y."], version=3)
        sessions = Sessions(turn("cd", 1), over(0.0, 0.0))
        await agent(Says(["x."], version=6), opponent, sessions).play(
            replace(AGAINST, sample_seed=sample_seed)
        )
        seeds.append(opponent.requests[0].seed)
    assert seeds[0] == seeds[1] != seeds[2]


async def test_a_learner_that_never_had_a_turn_has_one_token_that_no_loss_counts():
    opponent = Opponent(["y."], version=3)
    outcome = await agent(Says([], version=6), opponent, Sessions(over(1.0, -1.0))).play(
        replace(AGAINST, seat=1)
    )
    assert (outcome.reward, outcome.ending, len(outcome.columns)) == (-1.0, Ending.OK, 1)
    assert outcome.columns.trained_tokens == 0


async def test_an_opponent_that_cannot_be_had_is_the_infrastructures_failure():
    gone = Opponent(["y."], error=VersionGone("version 3 is gone"))
    outcome = await agent(Says(["x."], version=6), gone, Sessions(over(0.0, 0.0))).play(AGAINST)
    assert (outcome.ending, outcome.message) == (Ending.INFRA_ERROR, "VersionGone: version 3 is gone")
    none = await agent(Says(["x."], version=6), None, Sessions(over(0.0, 0.0))).play(AGAINST)
    assert none.ending is Ending.INFRA_ERROR and "has no engines for a frozen version" in none.message


async def test_a_failure_of_the_episode_lets_the_opponent_go():
    opponent = Opponent([RuntimeError("broken")], version=3)
    with pytest.raises(RuntimeError):
        await agent(Says(["x."], version=6), opponent, Sessions(turn("cd", 1))).play(AGAINST)
    assert not opponent.playing_now and opponent.released == ["7/2/1"]


def test_a_ticket_against_a_frozen_version_is_an_episode_whatever_its_seat():
    seats = [(1, 0, 0), (2, 1, 3), (3, 0, 3), (4, 0, 0), (5, 1, 0)]
    tickets = [
        scheduler_pb2.Ticket(ticket_id=number, seat=seat, seats=2, frozen_version=frozen)
        for number, seat, frozen in seats
    ]
    episodes = decode_episodes(tickets)
    assert [[each.ticket_id for each in episode.seats] for episode in episodes] == [[1], [2], [3], [4, 5]]
    assert [(each.seat, each.session_seats, each.frozen_version) for each in episodes] == [
        (0, 2, 0), (1, 2, 3), (0, 2, 3), (0, 2, 0),
    ]  # fmt: skip
