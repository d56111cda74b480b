"""switch.plan: the layout of every version, and the plans that are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.check import check_batches, check_deterministic
from earl.config.layout_plan import LayoutPlan
from earl.config.load import set_override
from earl.config.plan_check import check_plan
from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from earl.stack.rundir import to_toml

PLAN = ["3 rollout tp=2", "5 trainer tp=2,cp=1", "6 rollout dp=2"]


def run(plan: list[str] | None = None, **sections: Any) -> RunConfig:
    """Two devices for engines, two ranks; training begins with version 3 and has 8 steps."""
    given: dict[str, Any] = {
        "name": "planned",
        "deterministic": True,
        "environment": {"name": "e"},
        "model": {"scratch": {"heads": 4, "kv_heads": 2, "hidden_size": 64}},
        "rollout": {"engines": 2},
        "trainer": {"ranks": 2},
        "warmup": {"batches": 2},
        "scheduler": {"steps": 8, "staleness": 2, "selector": "static"},
        "switch": {"plan": PLAN if plan is None else plan},
    }
    for section, keys in sections.items():
        given[section] = given.get(section, {}) | keys if isinstance(keys, dict) else keys
    return RunConfig.model_validate(given)


def test_the_layout_follows_from_the_version() -> None:
    config = run()
    check_plan(config)
    check_deterministic(config)
    plan = config.layout_plan
    assert plan is not None
    # Step 3 begins with version 5.
    assert [str(plan.layout_at(ROLLOUT, version)) for version in range(1, 11)] == [
        "dp2", "dp2", "dp2", "dp2", "tp2", "tp2", "tp2", "dp2", "dp2", "dp2",
    ]  # fmt: skip
    assert [str(plan.layout_at(TRAINER, version)) for version in (1, 6, 7, 10)] == [
        "dp2", "dp2", "tp2", "tp2",
    ]  # fmt: skip
    assert "from step 3 on, and version 7 begins step 5" in plan.reason(ROLLOUT, 7)
    assert "before the first switch" in plan.reason(ROLLOUT, 4)


def test_a_plan_pins_versions_without_staleness_too_and_keeps_processes_ready() -> None:
    assert run(scheduler={"staleness": 0, "steps": 8, "selector": "static"}).pinned is not None
    assert run([], scheduler={"staleness": 0, "steps": 8, "selector": "static"}).pinned is None
    assert run().keeps_standby and not run(["5 trainer tp=2"]).keeps_standby
    assert not run(rollout={"engines": 2, "standby": False}).keeps_standby


def test_the_smallest_cp_of_the_plan_bounds_sequences() -> None:
    ranks = {"ranks": 2, "tp": 1, "cp": 2, "microbatch_tokens": 64}
    rollout = {"engines": 2, "max_context_tokens": 128}
    assert run([], trainer=ranks, rollout=rollout).longest_sequence == 128
    assert run(["2 trainer tp=2"], trainer=ranks, rollout=rollout).longest_sequence == 64


def test_every_replica_of_the_plan_is_fed() -> None:
    sections: dict[str, Any] = {
        "trainer": {"ranks": 2, "tp": 2, "minibatches": 4},
        "scheduler": {"steps": 8, "selector": "static", "group_size": 2, "batch_groups": 2},
        "warmup": {"batches": 0},
    }
    check_batches(run([], **sections))
    with pytest.raises(ConfigError, match="cannot feed 2 replicas"):
        check_batches(run(["2 trainer dp=2"], **sections))


@pytest.mark.parametrize(
    ("plan", "sections", "message", "remedy"),
    [
        (["tp=2 rollout"], {}, "'tp=2 rollout'", "5 rollout tp=2"),
        (["0 rollout tp=2"], {}, "first step of training is 1", "1 or more"),
        (["2 reference tp=2"], {}, "only rollout and trainer", "name one"),
        (["2 rollout xp=2"], {}, "is no parallelism", "tp=4"),
        (["2 rollout tp=4"], {}, "tp4 does not fit 2 devices", "dp x tp = 2"),
        (["2 rollout dp=2,tp=2"], {}, "does not fit 2 devices", "dp may be left out"),
        (["2 rollout cp=2"], {}, "does not fit 2 devices", "dp x tp = 2"),
        (["2 trainer pp=2"], {}, "does not fit 2 devices", "dp x tp x cp = 2"),
        (["9 rollout tp=2"], {}, "the run ends with step 8", "up to 8"),
        (["5 rollout tp=2", "4 trainer tp=2"], {}, "after a switch at step 5", "order"),
        (["5 rollout tp=2", "5 rollout dp=2"], {}, "two switches of rollout at step 5", "one of them"),
        (["5 rollout tp=1"], {}, "has dp2 already", "another layout"),
        (["5 rollout tp=2", "6 rollout tp=2"], {}, "has tp2 already", "another layout"),
        (
            ["5 rollout tp=3"],
            {"rollout": {"engines": 3}},
            "does not divide model.scratch's 4 heads",
            "tp of 1, 2",
        ),
        (["5 trainer cp=3"], {"trainer": {"ranks": 3}}, "its cp does not divide the 4 heads", "cp of 1, 2"),
        (["5 rollout tp=2"], {"deterministic": False}, "deterministic = false", "deterministic = true"),
        (["5 rollout tp=2"], {"deterministic": "kernels"}, 'deterministic = "kernels"', "earl parallelism"),
        (["5 rollout tp=2"], {"stack": {"share": "alternate"}}, "engines that sleep", "share other than"),
        (["5 rollout tp=2"], {"stack": {"pool_devices": 4}}, "pool_devices = 4", "remove"),
        (
            ["5 rollout tp=1"],
            {"rollout": {"engines": 1, "tp": 2, "kv_tokens": 100, "max_context_tokens": 100}},
            "holds 50 tokens of KV, and contexts may have 100",
            "kv_tokens to 200",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_refused(
    plan: list[str], sections: dict[str, Any], message: str, remedy: str
) -> None:
    with pytest.raises(EarlError) as refused:
        check_plan(run(plan, **sections))
    assert message in refused.value.message and remedy in refused.value.remedy


def test_the_command_line_takes_a_list_and_a_run_directory_keeps_it() -> None:
    table: dict[str, Any] = {"name": "r", "environment": {"name": "e"}}
    set_override(table, "switch.plan", '["2 rollout tp=2"]')
    config = RunConfig.model_validate(table)
    assert config.switch.plan == ("2 rollout tp=2",)
    assert '"2 rollout tp=2"' in to_toml(config.model_dump(mode="json"))
    # Commands to workers carry the section, and are told apart by it.
    assert hash(config.switch) != hash(RunConfig.model_validate({"name": "r"}).switch)


CHANGES = st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["dp=2", "tp=2"])), max_size=6)


@given(CHANGES, st.integers(1, 4), st.integers(1, 40))
def test_a_layout_lasts_until_the_next_switch(
    changes: list[tuple[int, str]], first: int, version: int
) -> None:
    changes.sort(key=lambda change: change[0])
    initial = {ROLLOUT: Parallelism(2), TRAINER: Parallelism(2)}
    plan = LayoutPlan.of([f"{step} rollout {degrees}" for step, degrees in changes], first, initial)
    due = [degrees for step, degrees in changes if first + step - 1 <= version]
    expected = Parallelism(1, 2) if due and due[-1] == "tp=2" else Parallelism(2)
    assert plan.layout_at(ROLLOUT, version) == expected
    assert plan.layout_at(TRAINER, version) == Parallelism(2)
