"""The agent loop with several seats of the policy: contexts, rewards and endings of a match."""

import math
from dataclasses import replace

import pytest

from earl.env.base import Ending, Observation
from earl.v1 import scheduler_pb2
from services.rollout.worker.leases import Leases
from services.rollout.worker.ticket_codec import decode_episodes
from tests.unit.rollout.worker.test_agent import TICKET, Result, Says, Sessions, agent

MATCH = replace(TICKET, others=(replace(TICKET, ticket_id=8, sample_seed=99),))


def turn(text: str, seat: int, *rewards: float) -> Result:
    """A step's result: whose turn it is now, and what the seats got."""
    return Result(
        Observation(text, legal_actions=("x.", "y."), seat=seat), seat_rewards=rewards or (0.0, 0.0)
    )


def over(*rewards: float, metrics: tuple = ()) -> Result:
    return Result(Observation("~"), done=True, seat_rewards=rewards, seat_metrics=metrics)


def text_of(outcome) -> str:
    return "".join(chr(token) for token in outcome.columns.tokens if token > 1)


async def test_each_seat_has_a_context_rewards_and_metrics_of_its_own():
    policy = Says(["x.", "y.", "z."], version=2)
    wins = ({"win": 1.0}, {"win": 0.0})
    sessions = Sessions(turn("cd", 1, 0.25, 0.0), turn("ef", 0, 0.0, 0.5), over(1.0, -1.0, metrics=wins))
    first = await agent(policy, sessions).play(MATCH)
    second = first.others[0]
    assert sessions.seats == 2 and sessions.session.actions == ["x.", "y.", "z."]
    assert (text_of(first), text_of(second)) == ("abx.efz.", "cdy.")
    assert (first.reward, second.reward) == (1.25, -0.5)
    # Rewards lie at the end of the turn before them, whoever's step it was.
    earned = [list(each.columns.earned.values()) for each in (first, second)]
    assert earned == [[0.25, 1.0], [-0.5]]
    assert (first.metrics, second.metrics) == wins
    assert (first.ending, second.ending) == (Ending.OK, Ending.OK)
    asked = [(request.session, request.seed) for request in policy.requests]
    assert asked == [("7/2", 12), ("8/2", 99), ("7/2", 12)]
    assert policy.released == ["7/2", "8/2"]
    assert (first.columns.trained_tokens, second.columns.trained_tokens) == (4, 2)


async def test_a_seat_that_never_had_a_turn_has_one_token_that_no_loss_counts():
    first = await agent(Says(["x."]), Sessions(over(1.0, -1.0))).play(MATCH)
    still = first.others[0]
    assert (still.reward, still.ending, len(still.columns)) == (-1.0, Ending.OK, 1)
    assert (still.columns.trained_tokens, still.columns.turns_taken) == (0, 0)
    assert all(len(column) == 1 and not column[0] for name, column in still.columns.arrays().items()
               if name != "versions")  # fmt: skip


async def test_a_bound_of_one_seat_truncates_the_match():
    steps = [turn("cd", 1), turn("ef", 0), turn("gh", 1)]
    first = await agent(Says(["x."]), Sessions(*steps)).play(replace(MATCH, max_turns=1))
    assert [each.ending for each in first.seats] == [Ending.TRUNCATED] * 2
    assert [each.columns.turns_taken for each in first.seats] == [1, 1]
    full = await agent(Says(["x."]), Sessions(turn("cdcdcdcd", 1)), context=7).play(MATCH)
    assert [each.ending for each in full.seats] == [Ending.TRUNCATED] * 2
    assert [len(each.columns) for each in full.seats] == [5, 1]


async def test_a_failure_fails_all_seats():
    for reward in (math.nan, 9.0):
        sessions = Sessions(turn("cd", 1), over(0.0, reward))
        first = await agent(Says(["x."]), sessions, rewards=(-1.0, 1.0)).play(MATCH)
        assert [each.ending for each in first.seats] == [Ending.ENV_ERROR] * 2
        assert len({each.message for each in first.seats}) == 1 and first.message


async def test_scripted_seats_draw_from_seeds_of_their_own():
    scripted = replace(
        MATCH, scripted=True, min_version=0, others=(replace(MATCH.others[0], scripted=True, min_version=0),)
    )
    drawn, others = set(), set()
    for seed in range(6):
        sessions = Sessions(turn("cd", 1), turn("cd", 0), turn("cd", 1), over(0.0, 0.0))
        ticket = replace(scripted, sample_seed=seed)
        await agent(Says([]), sessions).play(ticket)
        moves = sessions.session.actions
        drawn.add((moves[0], moves[2]))
        others.add((moves[1], moves[3]))
    assert len(drawn) > 1 and len(others) == 1


async def test_transcripts_hold_what_each_seat_saw():
    asked = replace(MATCH, transcript=True, others=(replace(MATCH.others[0], transcript=True),))
    first = await agent(Says(["x.", "y."]), Sessions(turn("cd", 1), over(1.0, -1.0))).play(asked)
    conversations = [
        [(each.role, each.text) for each in seat.transcript if each.role != "system"] for seat in first.seats
    ]
    assert conversations == [[("user", "ab"), ("assistant", "x.")], [("user", "cd"), ("assistant", "y.")]]


@pytest.mark.parametrize("seat", [0, 1])
def test_a_match_is_one_lease(seat: int):
    leases = Leases(2)
    leases.take(MATCH, 0.0)
    assert (leases.free, len(leases)) == (1, 1)
    lost = MATCH.seats[seat]
    assert leases.lost([(lost.ticket_id, lost.attempt, lost.fence + 1)]) == []
    assert leases.lost([(lost.ticket_id, lost.attempt, lost.fence)]) == [MATCH]


def test_tickets_of_a_match_become_one_episode():
    seats = [(1, 0, 0), (2, 0, 2), (3, 1, 2), (4, 0, 2), (5, 1, 2), (6, 0, 0)]
    tickets = [
        scheduler_pb2.Ticket(ticket_id=number, seat=seat, seats=count) for number, seat, count in seats
    ]
    episodes = decode_episodes(tickets)
    assert [[each.ticket_id for each in episode.seats] for episode in episodes] == [[1], [2, 3], [4, 5], [6]]
