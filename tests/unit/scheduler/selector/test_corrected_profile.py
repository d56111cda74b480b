"""A profile that a run corrects: throughput follows what is observed, and what fits does not."""

from __future__ import annotations

import pytest

from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.stage_policies import Observed, Stages
from tests.support.selection import DP2, TP2, LongIsSharded

ROWS = [
    ProfileRow("rollout", layout, context, 16.0, rate, fraction)
    for layout, context, rate, fraction in (
        (DP2, 64.0, 400.0, 0.2),
        (DP2, 1024.0, 100.0, 1.3),
        (TP2, 64.0, 300.0, 0.1),
        (TP2, 1024.0, 200.0, 0.5),
    )
]


def test_without_observations_it_is_the_profile() -> None:
    table, plain = LimitedTable(ROWS, "rollout"), ProfileTable(ROWS, "rollout")
    for layout in (DP2, TP2):
        for context in (32.0, 64.0, 500.0, 4000.0):
            assert table.predict(layout, context, 16.0) == plain.predict(layout, context, 16.0)
    assert table.correction(DP2, 64.0, 16.0) == 1.0


def test_what_is_observed_is_predicted_and_the_others_follow() -> None:
    table, plain = LimitedTable(ROWS, "rollout"), ProfileTable(ROWS, "rollout")
    for _ in range(12):
        table.observe(DP2, 64.0, 16.0, 200.0)
    assert table.predict(DP2, 64.0, 16.0).tokens_per_device_s == pytest.approx(200.0, rel=0.1)
    assert table.correction(DP2, 64.0, 16.0) == pytest.approx(0.5, rel=0.1)
    # tp2 has no observation of its own: half as fast as well, so that the two compare as before.
    now, before = (one.predict(TP2, 64.0, 16.0).tokens_per_device_s for one in (table, plain))
    assert now / before == pytest.approx(0.5, rel=0.15)
    # Far away nothing was learned, and nowhere what fits.
    assert table.predict(TP2, 1024.0, 16.0).tokens_per_device_s == pytest.approx(200.0, rel=0.05)
    assert not table.predict(DP2, 1024.0, 16.0).fits and table.predict(TP2, 1024.0, 16.0).fits


def test_a_run_corrects_its_table_as_it_goes_and_says_by_how_much() -> None:
    table = LimitedTable(ROWS, "rollout")
    stages = Stages({"rollout": lambda start: LongIsSharded(100.0, start)}, {"rollout": table})
    load = Workload(64.0, 64.0, 64.0, 16.0)
    assert stages.decide("rollout", Observed(DP2, load), 2).correction == 1.0
    said = [stages.decide("rollout", Observed(DP2, load, 300.0), step).correction for step in range(3, 12)]
    assert said == sorted(said, reverse=True) and said[-1] == pytest.approx(0.75, rel=0.05)
    # What the profile does not know is no reason not to decide.
    verdict = stages.decide("rollout", Observed(Parallelism(tp=4), load, 300.0), 12)
    assert verdict.decision.after == DP2 and verdict.correction < 1.0
