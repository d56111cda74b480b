"""Checks that the workers of `earl bench control` send what the contract's messages say."""

from __future__ import annotations

from typing import Any

from benchmarks.control import wire
from benchmarks.control.measure import Window, answered_wrongly, growth
from earl.v1 import common_pb2, scheduler_pb2

REFS = [(1, 1, 1), (300, 2, 70_000), (1 << 40, 3, 1 << 33)]


def test_prepared_bytes_are_the_messages() -> None:
    worker = wire.worker("rollout-7", 3, common_pb2.STAGE_ROLLOUT)
    renewal = scheduler_pb2.RenewLeasesRequest.FromString(wire.renewals(worker, REFS))
    assert (renewal.worker.name, renewal.worker.incarnation) == ("rollout-7", 3)
    assert [(one.ticket_id, one.attempt, one.fence) for one in renewal.attempts] == REFS
    lease = scheduler_pb2.LeaseTicketsRequest.FromString(wire.lease(worker, 8, 2.0, 70_000))
    assert (lease.worker.name, lease.credit, lease.wait_s, lease.newest_fence) == (
        "rollout-7",
        8,
        2.0,
        70_000,
    )
    beat = scheduler_pb2.HeartbeatRequest.FromString(wire.heartbeat(worker) + wire.state(5, 1000))
    assert (beat.running, beat.version, beat.parallelism.dp, beat.worker.name) == (5, 1000, 1, "rollout-7")


def test_results_look_like_those_of_episodes() -> None:
    worker = wire.worker("rollout-7", 1, common_pb2.STAGE_ROLLOUT)
    sent = scheduler_pb2.CompleteTicketsRequest.FromString(wire.Results(1).encode(worker, REFS, 400))
    assert sent.worker.name == "rollout-7" and len({one.descriptor_key for one in sent.results}) == 3
    for one, ref in zip(sent.results, REFS, strict=True):
        assert (one.attempt.ticket_id, one.attempt.attempt, one.attempt.fence) == ref
        assert one.ending == common_pb2.ENDING_OK and (one.oldest_version, one.newest_version) == (400, 400)
        assert one.total_tokens == sum(one.turn_tokens) and one.turns == len(one.turn_tokens)
        assert one.metrics["win"] in (0.0, 1.0)


def test_growth_counts_from_when_everything_is_full() -> None:
    def windows(*closed_and_rss: tuple[int, float]) -> list[Window]:
        return [Window(1.0, 1, closed, {}, {"scheduler": rss}) for closed, rss in closed_and_rss]

    assert growth(windows((100_000, 1.0), (250_000, 90.0))) is None
    grew = growth(windows((100_000, 1.0), *((200_000 + at, 80.0 + at) for at in range(10))))
    assert grew == {"scheduler": 8.0}


def test_a_repeated_report_is_refused_only_once_its_ticket_is_closed() -> None:
    def item(
        ticket: int, verdict: str = "REFUSED", time_s: float = 10.0, evaluation: bool = False
    ) -> dict[str, Any]:
        return {"ticket": ticket, "verdict": f"VERDICT_{verdict}", "time_s": time_s, "evaluation": evaluation}

    closed = [item(1), item(2, evaluation=True)]
    assert answered_wrongly(closed, {1: 9.0}, dropped=0) == []
    # Planned or ready then: checkpointed later, or never.
    early = answered_wrongly([item(1), item(3)], {1: 10.5}, dropped=0)
    assert [line.partition(" was")[0] for line in early] == ["ticket 1", "ticket 3"]
    assert len(answered_wrongly([item(1), item(3)], {}, dropped=1)) == 1
    # No other verdict is ever right, whatever became of the ticket.
    assert "VERDICT_RETRIED" in answered_wrongly([item(1, "RETRIED")], {1: 9.0}, dropped=5)[0]
