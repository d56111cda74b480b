"""A worker's report of sequences that may move, and the moves that it is ordered to make."""

from __future__ import annotations

import dataclasses

from earl.worker_report import LiveSequence, SequenceMove
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.worker.sequence_moves import MovableSequences
from tests.support.pool import published, request, running
from tests.unit.rollout.worker.test_leases import TICKET


def stats(**session_tokens: int) -> EngineStats:
    return EngineStats(
        version=1, tp=1, running=0, waiting=0, retained=0, kv_used_fraction=0.0, steps=0, generated_tokens=0,
        prefilled_tokens=0, reused_tokens=0, evicted_sessions=0, step_s=0.0, session_tokens=session_tokens,
    )  # fmt: skip


async def test_sequences_are_reported_with_what_their_turn_has_sampled_and_moved_where_they_are_told():
    second = dataclasses.replace(TICKET, ticket_id=TICKET.ticket_id + 1, seat=1)
    match = dataclasses.replace(TICKET, others=(second,))
    names = [f"{each.ticket_id}/{each.attempt}" for each in match.seats]
    answered = [stats(**{names[0]: 13}), stats(other=90)]
    async with running() as (pool, made, _):
        await pool.load(published(1))
        movable = MovableSequences(pool.router, lambda: answered)
        assert movable.report([match]) == [], "no engine has had a turn yet"
        for engine in made:
            engine.answer.set()
        for name in names:
            await pool.generate(request(f"{name}/1", name, new=4, ids=[1, 2, 3]))
        assert movable.report([match]) == [
            LiveSequence(names[0], match.ticket_id, 0, 13, 10),
            LiveSequence(names[1], second.ticket_id, 0, 7, 4),
        ]
        await movable.move([SequenceMove(names[1], 1), SequenceMove(names[0], 9), SequenceMove("gone", 1)])
        assert [each.engine for each in movable.report([match])] == [0, 1]


async def test_one_engine_has_nothing_to_report():
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        made[0].answer.set()
        name = f"{TICKET.ticket_id}/{TICKET.attempt}"
        await pool.generate(request(f"{name}/1", name))
        assert MovableSequences(pool.router, lambda: []).report([TICKET]) == []
