"""Scores of a reward model between its stage, the ledger and a batch's advantages."""

from __future__ import annotations

import dataclasses
import math

import pytest

from earl.errors import FragmentError, LedgerError
from earl.parallelism import REFERENCE, REWARD_MODEL
from earl.v1 import scheduler_pb2
from services.scheduler.api.codec_reference import decode_results
from services.scheduler.batches import consumers
from services.scheduler.batches.batch_plan import split_batch, summary
from services.scheduler.batches.columns import ColumnRegistry, Location
from services.scheduler.ledger.groups import has_signal
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import Attempt, EpisodeResult, Purpose
from services.scheduler.state.workers import WorkerId, WorkerRecord
from services.trainer.reference.reference_client import ReferenceItem, SequenceScore
from tests.support.ledger import RULES, Image

STAGE, OTHER = WorkerId("reward_model", 1), WorkerId("reference", 1)
SCORES = {1: 0.25, 2: -1.5, 3: 3.0, 4: 0.1}
COEFFICIENT = 0.5


class Run:
    """Two groups of two, played with rewards of 1; a reward model and a reference stage."""

    def __init__(self, untrained: int = 0) -> None:
        self.rules = dataclasses.replace(
            RULES, warmup_batches=0, evaluation_episodes=0, steps=9, score_coefficient=COEFFICIENT,
            replay_reuse=1, replay_groups=1, replay_capacity=9,
        )  # fmt: skip
        self.columns = ColumnRegistry([REFERENCE, REWARD_MODEL])
        self.ledger = Ledger(self.rules, self.columns.held_back)
        self.ledger.tables.run.version = 1
        self.image = Image()
        for name in ("rollout-0", "reference", "reward_model"):
            self.ledger.membership.join(WorkerRecord(name=name, incarnation=1), 0.0)
        for index in range(2):
            self.ledger.attempts.issue(Purpose.TRAIN, 2, 1, 1.0, index=index)
        for ticket in self.ledger.lease("rollout-0", 1, 9, 0.0):
            trained = 0 if ticket.id <= untrained else 4
            result = EpisodeResult(
                reward=1.0, total_tokens=10, trained_tokens=trained, descriptor_key=f"w#{ticket.id}/1",
                oldest_version=1, newest_version=1,
            )  # fmt: skip
            self.ledger.attempts.complete("rollout-0", 1, Attempt(ticket.id, 1, ticket.fence), result)
        consumers.follow(self.columns, self.ledger)
        self.numbers = sorted(self.ledger.tables.tickets)

    def lease(self, role: str = REWARD_MODEL, stage: WorkerId = STAGE) -> tuple[int, list[int]]:
        leased = consumers.lease(self.columns, self.ledger, role, stage, 1000)
        return leased.fence, sorted(each.ticket_id for each in leased.trajectories)

    def report(self, fence: int, scores: dict[int, float]) -> int:
        made = {(number, 1): Location((), score=score) for number, score in scores.items()}
        return consumers.complete(self.columns, self.ledger, REWARD_MODEL, STAGE, fence, made, [])

    def reference(self) -> None:
        fence, numbers = self.lease(REFERENCE, OTHER)
        made = {(number, 1): Location(("r",), number) for number in numbers}
        assert not consumers.complete(self.columns, self.ledger, REFERENCE, OTHER, fence, made, [])

    def restart(self) -> None:
        """The scheduler dies, and its successor knows what was stored."""
        self.image.apply(self.ledger.tables.take_changes())
        self.columns = ColumnRegistry([REFERENCE, REWARD_MODEL])
        self.ledger = Ledger.restored(self.rules, self.image.peek(), 0.0, self.columns.held_back)
        consumers.follow(self.columns, self.ledger)

    def plan(self) -> Batch | None:
        consumers.follow(self.columns, self.ledger)
        return self.ledger.plan(
            Purpose.TRAIN, 2, publish=True, checkpoint=False, progress=0.0, first_of_phase=False
        )

    def advantages(self, batch: Batch, name: str = "reward") -> dict[int, float]:
        tickets = self.ledger.tables.tickets
        plan = split_batch(batch, tickets, 1, name, score_coefficient=COEFFICIENT)
        return {item.ticket_id: item.advantage for item in plan.ranks[0]}

    def scored(self) -> dict[int, float | None]:
        results = {number: self.ledger.tables.tickets[number].result for number in self.numbers}
        return {number: result.score for number, result in results.items() if result is not None}


def test_a_batch_waits_for_its_scores_and_is_trained_on_them() -> None:
    run = Run()
    run.reference()
    fence, numbers = run.lease()
    assert numbers == run.numbers == list(SCORES)
    assert run.report(fence, {number: SCORES[number] for number in (1, 2, 3)}) == 0
    assert run.plan() is None
    fence, numbers = run.lease()
    assert numbers == [4] and run.report(fence, {4: SCORES[4]}) == 0
    # Repeating a report changes nothing.
    assert run.report(fence, {4: SCORES[4]}) == 0
    assert run.scored() == SCORES
    batch = run.plan()
    assert batch is not None
    assert run.advantages(batch) == {number: 1.0 + COEFFICIENT * score for number, score in SCORES.items()}
    halves = run.advantages(batch, "mean")
    assert halves[1] == pytest.approx(-halves[2]) == pytest.approx(COEFFICIENT * (0.25 + 1.5) / 2)
    # The reference's columns are still there.
    assert run.columns.locations(REFERENCE, [3]) == {3: Location(("r",), 3)}
    committed = run.ledger.commit(batch.id, 2)
    assert committed is not None
    figures = summary(committed)
    assert figures["reward_mean"] == 1.0
    assert figures["reward_model_mean"] == pytest.approx(sum(SCORES.values()) / 4)


def test_a_replay_has_the_rewards_that_its_group_was_trained_with() -> None:
    run = Run()
    run.reference()
    run.report(run.lease()[0], SCORES)
    batch = run.plan()
    assert batch is not None
    before = run.advantages(batch)
    members = [run.ledger.tables.tickets[number] for number in (1, 2)]
    assert has_signal(members, COEFFICIENT) and not has_signal(members)
    run.ledger.commit(batch.id, 2)
    run.restart()
    replays = run.ledger.replay.issue(2)
    assert [ticket.result.score for ticket in replays if ticket.result] == [SCORES[1], SCORES[2]]
    again = Batch(
        id=9, version=2, purpose=Purpose.TRAIN, tickets=[], publish=True, checkpoint=False, progress=0.0,
        first_of_phase=False, replays=[ticket.id for ticket in replays],
    )  # fmt: skip
    assert list(run.advantages(again).values()) == [before[1], before[2]]


def test_scores_outlive_scheduler_and_stage() -> None:
    run = Run()
    run.report(run.lease()[0], {1: 0.25, 2: -1.5})
    run.ledger.membership.leave("reward_model", "it died")
    run.restart()
    assert run.scored() == {1: 0.25, 2: -1.5, 3: None, 4: None}
    # What the stage has scored is not asked again; what the other one made is.
    assert run.lease()[1] == [3, 4] and run.lease(REFERENCE, OTHER)[1] == [1, 2, 3, 4]


def test_what_is_played_again_is_scored_again() -> None:
    run = Run()
    run.report(run.lease()[0], SCORES)
    run.ledger.lose(2, 1)
    consumers.follow(run.columns, run.ledger)
    assert run.ledger.tables.tickets[2].result is None
    assert run.report(run.lease()[0], {2: 7.0}) == 1


def test_what_the_policy_did_not_write_has_no_score() -> None:
    run = Run(untrained=2)
    assert run.lease()[1] == [3, 4]
    run.reference()
    run.report(run.lease()[0], {3: 3.0, 4: 0.1})
    batch = run.plan()
    assert batch is not None and run.advantages(batch)[1] == 1.0


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_not_finite_names_role_and_column(score: float) -> None:
    run = Run()
    with pytest.raises(FragmentError, match=r"role reward_model gives .* ticket 1 .*: the column score"):
        run.report(run.lease()[0], {1: score})
    assert run.scored()[1] is None


def test_a_role_reports_what_it_makes() -> None:
    run = Run()
    fence, _ = run.lease()
    column = {(1, 1): Location(("r",))}
    with pytest.raises(LedgerError, match="role reward_model reports a column of ticket 1"):
        consumers.complete(run.columns, run.ledger, REWARD_MODEL, STAGE, fence, column, [])
    score = {(1, 1): Location((), score=1.0)}
    with pytest.raises(LedgerError, match="role reference reports a score of ticket 1"):
        consumers.complete(run.columns, run.ledger, REFERENCE, OTHER, fence, score, [])


def test_a_score_of_zero_is_one_on_the_wire() -> None:
    request = scheduler_pb2.CompleteReferenceRequest(role=REWARD_MODEL)
    item, score = ReferenceItem(7, 2, "w#7/2", 10), SequenceScore(0.0)
    request.results.add(ticket_id=item.ticket_id, attempt=item.attempt, score=score.value)
    request.results.add(ticket_id=8, attempt=1, reference_keys=["a"], reference_offset=3)
    assert decode_results(request)[0] == {(7, 2): Location((), score=0.0), (8, 1): Location(("a",), 3)}
