"""The pace of a step in the run's own units: scales, prompts, memory, and the count of steps over pace."""

from __future__ import annotations

import math

import pytest

from earl.errors import ConfigError
from earl.pacing.pace import PREFILL_TOKENS, Pace, PaceCount, PaceScale
from earl.pacing.table import COLUMNS, PaceTable
from earl.parallelism import Parallelism

TEXT = f"""{",".join(COLUMNS)}
rollout,2,4,1,1,1024,8,100
rollout,2,4,1,1,4096,8,oom
trainer,2,1,2,1,1024,16,500
"""


def pace(**scale: float) -> Pace:
    return Pace(PaceTable.parse(TEXT, "text"), PaceScale(**scale))


def test_a_step_takes_its_tables_time_by_the_scales():
    assert pace().engine_step_s(4, 4, 1024, 0) == pytest.approx(0.01)
    assert pace(tokens=64, sequences=2, seconds=3).engine_step_s(4, 2, 16, 0) == pytest.approx(0.03)


def test_a_prompts_tokens_take_a_part_of_a_generated_ones_time():
    assert pace().engine_step_s(4, 4, 1024, 4 * PREFILL_TOKENS) == pytest.approx(0.02)


def test_a_pass_of_the_trainer_takes_all_its_tokens():
    assert pace().pass_s("trainer", (1, 2, 1), 8, 8 * 1024) == pytest.approx(8 * 1024 / (2 * 500))
    assert pace(tokens=2, sequences=4, seconds=0.5).pass_s("trainer", (1, 2, 1), 2, 1024) == pytest.approx(
        0.5 * 8 * 1024 / (2 * 500)
    )
    assert pace().pass_s("trainer", (1, 2, 1), 0, 0) == 0.0


def test_memory_is_in_the_runs_units_and_only_of_what_the_table_has():
    scaled = pace(tokens=64, sequences=2)
    assert not scaled.fits("rollout", Parallelism(2, 4), 64, 4)
    assert scaled.fits("rollout", Parallelism(2, 4), 63, 4)
    assert scaled.fits("rollout", Parallelism(2, 4), 64, 3)
    assert scaled.fits("rollout", Parallelism(8, 1), 1e9, 1e9)
    assert pace().held_tokens("rollout", (4, 1, 1)) == math.inf
    single = Pace(PaceTable.parse(TEXT + "rollout,2,4,1,1,8192,2,oom\n", "text"), PaceScale(tokens=64))
    assert single.held_tokens("rollout", (4, 1, 1)) == 127


def test_stages_without_rows_are_not_paced():
    assert pace().paces("rollout")
    assert pace().paces("trainer")
    assert not pace().paces("reference")
    with pytest.raises(ConfigError, match="no rows of tp2 of rollout"):
        pace().engine_step_s(2, 1, 10, 0)


def test_a_step_over_pace_is_counted_and_does_not_wait():
    count = PaceCount()
    assert count.wait_s(0.1, 0.04) == pytest.approx(0.06)
    assert count.wait_s(0.1, 0.25) == 0.0
    assert (count.steps, count.late) == (2, 1)
    assert count.late_s == pytest.approx(0.15)
