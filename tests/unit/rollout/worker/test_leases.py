"""Credit and renewal accounting of a worker's leases."""

from dataclasses import replace
from pathlib import Path

import pytest

from services.rollout.service import bounded_leases
from services.rollout.worker.leases import Leases
from services.rollout.worker.ticket import EpisodeTicket
from tests.support.runs import tictactoe

TICKET = EpisodeTicket(
    ticket_id=1,
    attempt=1,
    fence=10,
    publish=True,
    scripted=False,
    environment="e",
    label="e",
    task_json="{}",
    env_seed=0,
    sample_seed=0,
    min_version=0,
    temperature=1.0,
    episode_s=60.0,
    lease_s=30.0,
    max_turns=9,
)


def test_credit_is_free_capacity_until_reported():
    leases = Leases(2)
    assert leases.free == 2
    leases.take(TICKET, 0.0)
    leases.take(replace(TICKET, ticket_id=2), 0.0)
    assert (leases.free, len(leases)) == (0, 2)
    leases.give_up(TICKET)
    leases.give_up(TICKET)
    assert leases.free == 1


MATCH = replace(TICKET, ticket_id=3, others=(replace(TICKET, ticket_id=4),))


def test_a_match_is_one_episode_and_takes_a_context_for_each_seat():
    leases = Leases(8, contexts=8, seats=2)
    assert leases.free == 4  # whichever come: all may be matches
    leases.take(MATCH, 0.0)
    leases.take(MATCH, 0.0)  # renewed
    assert (leases.free, len(leases)) == (3, 1)
    for number in range(10, 15):
        leases.take(replace(TICKET, ticket_id=number), 0.0)
    assert (leases.free, len(leases)) == (0, 6)
    leases.give_up(MATCH)
    assert leases.free == 1


def test_an_episode_against_a_frozen_version_takes_what_the_fuller_engines_hold():
    frozen = replace(TICKET, frozen_version=3, session_seats=2)
    leases = Leases(8, contexts=8, seats=2)
    leases.take(frozen, 0.0)  # one context at the policy's engines, one at the opponent's
    leases.take(replace(frozen, ticket_id=3), 0.0)
    assert (leases.free, len(leases)) == (3, 2)
    leases.take(replace(frozen, ticket_id=4, session_seats=3), 0.0)  # two at the opponent's
    assert leases.free == 2


def test_an_explicit_number_of_episodes_counts_a_match_once():
    leases = Leases(2, seats=2)
    leases.take(MATCH, 0.0)
    assert leases.free == 1
    leases.take(TICKET, 0.0)
    assert leases.free == 0


def test_an_idle_worker_takes_a_match_that_is_larger_than_its_engines():
    leases = Leases(1, contexts=1, seats=2)
    assert leases.free == 1
    leases.take(MATCH, 0.0)
    assert leases.free == 0


@pytest.mark.parametrize(
    ("seats", "episodes", "evaluated", "capacity", "free"),
    [
        pytest.param(1, 0, 4, 64, 64, id="one seat"),
        pytest.param(2, 0, 0, 32, 32, id="matches alone"),
        pytest.param(2, 0, 4, 64, 32, id="matches, and evaluations of one seat"),
        pytest.param(2, 40, 4, 40, 40, id="as many as the run file says"),
    ],
)
def test_a_worker_takes_what_its_engines_hold(
    seats: int, episodes: int, evaluated: int, capacity: int, free: int, tmp_path: Path
):
    sections = {
        "environment": {"seats": seats},
        "rollout": {"engines": 2, "max_sequences": 32, "episodes": episodes},
        "evaluation": {"episodes": evaluated},
    }
    leases = bounded_leases(tictactoe(tmp_path, **sections))
    assert (leases.capacity, leases.free) == (capacity, free)


def test_renewal_is_due_after_a_third_of_the_lease_and_again():
    leases = Leases(2)
    leases.take(TICKET, 0.0)
    assert leases.due(9.9) == []
    assert leases.next_due_s() == 10.0
    assert leases.due(10.0) == [TICKET]
    assert leases.due(19.0) == []
    assert leases.due(20.0) == [TICKET]


def test_all_leases_can_be_renewed_early_once():
    leases = Leases(2)
    leases.take(TICKET, 0.0)
    leases.make_due(2.0)
    assert leases.next_due_s() == 2.0
    assert leases.due(2.0) == [TICKET]
    assert leases.due(11.9) == [] and leases.due(12.0) == [TICKET]


def test_lost_is_only_what_is_held_under_that_fence():
    leases = Leases(2)
    newer = replace(TICKET, fence=11)
    leases.take(newer, 0.0)
    assert leases.lost([(1, 1, 10), (2, 1, 5)]) == []
    assert leases.lost([(1, 1, 11)]) == [newer]
    assert TICKET not in leases and newer in leases
    leases.give_up(TICKET)
    assert newer in leases


def test_the_newest_fence_is_that_of_all_tickets_ever_held():
    leases = Leases(8)
    assert leases.newest_fence == 0
    leases.take(replace(MATCH, fence=20, others=(replace(TICKET, ticket_id=4, fence=21),)), 0.0)
    leases.take(replace(TICKET, fence=7), 0.0)  # renewed
    leases.give_up(replace(MATCH, fence=20))
    assert leases.newest_fence == 21
