"""The agent loop with recorded episodes: what comes with a ticket, and what goes back with a result."""

from __future__ import annotations

from dataclasses import replace

from earl.env.base import Ending
from earl.recorded_episodes import RecordedTurn
from earl.v1 import common_pb2, scheduler_pb2
from services.rollout.worker.ticket_codec import decode_ticket, encode_result
from tests.unit.rollout.worker.test_agent import GOES_ON, TICKET, WON, Says, Sessions, agent

TURNS = [RecordedTurn([1, 5, 6], [7, 8]), RecordedTurn([9], [10])]


async def test_a_recorded_ticket_becomes_its_trajectory_without_any_play():
    sent = scheduler_pb2.Ticket(
        ticket_id=7, label="count", environment="count", purpose=common_pb2.PURPOSE_WARMUP, episode_s=30,
        actor=common_pb2.ACTOR_RANDOM_LEGAL, recorded_reward=-0.5, max_turns=1,
        recorded=[scheduler_pb2.RecordedTurn(observed=turn.observed, acted=turn.acted) for turn in TURNS],
    )  # fmt: skip
    policy, sessions = Says(["x."], version=3), Sessions(WON)
    outcome = await agent(policy, sessions).play(decode_ticket(sent))
    assert (outcome.ending, outcome.reward, sessions.opened, policy.requests) == (Ending.OK, -0.5, [], [])
    columns = {name: column.tolist() for name, column in outcome.columns.arrays().items()}
    assert columns["tokens"] == [1, 5, 6, 7, 8, 9, 10]
    assert columns["loss_mask"] == [0, 0, 0, 1, 1, 0, 1]
    assert columns["turns"] == [0, 0, 0, 0, 0, 1, 1]


async def test_each_seat_has_the_recorded_episode_of_its_ticket():
    other = replace(TICKET, ticket_id=8, scripted=True, recorded=TURNS[1:], recorded_reward=1.0)
    match = replace(TICKET, scripted=True, recorded=TURNS[:1], recorded_reward=-1.0, others=(other,))
    first = await agent(Says([]), Sessions()).play(match)
    assert [seat.columns.tokens for seat in first.seats] == [[1, 5, 6, 7, 8], [9, 10]]
    assert [seat.reward for seat in first.seats] == [-1.0, 1.0]


async def test_turns_go_back_as_they_were_read_and_written_where_they_are_asked_for():
    ticket = replace(TICKET, record=True)
    outcome = await agent(Says(["x.", "y."]), Sessions(GOES_ON, WON)).play(ticket)
    sent = encode_result(ticket, outcome, "").recorded
    turns = [("".join(map(chr, turn.observed)), "".join(map(chr, turn.acted))) for turn in sent]
    assert turns == [("\x01ab", "x."), ("cd", "y.")]
    assert not encode_result(TICKET, outcome, "").recorded
    outcome.ending = Ending.ENV_ERROR
    assert not encode_result(ticket, outcome, "").recorded
