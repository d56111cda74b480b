"""The plan of a batch with replays, and what its line in the metrics says of them."""

from __future__ import annotations

from earl.ticket_ranges import RangeSet
from services.scheduler.api.codec import encode_plan
from services.scheduler.batches.batch_plan import split_batch, summary
from services.scheduler.batches.columns import Location
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import EpisodeResult, Purpose, Ticket, TicketState
from services.trainer.api.codec import decode_plan

BATCH = Batch(
    id=3, version=9, purpose=Purpose.TRAIN, tickets=[21, 22], publish=True, checkpoint=False, progress=0.5,
    first_of_phase=False, replays=[31, 32],
)  # fmt: skip


def ticket(number: int, group: int, reward: float, source: int = 0, version: int = 9) -> Ticket:
    result = EpisodeResult(
        reward=reward, total_tokens=number, trained_tokens=4, oldest_version=version, newest_version=version,
        descriptor_key=f"w#{source or number}/1",
    )  # fmt: skip
    return Ticket(
        id=number, group=group, purpose=Purpose.REPLAY if source else Purpose.TRAIN, env_seed=1,
        sample_seed=2, min_version=version, temperature=1.0, state=TicketState.PLANNED, result=result,
        source=source, attempt=1, environment="game",
    )  # fmt: skip


TICKETS = {
    one.id: one
    for one in (
        ticket(21, 5, 1.0), ticket(22, 5, 0.0), ticket(31, 6, 0.0, 11, version=6),
        ticket(32, 6, 4.0, 12, version=7),
    )
}  # fmt: skip


def test_a_replay_keeps_its_groups_advantage_and_names_where_its_columns_are() -> None:
    plan = split_batch(
        BATCH, TICKETS, 2, "mean", {"reference": {21: Location(("stage",)), 22: Location(("stage",))}},
        reference_for=None, kept=RangeSet.of([11, 12, 21]),
    )  # fmt: skip
    decoded = decode_plan(encode_plan(plan).SerializeToString(), 2)
    items = {item.ticket_id: item for rank in decoded.ranks for item in rank}
    assert {number: item.advantage for number, item in items.items()} == {
        21: 0.5,
        22: -0.5,
        31: -2.0,
        32: 2.0,
    }
    assert {number: item.source for number, item in items.items()} == {21: 0, 22: 0, 31: 11, 32: 12}
    assert items[31].key == "w#11/1" and items[31].attempt == 1
    assert all(item.roles == ("reference",) for item in items.values())
    assert [items[number].reference_kept for number in (21, 31)] == [False, True]
    assert decoded.kept == ((11, 13), (21, 22)) and sorted(decoded.ticket_ids) == [21, 22, 31, 32]
    # What was played comes first in every rank, for it is read together.
    assert all([bool(item.source) for item in rank] == [False, True] for rank in decoded.ranks)
    assert plan.total_tokens == 21 + 22 + 31 + 32


def test_reference_log_probs_are_read_only_where_the_run_has_them() -> None:
    for reference_for, kept in (((), False), (("game",), True), (("other",), False), (None, True)):
        plan = split_batch(BATCH, TICKETS, 1, "mean", reference_for=reference_for)
        assert [item.reference_kept for item in plan.ranks[0]] == [False, False, kept, kept]


def test_replays_are_figures_of_their_own_and_count_in_no_other() -> None:
    results = [TICKETS[number].result or EpisodeResult() for number in (21, 22, 31, 32)]
    alone = summary(CommittedBatch(BATCH, results[:2], ["", ""]))
    figures = summary(CommittedBatch(BATCH, results[:2], ["", ""], replays=results[2:]))
    assert {name: value for name, value in figures.items() if name not in alone} == {
        "replayed_sequences": 2.0, "replayed_tokens": 63.0, "replay_age_mean": 2.5, "replay_age_max": 3.0,
    }  # fmt: skip
    assert {name: figures[name] for name in alone} == alone and figures["staleness_max"] == 0.0
