"""Credit and renewal accounting of a worker's leases."""

from dataclasses import replace

from services.rollout.worker.leases import Leases
from services.rollout.worker.ticket import EpisodeTicket

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


def test_renewal_is_due_after_a_third_of_the_lease_and_again():
    leases = Leases(2)
    leases.take(TICKET, 0.0)
    assert leases.due(9.9) == []
    assert leases.next_due_s() == 10.0
    assert leases.due(10.0) == [TICKET]
    assert leases.due(19.0) == []
    assert leases.due(20.0) == [TICKET]


def test_lost_is_only_what_is_held_under_that_fence():
    leases = Leases(2)
    newer = replace(TICKET, fence=11)
    leases.take(newer, 0.0)
    assert leases.lost([(1, 1, 10), (2, 1, 5)]) == []
    assert leases.lost([(1, 1, 11)]) == [newer]
    assert TICKET not in leases and newer in leases
    leases.give_up(TICKET)
    assert newer in leases
