"""The versions that tickets of a deterministic run are pinned to, and what a run file makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.check import check_deterministic
from earl.config.frozen_schedule import FrozenSchedule, KeptVersions, PinnedSchedule
from earl.config.run import RunConfig
from earl.errors import ConfigError
from services.rollout.worker.ticket_codec import decode_ticket
from services.scheduler.api.codec import TicketEncoder
from services.scheduler.state.tickets import Purpose, Ticket

SCHEDULES = st.one_of(
    st.builds(FrozenSchedule, first=st.integers(1, 5), every=st.integers(1, 5), staleness=st.integers(0, 4)),
    st.builds(PinnedSchedule, first=st.integers(1, 5), staleness=st.integers(0, 4)),
)


def run(
    *, deterministic: bool | str = True, staleness: int = 2, steps: int = 9, **sections: Any
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "pinned",
            "deterministic": deterministic,
            "environment": {"name": "e", "seats": 2},
            "warmup": {"batches": 2},
            "scheduler": {"staleness": staleness, "steps": steps, "selector": "observe"},
            **sections,
        }
    )


@pytest.mark.parametrize("staleness", [1, 2, 8])
def test_tickets_name_the_last_versions_and_in_training_none_of_the_warm_up(staleness: int) -> None:
    pinned = run(staleness=staleness).pinned
    assert pinned is not None and pinned.most_needed == staleness + 1
    assert [pinned.needed(version) for version in (1, 2, 3, 4)] == [[1], [2], [3], [3, 4]]
    assert pinned.needed(30) == list(range(30 - staleness, 31))


@pytest.mark.parametrize(
    "config",
    [run(deterministic=False), run(staleness=0), run(steps=0)],
    ids=["free", "alternating", "judged"],
)
def test_other_runs_pin_nothing(config: RunConfig) -> None:
    assert config.pinned is None and config.kept is None


@given(st.lists(SCHEDULES, min_size=1, max_size=3), st.integers(1, 40))
def test_what_any_schedule_needs_is_kept_and_no_more(
    schedules: list[FrozenSchedule | PinnedSchedule], version: int
) -> None:
    kept = KeptVersions(schedules)
    assert kept.needed(version) == sorted(set().union(*(each.needed(version) for each in schedules)))
    assert len(kept.needed(version)) <= kept.most_needed


def test_a_frozen_opponent_is_kept_beside_them() -> None:
    environment = {"name": "e", "seats": 2, "opponent": "frozen", "frozen_every": 4}
    config = run(environment=environment)
    assert config.frozen is not None and config.kept is not None
    assert config.kept.needed(10) == [7, 8, 9, 10]


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("deterministic", [True, False])
def test_every_ticket_that_the_policy_samples_is_pinned(purpose: Purpose, deterministic: bool) -> None:
    ticket = Ticket(id=1, group=1, purpose=purpose, env_seed=1, sample_seed=2, min_version=4, temperature=1.0)
    sent = TicketEncoder(run(deterministic=deterministic), {}).encode(ticket)
    pinned = 4 if deterministic and purpose is not Purpose.WARMUP else 0
    assert decode_ticket(sent).pinned_version == pinned


def test_kernels_alone_plan_nothing() -> None:
    config = run(deterministic="kernels", scheduler={"staleness": 2, "train_limit_s": 5.0})
    assert (config.exact, config.exact_kernels, config.pinned) == (False, True, None)
    check_deterministic(config)
    foreign = config.model_copy(update={"rollout": config.rollout.model_copy(update={"engine": "vllm"})})
    with pytest.raises(ConfigError, match=r'deterministic = "kernels" with rollout.engine = "vllm"'):
        check_deterministic(foreign)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_engines_that_sleep_are_refused_with_staleness(staleness: int) -> None:
    config = run(staleness=staleness)
    check_deterministic(config)
    alternating = config.model_copy(update={"stack": config.stack.model_copy(update={"share": "alternate"})})
    if not staleness:
        check_deterministic(alternating)
        return
    with pytest.raises(ConfigError, match=f"scheduler.staleness = {staleness} and stack.share") as refused:
        check_deterministic(alternating)
    assert "scheduler.staleness = 0" in refused.value.remedy
