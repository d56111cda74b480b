"""Seeds, admission, plans: the pure pieces around the ledger."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from earl.config.frozen_schedule import FrozenSchedule
from services.scheduler.api.codec import encode_plan
from services.scheduler.batches.batch_plan import split_batch, summary
from services.scheduler.ledger.admission import GroupCandidate, choose, target_version
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.seeds import env_seed, sample_seeds, splitmix64
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose, Ticket


def test_splitmix_is_the_published_generator() -> None:
    # First outputs of the reference implementation seeded with 0 (state advances by the golden ratio).
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


@given(st.integers(0, 2**31 - 1), st.integers(0, 10_000), st.integers(0, 10_000))
def test_evaluation_seeds_are_never_training_seeds(seed: int, index: int, other: int) -> None:
    assert env_seed(seed, "evaluate", index) not in {
        env_seed(seed, "train", other),
        env_seed(seed, "warmup", other),
    }
    assert 0 <= env_seed(seed, "train", index) < 2**31 <= env_seed(seed, "evaluate", index) < 2**32


def test_seeds_differ_within_and_between_groups() -> None:
    found = {one for index in range(50) for one in sample_seeds(0, "train", index, 16)}
    assert len(found) == 800 and max(found) < 2**63
    assert len({env_seed(seed, "train", index) for seed in range(3) for index in range(100)}) == 300


def candidates(*specs: tuple[int, bool]) -> list[GroupCandidate]:
    return [GroupCandidate(group, deadline, complete) for group, (deadline, complete) in enumerate(specs)]


def test_completed_groups_go_first() -> None:
    found = candidates((6, False), (6, True), (6, False), (6, True))
    assert choose(found, 5, 2, 1) == [1, 3]


def test_a_batch_waits_for_the_group_that_would_become_too_stale() -> None:
    assert choose(candidates((5, False), (6, True), (6, True)), 5, 2, 1) is None
    assert choose(candidates((5, True), (6, True), (6, True)), 5, 2, 1) == [0, 1]


def test_completed_groups_do_not_crowd_out_later_deadlines() -> None:
    # Two batches' worth of deadline 6 at version 5: one of them must go now, though others are ready.
    found = candidates((6, False), (6, False), (6, False), (6, True), (7, True), (7, True))
    assert choose(found, 5, 2, 2) is None
    found[2] = GroupCandidate(2, 6, True)
    assert choose(found, 5, 2, 2) == [2, 3]


def test_synchronous_batches_are_whole() -> None:
    assert choose(candidates((3, True), (3, False)), 3, 2, 0) is None
    assert choose(candidates((3, True), (3, True)), 3, 2, 0) == [0, 1]


@given(st.data(), st.integers(0, 3), st.integers(1, 3))
def test_no_deadline_is_ever_missed(data: st.DataObject, staleness: int, batch: int) -> None:
    """Issue by target_version, complete in any order: each chosen batch leaves a schedule for the rest."""
    version, next_group = 1, 0
    live: dict[int, list] = {}
    for _ in range(12):
        while len(live) < (staleness + 1) * batch:
            oldest = max(1, target_version(version, len(live), batch) - staleness)
            live[next_group] = [oldest + staleness, False]
            next_group += 1
        for group in data.draw(st.permutations(sorted(live))):
            found = [GroupCandidate(g, deadline, done) for g, (deadline, done) in live.items()]
            chosen = choose(found, version, batch, staleness)
            if chosen is not None:
                break
            live[group][1] = True
        else:
            chosen = choose(
                [GroupCandidate(g, deadline, done) for g, (deadline, done) in live.items()],
                version,
                batch,
                staleness,
            )
        assert chosen is not None and len(chosen) == batch
        for group in chosen:
            deadline, done = live.pop(group)
            assert done and deadline >= version
        version += 1
        assert all(deadline >= version for deadline, _ in live.values())


def planned(rewards: list[float], group_size: int, purpose: Purpose = Purpose.TRAIN):
    tickets = {
        number: Ticket(
            id=number, group=number // group_size, purpose=purpose, env_seed=0, sample_seed=0, min_version=1,
            temperature=1.0, attempt=1,
            result=EpisodeResult(
                reward=reward, total_tokens=10 + number, trained_tokens=5, oldest_version=2, newest_version=3,
                descriptor_key=f"k{number}", metrics={"win": float(reward > 0), "illegal": 0.0},
            ),
        )
        for number, reward in enumerate(rewards)
    }  # fmt: skip
    batch = Batch(
        id=1, version=3, purpose=purpose, tickets=list(tickets), publish=True, checkpoint=False, progress=0.5,
        first_of_phase=False,
    )  # fmt: skip
    return batch, tickets


def test_a_plan_gives_each_sequence_to_one_rank_with_its_groups_advantage() -> None:
    batch, tickets = planned([1, -1, 1, 1], 2)
    plan = split_batch(batch, tickets, 2, "grpo")
    items = {item.ticket_id: item for rank in plan.ranks for item in rank}
    high = 1 / (math.sqrt(2) + 1e-4)
    assert [items[number].advantage for number in range(4)] == [high, -high, 0, 0]
    assert plan.total_tokens == 46 and plan.trained_tokens == 20
    assert plan == split_batch(batch, tickets, 2, "grpo")
    warmup = split_batch(*planned([1, -1], 1, Purpose.WARMUP), 1, "grpo")
    assert [item.advantage for item in warmup.ranks[0]] == [1, 1]


def test_a_summary_says_what_was_trained() -> None:
    batch, tickets = planned([1, -1, 1, 1], 2)
    results = [one.result for one in tickets.values() if one.result is not None]
    committed = CommittedBatch(batch, results, [""] * len(results))
    numbers = summary(committed)
    assert numbers["reward_mean"] == 0.5 and numbers["win_rate"] == 0.75 and numbers["illegal_rate"] == 0
    assert numbers["staleness_mean"] == 1 and numbers["staleness_max"] == 1
    assert numbers["truncated_episodes"] == 0
    results[0].ending = EpisodeEnding.TRUNCATED
    assert summary(committed)["truncated_episodes"] == 1
    assert summary(committed)["trained_tokens"] == 20
    assert summary(committed, masks_truncated=True)["trained_tokens"] == 15
    masked = split_batch(batch, tickets, 1, "mean", masks_truncated=True)
    assert [item.masked for item in masked.ranks[0]] == [True, False, False, False]
    assert masked.trained_tokens == 15 and masked.total_tokens == 46
    assert [item.advantage for item in masked.ranks[0]] == [1, -1, 0, 0]


def test_a_summary_names_the_frozen_version_that_was_met() -> None:
    batch, tickets = planned([1, -1, 1, 1], 2)
    results = [one.result for one in tickets.values() if one.result is not None]
    schedule = FrozenSchedule(first=3, every=4, staleness=1)
    met = CommittedBatch(batch, results, [""] * len(results), against=[6, 6, 7, 8])
    assert summary(met, frozen=schedule)["opponent_version"] == 5  # 3, 3, 7, 7
    assert "opponent_version" not in summary(met)
    assert "opponent_version" not in summary(met._replace(against=()), frozen=schedule)


def test_a_plan_gives_the_kl_of_protected_environments_to_their_sequences_alone() -> None:
    batch, tickets = planned([1, -1, 1, 1], 2)
    tickets |= {
        number: msgspec.structs.replace(tickets[number], environment=label)
        for number, label in ((0, "old"), (2, "new"))
    }
    plan = split_batch(batch, tickets, 1, "mean", protected_kl={"old": 0.25})
    assert [item.protected_kl for item in plan.ranks[0]] == [0.25, 0.0, 0.0, 0.0]
    [rank] = encode_plan(plan).ranks
    assert [item.protected_kl for item in rank.items] == [0.25, 0.0, 0.0, 0.0]
    assert {item.protected_kl for item in split_batch(batch, tickets, 1, "mean").ranks[0]} == {0.0}


def test_a_summary_of_a_mixture_has_the_figures_of_each_environment() -> None:
    batch, tickets = planned([1, -1, 1, 1], 2)
    results = [one.result for one in tickets.values() if one.result is not None]
    results[1].oldest_version = results[3].oldest_version = 1
    results[2].trained_tokens = 0  # it has no token to be stale
    numbers = summary(CommittedBatch(batch, results, ["a/b", "c", "a/b", "a/b"]))
    assert numbers["staleness_mean"] == 5 / 3 and numbers["staleness_max"] == 2
    assert numbers["environments.a/b.staleness_mean"] == 1.5
    assert numbers["environments.a/b.staleness_max"] == numbers["environments.c.staleness_mean"] == 2
    assert numbers["reward_mean"] == 0.5 and numbers["sequences"] == 4
    assert numbers["environments.a/b.reward_mean"] == 1 and numbers["environments.a/b.sequences"] == 3
    assert numbers["environments.c.reward_mean"] == -1 and numbers["environments.c.win_rate"] == 0
