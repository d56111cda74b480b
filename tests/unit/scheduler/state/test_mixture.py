"""The instance at each place: shares, epochs and seeds, as properties."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.weight import weight_at
from services.scheduler.state.mixture import (
    NO_TASK,
    batch_part_at,
    batch_trajectories,
    epoch_at,
    group_size_at,
    instance_at,
    share_at,
    shares_at,
)
from services.scheduler.state.rules import Rules, Share
from services.scheduler.state.seeds import EVALUATION_BIT, env_seed
from services.scheduler.state.tickets import Purpose
from tests.support.ledger import RULES

quick = settings(max_examples=40)
weights = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def mixed(parts: list[int], seed: int = 0, tasks: int = 0) -> Rules:
    """Rules with environments of these weights; half of the tasks of each are held out."""
    shares = tuple(
        Share(
            f"e{number}", weight / sum(parts), number + 2,
            tuple(range(0, tasks, 2)), tuple(range(1, tasks, 2)), seats=1 + number % 2,
        )
        for number, weight in enumerate(parts)
    )  # fmt: skip
    return replace(RULES, seed=seed, mixture=shares)


@quick
@given(weights, st.integers(0, 1 << 30), st.integers(0, 5000), st.integers(1, 400))
def test_any_successive_places_hold_close_to_each_share(
    parts: list[int], seed: int, first: int, count: int
) -> None:
    rules = mixed(parts, seed)
    played = Counter(share_at(rules, Purpose.TRAIN, place).label for place in range(first, first + count))
    for share in rules.mixture:
        assert abs(played[share.label] - count * share.share) <= 5


schedules = st.lists(
    st.dictionaries(st.integers(0, 60), st.integers(0, 9), min_size=1, max_size=4), min_size=2, max_size=4
).map(lambda points: [*points, {0: 1}])


def scheduled(points: list[dict[int, int]], seed: int, tasks: int = 0) -> Rules:
    """Rules with environments whose weights are these by step."""
    plain = mixed([1] * len(points), seed, tasks)
    shares = [
        replace(share, schedule=tuple((step, float(weight)) for step, weight in sorted(by_step.items())))
        for share, by_step in zip(plain.mixture, points, strict=True)
    ]
    return replace(plain, mixture=tuple(shares), batch_groups=8)


@quick
@given(schedules, st.integers(0, 1 << 30), st.integers(0, 60), st.integers(1, 20))
def test_places_of_any_steps_hold_close_to_the_shares_of_those_steps(
    points: list[dict[int, int]], seed: int, first: int, steps: int
) -> None:
    rules = scheduled(points, seed)
    expected: Counter[str] = Counter()
    moved = 0.0
    before: list[float] = []
    for step in range(first, first + steps):
        parts = [weight_at(share.schedule, step) for share in rules.mixture]
        shares = [part / sum(parts) for part in parts]
        moved += sum(abs(now - then) for now, then in zip(shares, before or shares, strict=True))
        before = shares
        for share, part in zip(rules.mixture, shares, strict=True):
            expected[share.label] += part * rules.batch_groups  # type: ignore[assignment]
    places = range(first * rules.batch_groups, (first + steps) * rules.batch_groups)
    played = Counter(share_at(rules, Purpose.TRAIN, place).label for place in places)
    for share in rules.mixture:
        assert abs(played[share.label] - expected[share.label]) <= 5 + 8 * moved
    for place in places:
        share = share_at(rules, Purpose.TRAIN, place)
        assert weight_at(share.schedule, place // rules.batch_groups) > 0


@quick
@given(schedules, st.integers(0, 1 << 30), st.integers(2, 12))
def test_epochs_are_whole_while_weights_change(points: list[dict[int, int]], seed: int, tasks: int) -> None:
    rules = scheduled(points, seed, 2 * tasks)
    share = rules.mixture[-1]
    instances = [instance_at(rules, Purpose.TRAIN, place) for place in range(900)]
    played = [instance.task for instance in instances if instance.environment == share.label]
    for start in range(0, len(played) - tasks + 1, tasks):
        assert sorted(played[start : start + tasks]) == list(share.train)


@quick
@given(weights, st.integers(0, 1 << 30))
def test_a_schedule_of_constant_weights_plays_what_the_weights_play(parts: list[int], seed: int) -> None:
    plain = mixed(parts, seed)
    rules = scheduled([{3: part, 9: part} for part in parts], seed)
    for place in range(200):
        assert share_at(rules, Purpose.TRAIN, place).label == share_at(plain, Purpose.TRAIN, place).label


@quick
@given(weights, st.integers(0, 1 << 30))
def test_the_mixture_is_a_function_of_the_seed(parts: list[int], seed: int) -> None:
    places = range(64)
    one, again = (
        [instance_at(mixed(parts, seed, 10), Purpose.TRAIN, place) for place in places] for _ in "ab"
    )
    assert one == again
    other = [instance_at(mixed(parts, seed + 1, 10), Purpose.TRAIN, place) for place in places]
    assert one != other


@quick
@given(weights, st.integers(0, 1 << 30), st.integers(2, 40))
def test_every_epoch_plays_every_task_once_in_another_order(parts: list[int], seed: int, tasks: int) -> None:
    rules = mixed(parts, seed, tasks)
    share = rules.mixture[0]
    count = len(share.train)
    played: list[int] = []
    for place in range(10_000):
        if share_at(rules, Purpose.TRAIN, place) is share:
            played.append(instance_at(rules, Purpose.TRAIN, place).task)
            if len(played) == 3 * count:
                break
    epochs = [played[number * count : (number + 1) * count] for number in range(3)]
    assert all(sorted(epoch) == sorted(share.train) for epoch in epochs)
    if count > 6:
        assert epochs[0] != epochs[1]


@quick
@given(weights, st.integers(0, 1 << 30), st.integers(2, 12))
def test_a_task_is_played_once_in_each_epoch_that_a_place_names(
    parts: list[int], seed: int, tasks: int
) -> None:
    rules = mixed(parts, seed, 2 * tasks)
    played = Counter(
        (instance.environment, epoch_at(rules, place), instance.task)
        for place in range(400)
        for instance in [instance_at(rules, Purpose.TRAIN, place)]
    )
    assert set(played.values()) == {1}
    assert epoch_at(RULES, 3) is None
    curriculum = replace(rules, mixture=tuple(replace(share, curriculum=True) for share in rules.mixture))
    assert epoch_at(curriculum, 3) is None


@quick
@given(weights, st.integers(0, 1 << 30), st.integers(0, 900))
def test_a_task_has_one_seed_and_evaluation_never_meets_training(
    parts: list[int], seed: int, first: int
) -> None:
    rules = mixed(parts, seed, 8)
    seeds: dict[tuple[str, int], int] = {}
    for place in range(first, first + 60):
        for take in (0, 1):
            instance = instance_at(rules, Purpose.TRAIN, place, take)
            assert instance.task % 2 == 0 and instance.env_seed < EVALUATION_BIT
            known = seeds.setdefault((instance.environment, instance.task), instance.env_seed)
            assert known == instance.env_seed
        judged = instance_at(rules, Purpose.EVALUATE, place)
        assert judged.task % 2 == 1 and judged.env_seed >= EVALUATION_BIT


@quick
@given(st.integers(0, 1 << 30), st.integers(2, 9), st.integers(0, 60))
def test_substitutes_are_other_tasks_until_all_have_been_taken(seed: int, tasks: int, place: int) -> None:
    rules = replace(RULES, seed=seed, mixture=(Share(train=tuple(range(tasks)), held_out=(99,)),))
    taken = [instance_at(rules, Purpose.TRAIN, place, take).task for take in range(tasks)]
    assert sorted(taken) == list(range(tasks))


def test_an_evaluation_plays_the_environments_in_turns() -> None:
    rules = mixed([7, 1, 1], tasks=8)
    played = [instance_at(rules, Purpose.EVALUATE, place) for place in range(12)]
    assert [one.environment for one in played] == ["e0", "e1", "e2"] * 4
    assert [one.task for one in played[::3]] == [1, 3, 5, 7]


def test_a_run_with_one_environment_plays_the_seeds_that_it_always_played() -> None:
    for purpose in Purpose:
        for place in range(20):
            instance = instance_at(RULES, purpose, place, place % 3)
            assert instance.env_seed == env_seed(RULES.seed, purpose, place, place % 3)
            assert (instance.environment, instance.task) == ("", NO_TASK)
    assert batch_trajectories(RULES, Purpose.TRAIN, 7) == RULES.batch_groups * RULES.group_size


@quick
@given(schedules, st.integers(0, 1 << 30), st.integers(0, 600), st.integers(0, 600))
def test_successive_places_play_what_each_of_them_plays(
    points: list[dict[int, int]], seed: int, first: int, count: int
) -> None:
    places = range(first, first + count)
    for rules in (scheduled(points, seed), mixed([1, 2, 3], seed), mixed([1], seed)):
        for purpose in (Purpose.TRAIN, Purpose.WARMUP):
            assert shares_at(rules, purpose, places) == [share_at(rules, purpose, place) for place in places]


@quick
@given(weights, st.integers(0, 2000))
def test_a_batch_has_as_many_episodes_as_its_groups(parts: list[int], first: int) -> None:
    rules = mixed(parts)
    places = range(first, first + rules.batch_groups)
    assert batch_trajectories(rules, Purpose.TRAIN, first) == sum(
        group_size_at(rules, Purpose.TRAIN, place) for place in places
    )


@quick
@given(weights, st.integers(0, 2000))
def test_the_trajectories_of_a_batch_are_one_batch(parts: list[int], first: int) -> None:
    rules = mixed(parts)
    places = range(first, first + rules.batch_groups)
    whole = math.fsum(
        group_size_at(rules, Purpose.TRAIN, place) * batch_part_at(rules, Purpose.TRAIN, place)
        for place in places
    )
    assert math.isclose(whole, 1.0)
    assert batch_part_at(rules, Purpose.EVALUATE, first) == 0.0


@quick
@given(weights, st.integers(0, 1 << 30), st.integers(0, 3))
def test_an_entry_without_a_share_is_evaluated_and_never_trained(
    parts: list[int], seed: int, place: int
) -> None:
    place = min(place, len(parts))
    rules = mixed([*parts[:place], 0, *parts[place:]], seed)
    label = f"e{place}"
    assert all(share_at(rules, Purpose.TRAIN, index).label != label for index in range(300))
    evaluated = [share_at(rules, Purpose.EVALUATE, index).label for index in range(2 * len(rules.mixture))]
    assert evaluated.count(label) == 2
