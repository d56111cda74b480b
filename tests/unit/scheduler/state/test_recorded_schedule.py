"""Recorded episodes: which tickets play what is recorded, and which become it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from earl.config.run import RunConfig
from earl.recorded_episodes import RecordedEpisode, RecordedTurn
from services.scheduler.api.codec import TicketEncoder
from services.scheduler.ledger.evaluation import FINAL
from services.scheduler.state.mixture import evaluated_tasks, instance_at, recorded_at, share_at
from services.scheduler.state.recorded_schedule import RecordedSchedule
from services.scheduler.state.rules import Share
from services.scheduler.state.seeds import EVALUATION_BIT
from services.scheduler.state.tickets import Purpose, Ticket
from tests.support.ledger import RULES


def ticket(purpose: Purpose, **fields: Any) -> Ticket:
    known: dict[str, Any] = {"env_seed": 1, "sample_seed": 2, "min_version": 1, "temperature": 1.0}
    return Ticket(id=1, group=1, purpose=purpose, **known, **fields)


def test_each_episode_is_imitated_once_in_an_epoch_by_each_environment() -> None:
    shares = (Share("a", 0.75, recorded=5), Share("b", 0.25, seats=2, recorded=3), Share("c", 0.0))
    rules = replace(RULES, mixture=shares)
    order: dict[str, list[int]] = {"a": [], "b": []}
    for index in range(200):
        share = share_at(rules, Purpose.WARMUP, index)
        for seat in range(share.seats):
            number = recorded_at(rules, index, seat)
            assert number is not None and number == recorded_at(rules, index, seat)
            order[share.label].append(number)
    for label, count in (("a", 5), ("b", 3)):
        epochs = [order[label][first : first + count] for first in range(0, len(order[label]) - count, count)]
        assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 1
    played = replace(RULES, mixture=(Share("a"),))
    assert recorded_at(played, 0) is None


def test_what_is_recorded_is_training_s_and_no_evaluation_ever_plays_it() -> None:
    tasks = Share("a", train=(0, 2, 4), held_out=(1, 3))
    endless = replace(RULES, records=True)
    rules = replace(endless, mixture=(tasks,))
    judged = replace(RULES, mixture=(tasks,))
    instances = [instance_at(rules, Purpose.EVALUATE, index) for index in range(9)]
    assert Counter(instance.task for instance in instances) == {0: 3, 2: 3, 4: 3}
    assert evaluated_tasks(rules, tasks) == (0, 2, 4) and evaluated_tasks(judged, tasks) == (1, 3)
    seeds = {instance_at(endless, Purpose.EVALUATE, index).env_seed for index in range(50)}
    assert len(seeds) == 50 and all(seed < EVALUATION_BIT for seed in seeds)
    assert not seeds & {instance_at(endless, Purpose.TRAIN, index).env_seed for index in range(500)}
    assert all(instance_at(RULES, Purpose.EVALUATE, index).env_seed >= EVALUATION_BIT for index in range(9))


def run(seats: int = 1, **evaluation: Any) -> RunConfig:
    environment = {"name": "e", "task": {"n": 1}, "seats": seats, "evaluation_tasks": [{"n": 2}]}
    return RunConfig.model_validate({"name": "r", "environment": environment, "evaluation": evaluation})


def test_a_ticket_of_the_warm_up_brings_its_episode() -> None:
    episodes = [RecordedEpisode.of(n, "e", float(n), [RecordedTurn([n + 1], [9])]) for n in range(2)]
    rules = replace(RULES, mixture=(Share(recorded=2),))
    schedule = RecordedSchedule(rules, {"": episodes})
    assert schedule.longest == max(len(episode.line) for episode in episodes)
    encoder = TicketEncoder(run(), {}, schedule)
    sent = [encoder.encode(ticket(Purpose.WARMUP, index=index)) for index in range(2)]
    brought = sorted((list(each.recorded[0].observed), each.recorded_reward) for each in sent)
    assert brought == [([1], 0.0), ([2], 1.0)]
    assert not encoder.encode(ticket(Purpose.TRAIN)).recorded
    assert not TicketEncoder(run(), {}).encode(ticket(Purpose.WARMUP)).recorded


def test_only_the_final_evaluation_of_a_recording_records_and_plays_training_s_task() -> None:
    final = ticket(Purpose.EVALUATE, evaluation=FINAL)
    recording = TicketEncoder(run(record=True), {})
    assert recording.encode(final).record and recording.encode(final).task_json == '{"n": 1}'
    assert not recording.encode(ticket(Purpose.EVALUATE, evaluation="start")).record
    judging = TicketEncoder(run(), {}).encode(final)
    assert not judging.record and judging.task_json == '{"n": 2}'
    # One seat of a match needs an opponent, which the evaluation's task has.
    assert TicketEncoder(run(2, record=True), {}).encode(final).task_json == '{"n": 2}'
