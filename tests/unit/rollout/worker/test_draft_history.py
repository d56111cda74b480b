"""The history of a worker: what it remembers of tasks and environments, and how much."""

import dataclasses

import numpy as np
import pytest

from services.rollout.worker.draft_history import CONTEXTS, LEAD, MOST_TOKENS, TURNS, DraftHistory, References
from services.rollout.worker.ticket import EpisodeTicket

TICKET = EpisodeTicket(
    ticket_id=1, attempt=1, fence=1, publish=True, scripted=False, environment="e", label="e", task_json="",
    env_seed=1, sample_seed=1, min_version=0, temperature=1.0, episode_s=1.0, lease_s=1.0, max_turns=1,
)  # fmt: skip
BOTH = {"task", "environment"}


def tokens(references: References) -> list[list[int]]:
    return [np.frombuffer(ids, np.int32).tolist() for ids in references.ids]


def of(**fields):
    return dataclasses.replace(TICKET, **fields)


def test_siblings_and_later_epochs_draft_from_a_task_the_newest_first():
    history = DraftHistory({"task"})
    history.note(of(env_seed=1), "a", [1, 2, 3], 2)
    history.note(of(env_seed=1), "b", [1, 2, 4], 2)
    history.note(of(env_seed=1), "a", [1, 2, 3, 5, 6], 1)
    assert tokens(history.references(of(env_seed=1), "c")) == [[1, 2, 3, 5, 6], [1, 2, 4]]
    # Its own context is at the engine.
    assert tokens(history.references(of(env_seed=1), "a")) == [[1, 2, 4]]
    assert tokens(history.references(of(env_seed=2), "c")) == []
    assert tokens(history.references(of(env_seed=1, task_json='{"level": 2}'), "c")) == []


def test_turns_of_an_environment_serve_its_other_tasks():
    history = DraftHistory(BOTH)
    context = list(range(100))
    history.note(of(env_seed=1, label="x"), "a", context, 3)
    assert tokens(history.references(of(env_seed=2, label="x"), "b")) == [context[-3 - LEAD :]]
    assert tokens(history.references(of(env_seed=2, label="y"), "b")) == []
    for number in range(2 * TURNS):
        history.note(of(env_seed=1, label="x"), "a", [number], 1)
    assert len(history.references(of(env_seed=2, label="x"), "b").ids) == TURNS
    # The same turn again is not another one.
    history.note(of(env_seed=1, label="x"), "a", [2 * TURNS - 2], 1)
    assert tokens(history.references(of(env_seed=2, label="x"), "b"))[:2] == [
        [2 * TURNS - 2],
        [2 * TURNS - 1],
    ]


@pytest.mark.parametrize("sources", [set(), {"environment"}])
def test_only_chosen_sources_are_remembered(sources):
    history = DraftHistory(sources)
    history.note(of(env_seed=1), "a", [1, 2, 3], 0)
    assert history.references(of(env_seed=1), "b") == ([], 0) and history.size_bytes == 0


def test_memory_is_bounded_and_the_oldest_goes_first():
    history = DraftHistory({"task"}, most_bytes=4000)
    for seed in range(50):
        for session in "ab":
            history.note(of(env_seed=seed), session, list(range(100)), 1)
        assert history.size_bytes <= 4000
    assert history.references(of(env_seed=0), "c") == ([], 0) != history.references(of(env_seed=49), "c")
    for number in range(3 * CONTEXTS):
        history.note(of(env_seed=49), str(number), [number], 1)
    assert len(history.references(of(env_seed=49), "c").ids) == CONTEXTS


def test_a_context_beyond_all_memory_is_not_kept():
    history = DraftHistory({"task"}, most_bytes=100)
    history.note(of(env_seed=1), "a", list(range(1000)), 1)
    assert history.size_bytes == 0 and history.references(of(env_seed=1), "b").ids == []


def test_a_request_brings_a_bounded_number_of_tokens():
    history = DraftHistory({"task"})
    for number in range(4):
        history.note(of(env_seed=1), str(number), [number] * (MOST_TOKENS // 3), 1)
    assert [ids[0] for ids in tokens(history.references(of(env_seed=1), "x"))] == [3, 2, 1]


def test_references_tell_how_many_are_of_the_task():
    history = DraftHistory(BOTH)
    for number in range(2):
        history.note(of(env_seed=1), str(number), [number, 7], 1)
    assert history.references(of(env_seed=1), "x").of_task == 2
    assert history.references(of(env_seed=1), "0").of_task == 1
    others = history.references(of(env_seed=2), "x")
    assert len(others.ids) == 2 and others.of_task == 0
    # Where a context of the task is too long, nothing behind it is brought along either.
    history.note(of(env_seed=1), "2", [7] * (MOST_TOKENS + 1), 1)
    assert history.references(of(env_seed=1), "x") == ([], 0)
