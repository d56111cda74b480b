"""Divisions and layouts decided together: what fits, what is quickest, whether a stage's policy agrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallelism import Parallelism
from services.scheduler.profile.rows import parse
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.decision import LayoutCandidate, Workload
from services.scheduler.selector.division_layouts import DivisionLayouts, StageOptions
from services.scheduler.selector.earl_policy import EarlPolicy
from services.scheduler.selector.split_policy import SplitPolicy, SplitVerdict, SplitWork

POOL = 8
COUNTS = range(1, POOL)
# By tp, tokens of all sequences that a replica holds, and what its devices do.
HELD = {1: 600.0, 2: 2400.0, 4: 7200.0}
RATES = {1: 100.0, 2: 80.0, 4: 60.0}
HEAD = "stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"
ROWS = [
    f"rollout,1,{tp},1,1,{tokens},{load},{rate}"
    for tp, rate in RATES.items()
    for tokens in (10, 1000)
    for load in (1, 100)
]


def table() -> LimitedTable:
    rows = parse("\n".join([HEAD, *ROWS]), "rows")
    return LimitedTable(
        rows,
        "rollout",
        fits=lambda layout, tokens, load: tokens * load / layout.dp <= HELD[layout.tp],
        legal=lambda devices: {(tp, 1, 1) for tp in HELD if devices % tp == 0},
    )


def weighed(running: Parallelism, *loads: tuple[float, float], slots: float = math.inf) -> StageOptions:
    policy = EarlPolicy(table(), 1.0, running)
    for tokens, sequences in loads:
        policy.observe(Workload(tokens, tokens, tokens, sequences))
    options = StageOptions.of(running, policy.weigh_each(COUNTS, slots))
    assert options is not None
    return options


def options(running: Parallelism, **layouts: tuple[float, bool]) -> StageOptions:
    """A stage of which these layouts are known, each with its rate and whether it fits."""
    by_devices: dict[int, list[LayoutCandidate]] = {}
    for name, (rate, fits) in layouts.items():
        layout = Parallelism.parse(name.replace("_", ","))
        candidate = LayoutCandidate(layout, rate, None, fits, 1 / rate / layout.devices)
        by_devices.setdefault(layout.devices, []).append(candidate)
    known = StageOptions.of(running, by_devices)
    assert known is not None
    return known


def alike(running: Parallelism, fits: Mapping[int, bool] | None = None) -> StageOptions:
    """A stage whose devices do equally much among any number."""
    return options(running, **{f"dp{n}": (100.0, (fits or {}).get(n, True)) for n in COUNTS})


def decided(layouts: DivisionLayouts, work: SplitWork, cost_s: float = 0.0) -> SplitVerdict:
    return SplitPolicy([]).decide(1, layouts.here, work, cost_s, layouts)


def test_a_stage_has_the_quickest_layout_that_fits_on_each_number_of_devices():
    known = weighed(Parallelism(6), (60.0, 32.0))
    # 75 tokens x 40 sequences are 3,000: tp1 holds them on 5 devices, tp2 on 4, nothing on 1, 2 or 3.
    layouts = {count: option.layout for count, option in known.options.items() if option.fits}
    assert layouts == {4: Parallelism(2, 2), 5: Parallelism(5), 6: Parallelism(6), 7: Parallelism(7)}
    assert known.options[4].relative == pytest.approx(100 / 80)
    # The layout in use stays, though another were quicker; its devices fit what is expected.
    kept = weighed(Parallelism(2, 2), (20.0, 8.0)).options
    assert kept[4].layout == Parallelism(2, 2) and kept[4].relative == 1.0 and kept[4].fits
    assert kept[5].layout == Parallelism(5) and kept[5].relative == pytest.approx(80 / 100)


def test_sequences_that_wait_take_no_memory():
    assert not weighed(Parallelism(6), (60.0, 32.0)).options[2].fits
    assert weighed(Parallelism(6), (60.0, 32.0), slots=6.0).options[2].fits


@given(
    st.lists(st.tuples(st.floats(1.0, 400.0), st.floats(1.0, 60.0)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
)
def test_the_stages_own_policy_keeps_the_layout_that_a_move_brought(
    loads: list[tuple[float, float]], tp: int
):
    policy = EarlPolicy(table(), 0.0, Parallelism(4 // tp, tp))
    for tokens, sequences in loads:
        policy.observe(Workload(tokens, tokens, tokens, sequences))
    known = StageOptions.of(Parallelism(4 // tp, tp), policy.weigh_each(COUNTS, math.inf))
    assert known is not None
    for count, option in known.options.items():
        if count == 4 or not option.fits:
            continue
        policy.settle(option.layout)
        for step in range(3):
            decision = policy.decide(step, count)
            assert decision.after == option.layout and not decision.urgent


def test_a_profile_that_does_not_know_the_layout_in_use_says_nothing():
    policy = EarlPolicy(table(), 1.0, Parallelism(2, cp=2))
    assert policy.weigh_each(COUNTS, math.inf) == {}
    policy.observe(Workload(50.0, 50.0, 50.0, 8.0))
    assert StageOptions.of(Parallelism(2, cp=2), policy.weigh_each(COUNTS, math.inf)) is None
    kept = StageOptions.kept(Parallelism(2, 2), [2, 4, 6])
    assert {count: option.layout for count, option in kept.options.items()} == {
        count: Parallelism(count // 2, 2) for count in (2, 4, 6)
    }


def test_a_division_is_judged_by_the_best_layouts_of_its_devices():
    rollout = options(
        Parallelism(4), dp1=(100.0, True), tp2=(400.0, True), dp2=(100.0, True), dp3=(100.0, True),
        dp4=(100.0, True), dp5=(100.0, True),
    )  # fmt: skip
    layouts = DivisionLayouts((rollout, alike(Parallelism(4))), POOL)
    verdict = decided(layouts, SplitWork(40.0, 60.0))
    # In the replicas of now (3, 5) would be best, with 13.3 s.
    assert verdict.best == (2, 6) and verdict.candidates[2, 6] == pytest.approx(10.0)
    replicas = {stage: layout.replica for stage, layout in layouts.by_stage((2, 6)).items()}
    assert replicas == {"rollout": (2, 1, 1), "trainer": (1, 1, 1)}
    assert verdict.moves and verdict.sentence.startswith("goes to rollout 2 as tp2, trainer 6: ")


def test_no_move_takes_the_devices_that_the_longest_sequence_needs():
    rollout = alike(Parallelism(4), dict.fromkeys((1, 2, 3), False))
    verdict = decided(DivisionLayouts((rollout, alike(Parallelism(4))), POOL), SplitWork(1.0, 60.0))
    assert verdict.best == (4, 4) and (3, 5) not in verdict.candidates


def test_what_no_longer_fits_its_devices_gets_others_at_once():
    rollout = alike(Parallelism(4), dict.fromkeys((1, 2, 3, 4, 5), False))
    layouts = DivisionLayouts((rollout, alike(Parallelism(4))), POOL)
    verdict = decided(layouts, SplitWork(1.0, 60.0), cost_s=1e6)
    assert verdict.urgent and verdict.moves and verdict.after == verdict.best == (6, 2)
    assert verdict.sentence == (
        "goes to rollout 6, trainer 2 at once: in no layout of rollout 4, trainer 4 fits what is expected"
    )
    # Another layout of the same devices fits: the stage's own policy goes there, and no device moves for it.
    other = options(Parallelism(4), dp4=(100.0, False), dp2_tp2=(90.0, True), dp5=(100.0, True))
    assert not decided(
        DivisionLayouts((other, alike(Parallelism(4))), POOL), SplitWork(40.0, 40.0), 9.0
    ).moves


def test_where_nothing_holds_it_a_stage_does_not_get_fewer_devices():
    nowhere = alike(Parallelism(4), dict.fromkeys(COUNTS, False))
    layouts = DivisionLayouts((nowhere, alike(Parallelism(4))), POOL)
    assert layouts.divisions() == [(4, 4), (5, 3), (6, 2), (7, 1)]
    verdict = decided(layouts, SplitWork(1.0, 60.0))
    assert verdict.best == (4, 4) and not verdict.urgent
    assert decided(layouts, SplitWork(60.0, 1.0)).best == (7, 1)


def test_a_stage_without_a_profile_keeps_its_replicas_beside_others_that_have_one():
    kept = StageOptions.kept(Parallelism(2, cp=2), [2, 4, 6])
    layouts = DivisionLayouts((alike(Parallelism(4)), kept), POOL)
    assert layouts.divisions() == [(2, 6), (4, 4), (6, 2)]
    assert layouts.layouts((2, 6)) == (Parallelism(2), Parallelism(3, cp=2))


def test_work_that_was_measured_in_another_layout_is_scaled_to_the_one_in_use():
    rates = {"dp4": (100.0, True), "tp2": (400.0, True), "dp2": (100.0, True)}
    before = DivisionLayouts((options(Parallelism(4), **rates), alike(Parallelism(4))), POOL)
    after = DivisionLayouts((options(Parallelism(1, 2), **rates), alike(Parallelism(6))), POOL)
    policy = SplitPolicy([])
    for step in range(1, 5):
        policy.decide(step, (4, 4), SplitWork(40.0, 60.0), 1e9, before)
    policy.begin()
    verdict = policy.decide(6, (2, 6), SplitWork(10.0, 60.0), 1e9, after)
    assert verdict.work == pytest.approx((10.0, 60.0, 0.0)), "40 device-seconds in tp1 are 10 in tp2"


def test_devices_that_are_idle_are_taken_with_a_layout_too():
    rollout = options(Parallelism(2), dp2=(100.0, True), dp2_tp2=(100.0, True))
    layouts = DivisionLayouts((rollout, alike(Parallelism(4))), POOL)
    verdict = decided(layouts, SplitWork(40.0, 40.0))
    assert verdict.here == (2, 4) and verdict.best == (4, 4)
    assert layouts.layouts(verdict.after)[0] == Parallelism(2, 2)
    assert replace(verdict, layouts=None).text((4, 4)) == "rollout 4, trainer 4"
