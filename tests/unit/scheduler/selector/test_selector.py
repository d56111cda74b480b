"""EARL's policy and its rivals: what fits, and when a switch pays."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.selector import generate
from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import headroom, replay
from services.scheduler.selector.decision import Decision, Workload
from services.scheduler.selector.earl_policy import EarlPolicy
from services.scheduler.selector.policies import NAMES, policy_of
from services.scheduler.selector.switch_threshold import ERROR
from services.scheduler.selector.trace import TraceStep

SEEDS = st.integers(0, 10**6)
COSTS = (0.0, 0.003, 0.1, 1.0, 3.0, 20.0, 300.0, 1e7)
SHORT = 30
GUARDED = ("earl", "earl-paper-guarded", "drift30-guarded", "greedy")
quick = settings(max_examples=8)


def drawn_table(draw: random.Random) -> ProfileTable:
    """Any numbers: no physics, ragged, with and without memory, holes and what does not fit."""
    rows = []
    for tp in draw.sample((1, 2, 4, 8), draw.randint(1, 4)):
        for _ in range(draw.randint(1, 6)):
            rate = draw.uniform(10, 100) if draw.random() < 0.8 else None
            fraction = draw.uniform(0.1, 1.1) if draw.random() < 0.4 else None
            point = draw.choice([256, 1024, 4096, 16384]), draw.choice([1, 8, 64])
            rows.append(ProfileRow("rollout", Parallelism(8 // tp, tp), *point, rate, fraction, rate is None))
        rows.append(ProfileRow("rollout", Parallelism(8 // tp, tp), 128, 1, draw.uniform(10, 100)))
    return ProfileTable(rows, "rollout")


def drawn_steps(draw: random.Random, devices: tuple[int, ...] = (8,)) -> list[TraceStep]:
    """Lengths and loads that wander, at times by far."""
    longest, load, steps = draw.uniform(100, 20_000), draw.uniform(1, 64), []
    for at in range(SHORT):
        longest = min(max(longest * draw.lognormvariate(0, draw.choice([0.05, 0.5])), 10), 1e5)
        load = min(max(load * draw.lognormvariate(0, draw.choice([0.0, 0.3])), 1), 500)
        mean = longest / draw.uniform(1.0, 3.0)
        steps.append(TraceStep(at, Workload(mean, mean, longest, load), draw.choice(devices)))
    return steps


def generated(seed: int) -> tuple[ProfileTable, list[TraceStep], float]:
    """A table and a trace of the benchmark's, and a switch's cost that matters."""
    draw = random.Random(seed)
    table = generate.table(draw)
    steps = generate.trace(draw.choice(generate.KINDS), table, draw)[:SHORT]
    return table, steps, replay.cost(table, 8, steps[0].workload).best_s * 10 ** draw.uniform(-2, 1)


def arbitrary(seed: int, devices: tuple[int, ...] = (8,)) -> tuple[ProfileTable, list[TraceStep], float]:
    draw = random.Random(seed)
    return drawn_table(draw), drawn_steps(draw, devices), 10 ** draw.uniform(-2, 3)


def decisions(
    table: ProfileTable, steps: list[TraceStep], cost_s: float, name: str = "earl"
) -> list[Decision]:
    policy, made = policy_of(name, table, cost_s), []
    for step in steps:
        made.append(policy.decide(step.step, step.devices))
        policy.observe(step.workload)
    return made


both = pytest.mark.parametrize("drawn", [generated, arbitrary])
swapping = (8, 16, 8, 24)


# --- what a decision promises ---------------------------------------------------------------


@both
@quick
@given(seed=SEEDS)
def test_what_does_not_fit_is_not_chosen_if_something_does(drawn, seed):
    for decision in decisions(*drawn(seed))[1:]:
        chosen = next(one for one in decision.candidates if one.parallelism == decision.after)
        assert chosen.fits or not any(one.fits for one in decision.candidates)
        assert (
            chosen.fits
            or decision.after
            == max(
                decision.candidates,
                key=lambda one: (
                    -(math.inf if one.memory_fraction is None else one.memory_fraction),
                    one.parallelism.replica,
                ),
            ).parallelism
        )


@both
@quick
@given(seed=SEEDS)
def test_the_same_again_decides_the_same(drawn, seed):
    assert decisions(*drawn(seed)) == decisions(*drawn(seed))


@both
@pytest.mark.parametrize("name", NAMES[:-1])
@settings(max_examples=4)
@given(seed=SEEDS, at=st.integers(0, SHORT - 1))
def test_what_comes_later_changes_nothing(drawn, name, seed, at):
    table, steps, cost_s = drawn(seed)
    other = [*steps[:at], *(TraceStep(one.step, Workload(9, 9, 9, 9), 8) for one in steps[at:])]
    assert decisions(table, steps, cost_s, name)[: at + 1] == decisions(table, other, cost_s, name)[: at + 1]


@settings(max_examples=20)
@given(SEEDS)
def test_no_step_runs_out_of_memory_while_growth_is_bounded(seed):
    """Lengths and load grow by a quarter at once, and tp 8 has room for that; no other need have."""
    draw = random.Random(seed)
    physics = generate.Physics.drawn(draw)
    rows = []
    with_memory = draw.random() < 0.5
    for tp in (1, 2, 4, 8):
        for context in (1024, 2048, 4096, 8192, 16384):
            for load in (16, 32, 64, 128):
                fraction = physics.memory(tp, context, load)
                rate = physics.rate(tp, context, load) if fraction <= 1 or tp == 8 else None
                shown = min(fraction, 0.99) if tp == 8 else fraction
                rows.append(
                    ProfileRow(
                        "rollout",
                        Parallelism(8 // tp, tp),
                        context,
                        load,
                        rate,
                        shown if with_memory else None,
                        rate is None,
                    )
                )
    table = ProfileTable(rows, "rollout")
    longest, load, steps = draw.uniform(500, 2000), draw.uniform(10, 30), []
    for at in range(SHORT):
        steps.append(TraceStep(at, Workload(longest * draw.uniform(0.3, 1), longest, longest, load), 8))
        longest = min(longest * draw.choice([0.5, 0.9, 1.0, 1.1, 1.25]), 16384 / 1.25**2)
        load = min(load * draw.choice([0.8, 1.05, 1.25]), 128 / 1.25**2)
    assert all(
        table.predict(Parallelism(1, 8), one.workload.max_tokens, one.workload.concurrency).fits
        for one in steps
    )
    policy = policy_of(draw.choice(GUARDED), table, draw.choice(COSTS))
    taken = list(replay.run(policy, steps, replay.costs_of(table, steps), 1.0))
    assert not any(one.oom for one in taken)


def test_around_a_boundary_it_switches_half_as_often_as_the_paper_at_most():
    made = dict.fromkeys(("earl", "earl-paper"), 0)
    for seed in range(8):
        draw = random.Random(f"oscillation {seed}")
        table = generate.table(draw)
        steps = generate.trace("oscillation", table, draw)[: 2 * SHORT]
        cost_s = 0.1 * replay.cost(table, 8, steps[0].workload).best_s
        for name in made:
            made[name] += sum(one.switched for one in decisions(table, steps, cost_s, name))
    assert made["earl-paper"] >= 20 and made["earl"] <= made["earl-paper"] / 2


# --- the rule, by hand ----------------------------------------------------------------------


def flat(tp1: float, tp2: float, ends: float | None = None) -> ProfileTable:
    """Two layouts of 2 devices, each as quick everywhere; tp 1 does not fit from `ends` tokens on."""
    rows = [
        ProfileRow("rollout", Parallelism(2), 100, 10, tp1),
        ProfileRow("rollout", Parallelism(1, 2), 100, 10, tp2),
    ]
    if ends is not None:
        rows.append(ProfileRow("rollout", Parallelism(2), ends, 10, None, oom=True))
    return ProfileTable(rows, "rollout")


def settled(
    table: ProfileTable, cost_s: float, at: Parallelism, longest: float = 100, steps: int = 12
) -> list[Decision]:
    policy = EarlPolicy(table, cost_s, start=at)
    made = []
    for step in range(steps):
        made.append(policy.decide(step, 2))
        policy.observe(Workload(100, 100, longest, 10))
    return made


def test_a_switch_waits_until_it_would_have_paid():
    """10 x 100 tokens: 5 s with tp 1 at 100 tokens a second and device, 4 s with tp 2 at 125.

    A step in tp 1 loses 1 s; what is lost must exceed 4 s and 10 % of 5 s: after 5 steps.
    """
    made = settled(flat(100, 125), 4.0, Parallelism(2))
    assert [decision.step for decision in made if decision.switched] == [5]
    waits, goes = made[2], made[5]
    assert goes.after == Parallelism(1, 2) and not goes.urgent and goes.horizon_steps == 5
    assert goes.saving_s == pytest.approx(1.0) and goes.cost_s == 4.0
    assert goes.reason == (
        "goes to tp2: 1 s a step quicker, 5 s in 5 steps, more than the 4.5 s that a switch must save"
    )
    assert waits.reason == (
        "stays with dp2: tp2 would be 1 s a step quicker, 2 s in 2 steps, less than the 4.5 s that a switch "
        "must save"
    )
    assert made[6].reason == "stays with tp2: nothing that fits is quicker"
    assert made[0].reason.startswith("stays") and not made[0].candidates


def crossing() -> ProfileTable:
    """dp 2 is the better at 100 tokens, by 1.67 s a step, tp 2 at 1000, by 10 s."""
    rates = {Parallelism(2): (150, 100), Parallelism(1, 2): (120, 125)}
    return ProfileTable(
        [
            ProfileRow("rollout", layout, context, 10, rate)
            for layout, each in rates.items()
            for context, rate in zip((100, 1000), each, strict=True)
        ],
        "rollout",
    )


def test_what_comes_and_goes_pays_for_nothing():
    """An order that turns around begins to count anew: 10 s are lost now and then, never 25 s in a row."""
    policy, lengths = EarlPolicy(crossing(), 15.0, start=Parallelism(2)), [1000.0, 1000.0, 100.0] * 10
    made = []
    for step, length in enumerate(lengths):
        made.append(policy.decide(step, 2))
        policy.observe(Workload(length, length, length, 10))
    assert not any(decision.switched for decision in made)
    for step in range(len(lengths), len(lengths) + 4):
        made.append(policy.decide(step, 2))
        policy.observe(Workload(1000, 1000, 1000, 10))
    assert [decision.horizon_steps for decision in made[-4:]] == [0, 1, 2, 3] and made[-1].switched
    # 50 s a step with dp 2: 30 s lost in a row, above 15 s and a tenth of a step.
    assert f"30 s in 3 steps, more than the {15 + ERROR * 50:g} s" in made[-1].reason


def test_noise_pays_for_nothing():
    assert not any(one.switched for one in settled(flat(100, 100.1), 0.0, Parallelism(2)))
    assert not any(one.switched for one in settled(flat(100, 125), 1e6, Parallelism(2)))


def test_what_is_about_to_run_out_of_memory_is_left_at_once():
    made = settled(flat(100, 50, ends=1000), 1e6, Parallelism(2), longest=801)
    assert [one.step for one in made if one.switched] == [1]
    assert made[1].urgent and made[1].reason == (
        "goes to tp2 at once: out of memory at 1000 tokens x 10 sequences, by the profile; it must hold "
        "801 x 1.25 = 1,001 tokens, 10 x 1.25 = 12.5 sequences"
    )
    assert made[1].expected == Workload(100, 100, 801 * 1.25, 12.5)
    assert not any(
        one.switched for one in settled(flat(100, 50, ends=1000), 1e6, Parallelism(2), longest=799)
    )


def test_where_nothing_fits_it_goes_where_most_room_is():
    rows = [
        ProfileRow("rollout", Parallelism(2), 100, 10, 100.0, 1.5),
        ProfileRow("rollout", Parallelism(1, 2), 100, 10, 50.0, 1.1),
    ]
    made = settled(ProfileTable(rows, "rollout"), 1e6, Parallelism(2), longest=200)
    assert [one.step for one in made if one.switched] == [1] and made[1].urgent
    assert made[1].reason == "goes to tp2: nothing fits what is expected, and it has most free memory"
    assert made[2].reason == "stays with tp2: nothing fits what is expected, and it has most free memory"


def test_what_has_no_throughput_is_no_refuge():
    rows = [
        ProfileRow("rollout", Parallelism(2), 100, 10, 100.0, 1.5),
        ProfileRow("rollout", Parallelism(1, 2), 100, 10, None, 0.2),
    ]
    assert {str(one.after) for one in settled(ProfileTable(rows, "rollout"), 0.0, Parallelism(2))} == {"dp2"}


def test_devices_that_change_are_no_switch_unless_replicas_do():
    policy = EarlPolicy(flat(100, 90), 1.0, start=Parallelism(2))
    assert not policy.decide(0, 2).switched
    policy.observe(Workload(100, 100, 100, 10))
    doubled = policy.decide(1, 4)
    assert doubled.after == Parallelism(4) and not doubled.switched
    only = EarlPolicy(flat(100, 90), 1.0, start=Parallelism(1, 2))
    only.decide(0, 2)
    only.observe(Workload(100, 100, 100, 10))
    forced = only.decide(1, 3)
    assert forced.after == Parallelism(3) and forced.switched and forced.urgent
    assert "cannot be split that way any more" in forced.reason
    with pytest.raises(ConfigError, match="divides 3 devices"):
        EarlPolicy(ProfileTable(flat(1, 1).rows[1:], "rollout"), 1.0).decide(0, 3)


@pytest.mark.parametrize("cost_s", [-1.0, math.nan, math.inf])
def test_a_cost_that_is_none_is_refused(cost_s):
    with pytest.raises(ConfigError, match=rf"cannot cost {cost_s} s; give seconds, 0 or more"):
        EarlPolicy(flat(1, 1), cost_s)


# --- its parts ------------------------------------------------------------------------------


def grown(values: list[float]) -> headroom.Growth:
    growth = headroom.Growth()
    for value in values:
        growth.add(value)
    return growth


@quick
@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=10))
def test_headroom_is_a_quarter_or_what_was_seen(values):
    factor = grown(values).factor
    assert factor >= headroom.GROWTH
    assert factor * values[-1] <= headroom.GROWTH * max(values) * (1 + 1e-9)


def test_headroom_follows_a_jump_for_good_but_not_past_the_largest_yet():
    assert grown([100]).factor == 1.25
    assert grown([100, 101]).factor == 1.25
    assert grown([100, 300, 100]).factor == 3.0
    assert grown([100, 300, *[100] * 1000]).factor == 3.0
    assert grown([100, 300, 250]).factor == 1.5


def past(*workloads: Workload) -> headroom.PastWorkloads:
    steps = headroom.PastWorkloads()
    for workload in workloads:
        steps.add(workload)
    return steps


def box(longest: float, most: float):
    return lambda corner: corner[0] <= longest and corner[1] <= most


def test_corners_are_asked_for_as_far_out_as_something_fits():
    workloads = past(Workload(50, 50, 100, 10), Workload(50, 50, 100, 8))
    far = (125.0, 10.0)
    assert headroom.corners(workloads, [box(1e9, 1e9)]) == (far, (100, 10.0), (125.0, 8))
    for corner in headroom.corners(workloads, [box(50, 50)]):
        assert corner == (100, 8)
    both, more, longer = headroom.corners(workloads, [box(110, 1e9), box(100, 1e9)])
    assert 105 < both[0] <= 110 and more == (100, 10.0) and longer[0] <= 110


def test_a_load_that_never_changed_grows_alone():
    step = Workload(50, 50, 100, 8)
    assert headroom.corners(past(step, step), [box(1e9, 1e9)]) == ((125.0, 8), (100, 10.0))
    assert len(headroom.corners(past(step), [box(1e9, 1e9)])) == 3


def test_nothing_is_expected_past_the_bound_and_no_shrinking_either():
    step = Workload(50, 50, 100, 8)
    assert headroom.corners(past(step, step), [box(1e9, 1e9)], (110, 8)) == ((110.0, 8), (100, 8))
    assert headroom.corners(past(step, step), [box(1e9, 1e9)], (90, 4)) == ((100.0, 8), (100, 8))


def test_the_assumed_headroom_is_said_with_what_made_it_less():
    step = Workload(50, 50, 100, 8)
    steps = past(step, step)
    for bound, fits, words in (
        ((1e9, 1e9), box(1e9, 1e9), "100 x 1.25 = 125 tokens, 8 x 1.25 = 10 sequences"),
        ((110, 8), box(1e9, 1e9), "100 x 1.1 = 110 tokens, the bound, 8 x 1 = 8 sequences, the bound"),
        (
            (1e9, 1e9),
            box(100, 1e9),
            "100 x 1 = 100 tokens, the most that any layout holds, 8 x 1.25 = 10 sequences",
        ),
    ):
        assert headroom.described(steps, headroom.corners(steps, [fits], bound), bound) == words


def test_a_layout_that_holds_the_bound_is_kept_where_a_quarter_more_would_not_fit():
    ends = flat(100, 50, ends=1000)
    bounded = ProfileTable(ends.rows, "rollout", bound=(900, math.inf))
    assert any(decision.urgent for decision in settled(ends, 1.0, Parallelism(2), longest=850))
    assert not any(decision.switched for decision in settled(bounded, 1.0, Parallelism(2), longest=850))


@pytest.mark.parametrize(("bound", "layout"), [(90, Parallelism(2)), (math.inf, Parallelism(1, 2))])
def test_the_safe_layout_is_the_quickest_that_holds_the_bound(bound, layout):
    rows = [
        ProfileRow("rollout", parallelism, context, 10, rate, context * used)
        for parallelism, rate, used in ((Parallelism(2), 100.0, 0.011), (Parallelism(1, 2), 50.0, 0.005))
        for context in (50, 100)
    ]
    table = ProfileTable(rows, "rollout", bound=(bound, 10))
    for name in ("safe-static", "earl", "greedy"):
        assert policy_of(name, table, 1.0).decide(0, 2).after == layout
    policy = policy_of("safe-static", table, 1.0)
    for step, length in enumerate((10, 80, 20)):
        assert policy.decide(step, 2).after == layout
        policy.observe(Workload(length, length, length, 10))
    assert policy.decide(3, 4).after == layout.over(4)


def test_the_beginning_is_safe_for_all_of_the_profile_or_fits_most_of_it():
    rows = [
        ProfileRow("rollout", layout, context, 10, rate, context * used)
        for layout, rate, used in ((Parallelism(2), 100.0, 0.009), (Parallelism(1, 2), 50.0, 0.005))
        for context in (50, 100)
    ]
    assert EarlPolicy(ProfileTable(rows, "rollout"), 1.0).decide(0, 2).after == Parallelism(1, 2)
    assert EarlPolicy(flat(100, 50), 1.0).decide(0, 2).after == Parallelism(2)
    begins = EarlPolicy(flat(100, 50, ends=90), 1.0).decide(0, 2)
    assert begins.after == Parallelism(1, 2) and begins.before is None and not begins.switched


def test_of_a_long_profile_all_loads_are_looked_at_to_begin_with():
    """tp 1 fits only the lowest load, tp 2 all but the longest contexts: most of the profile."""
    rows = []
    for at in range(40):
        for load in (1, 8, 64):
            rows.append(
                ProfileRow(
                    "rollout", Parallelism(2), 100 + at, load, None if load > 1 else 100.0, None, load > 1
                )
            )
            rows.append(
                ProfileRow(
                    "rollout", Parallelism(1, 2), 100 + at, load, None if at > 24 else 50.0, None, at > 24
                )
            )
    assert EarlPolicy(ProfileTable(rows, "rollout"), 1.0).decide(0, 2).after == Parallelism(1, 2)


def test_a_switch_that_failed_is_told():
    policy = EarlPolicy(flat(100, 125), 4.0, start=Parallelism(2))
    for step in range(6):
        last = policy.decide(step, 2)
        policy.observe(Workload(100, 100, 100, 10))
    assert last.switched
    policy.settle(Parallelism(2))
    again = policy.decide(6, 2)
    assert again.before == Parallelism(2) == again.after


# --- names ----------------------------------------------------------------------------------


def test_policies_by_name():
    table = flat(100, 125)
    assert [policy_of(name, table, 1.0).name for name in NAMES[:-1]] == list(NAMES[:-1])
    assert policy_of("static:dp=4,tp=2", table, 1.0).decide(0, 2).after == Parallelism(1, 2)
    for name in ("best", "static", "static:", "EARL"):
        with pytest.raises(ConfigError, match=f"no policy '{name}'; it is one of {', '.join(NAMES)}"):
            policy_of(name, table, 1.0)
