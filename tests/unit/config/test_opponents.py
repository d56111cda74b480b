"""Self-play against a frozen version: which version that is, what a run file makes of it, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.check import cross_check
from earl.config.frozen_schedule import FrozenSchedule
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from services.rollout.service import capacity
from services.scheduler.memory import ranks_here
from services.scheduler.state.rules import rules_of

SCHEDULES = st.builds(
    FrozenSchedule, first=st.integers(1, 9), every=st.integers(1, 9), staleness=st.integers(0, 8)
)
FROZEN = """
name = "frozen"
[environment]
name = "a/b"
seats = 2
opponent = "frozen"
frozen_every = 4
group_size = 4
[warmup]
batches = 2
[scheduler]
staleness = 0
batch_groups = 4
[trainer]
minibatches = 1
"""
MIXED = """
name = "mixed"
[[environments]]
name = "a/b"
seats = 2
opponent = "frozen"
[[environments]]
name = "a/c"
"""


def run_of(tmp_path: Path, text: str) -> RunConfig:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return load_run(tmp_path / "run.toml")


@given(SCHEDULES, st.integers(0, 40))
def test_the_frozen_version_is_the_newest_of_every_nth(schedule: FrozenSchedule, after: int) -> None:
    version = schedule.first + after
    multiples = range(schedule.first, version + 1, schedule.every)
    assert schedule.version_at(version) == multiples[-1]


@given(SCHEDULES, st.integers(0, 40))
def test_what_outstanding_tickets_name_is_needed(schedule: FrozenSchedule, after: int) -> None:
    version = schedule.first + after
    allowed = range(max(schedule.first, version - schedule.staleness), version + 1)
    assert schedule.needed(version) == sorted({schedule.version_at(each) for each in allowed})
    assert len(schedule.needed(version)) <= schedule.most_needed
    # What is needed and not there yet is the version itself.
    if after:
        assert set(schedule.needed(version)) <= {*schedule.needed(version - 1), version}


def test_nothing_is_needed_before_training_begins() -> None:
    assert FrozenSchedule(first=4, every=2, staleness=0).needed(3) == []


def test_one_seat_of_an_episode_learns(tmp_path: Path) -> None:
    config = run_of(tmp_path, FROZEN)
    assert config.frozen == FrozenSchedule(first=3, every=4, staleness=0)
    assert (
        config.batch_trajectories == 4 * 4 and config.warmup_trajectories == 2 * config.warmup.batch_episodes
    )
    # A context of each episode at the worker's engines, and one at the opponent's.
    assert capacity(config) == config.rollout.engines * config.rollout.max_sequences
    [share] = rules_of(config).mixture
    assert (share.seats, share.frozen, share.trained_seats) == (2, True, 1)


def test_a_run_that_trains_nothing_has_no_opponent(tmp_path: Path) -> None:
    assert run_of(tmp_path, FROZEN.replace("batch_groups", "steps = 0\nbatch_groups")).frozen is None
    assert (
        run_of(tmp_path, FROZEN.replace('"frozen"\nfrozen_every', '"current"\nfrozen_every')).frozen is None
    )


def test_the_opponents_engines_take_memory_too(tmp_path: Path) -> None:
    current = run_of(tmp_path, FROZEN.replace('opponent = "frozen"\n', ""))
    frozen = run_of(tmp_path, FROZEN)
    engines = frozen.rollout.workers * frozen.rollout.engines * frozen.rollout.tp
    assert ranks_here(frozen) == ranks_here(current) + engines


REFUSED = {
    "no other seat": (
        FROZEN.replace("seats = 2\n", ""),
        r'opponent = "frozen" of environment a/b with seats = 1: there is no other seat',
    ),
    "seats that learn unequally often": (
        FROZEN.replace("group_size = 4", "group_size = 5"),
        r"group_size = 5 of environment a/b does not let each of 2 seats learn",
    ),
    "a seat without a baseline": (
        FROZEN.replace("group_size = 4", "group_size = 2"),
        r"group_size = 2 of environment a/b does not let each of 2 seats learn",
    ),
    "an engine that does not share": (
        FROZEN + '[rollout]\nengine = "vllm"\n',
        r'opponent = "frozen" with rollout\.engine = "vllm"',
    ),
    "two frozen versions at a time": (
        MIXED + 'seats = 2\nopponent = "frozen"\nfrozen_every = 3\n',
        r"environments have frozen_every = 3 and 10",
    ),
    "fewer trajectories than mini-batches": (
        FROZEN.replace("minibatches = 1", "minibatches = 17"),
        r"scheduler\.group_size x batch_groups = 16 sequences cannot feed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_played_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as refused:
        cross_check(run_of(tmp_path, text))
    assert "\n" not in str(refused.value) and refused.value.remedy
