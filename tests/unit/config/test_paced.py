"""`[paced]` at load: its table, the layouts that it lacks, what cannot be paced, and what it bounds."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest

from earl.config.load import load_run
from earl.config.paced import PACKAGED, PacedConfig, pace_of
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from earl.stack.rundir import RunDirectory
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.profile.plan import ProfilePoint
from services.scheduler.profile.rows import parse
from services.scheduler.profile.stages import parallelisms, plan_of
from services.scheduler.profiler.facts import cache_of, facts_of
from services.scheduler.profiler.measure import Measuring
from services.scheduler.profiler.short import short_profiles
from services.scheduler.selector.corrected_profile import LimitedTable

HEAD = "stage,dp,tp,context_tokens,concurrency,tokens_per_device_s\n"
TABLE = HEAD + ("rollout,4,1,64,8,100\nrollout,4,1,128,4,oom\nrollout,2,2,64,8,90\nrollout,2,2,96,64,oom\n")
MODEL = ModelSpec("llama", 64, 2, 8, 8, 8, 64, 97)
RUN = """
name = "paced"
[environment]
name = "a/b"
[rollout]
engines = 4
"""


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "devices.csv"
    path.write_text(TABLE)
    return path


def loaded(tmp_path: Path, text: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(RUN + text)
    return load_run(path)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_tables_are_known_by_name(name):
    pace = pace_of(PacedConfig(table=name, context_scale=64))
    assert pace is not None and pace.paces("rollout") and pace.table.name == name
    assert pace.scale.tokens == 64


def test_a_run_says_that_its_times_are_simulated(tmp_path, table):
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    assert paced_text(config) == "SIMULATED TIMES: rollout on devices paced by devices.csv"
    assert paced_text(loaded(tmp_path, "")) == ""
    assert loaded(tmp_path, "").pace is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('table = "nowhere.csv"', r"paced.table = 'nowhere.csv' cannot be read.*\"fig3\" or \"slow-link\""),
        ("time_scale = 2", "paced.time_scale = 2 without paced.table"),
        ('table = "fig3"', "fig3 has no rows of tp1 of rollout; use tp4 or tp8"),
    ],
)
def test_what_cannot_be_paced_is_refused_with_the_remedy(tmp_path, keys, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, f"[paced]\n{keys}\n")


def test_a_broken_table_is_refused_with_its_line(tmp_path, table):
    table.write_text(TABLE + "rollout,1,4,64,8,fast\n")
    with pytest.raises(ConfigError, match=r"devices.csv, line 6: tokens_per_device_s is 'fast'"):
        loaded(tmp_path, f'[paced]\ntable = "{table}"\n')


def test_an_engine_whose_steps_nobody_times_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r'with rollout\.engine = "vllm"'):
        loaded(tmp_path, 'engine = "vllm"\n[paced]\ntable = "slow-link"\n')


def test_a_run_directory_names_its_table_absolutely(tmp_path, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = loaded(tmp_path, '[paced]\ntable = "devices.csv"\n')
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        written = tomllib.loads(directory.run_toml.read_text())
        launched = RunConfig.model_validate_json(directory.run_json.read_text())
    assert written["paced"]["table"] == launched.paced.table == str(table)


def test_layouts_that_the_table_lacks_are_not_legal(tmp_path, table):
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    layouts = LegalLayouts(config, tmp_path)
    assert [str(layout) for layout in layouts.legal("rollout", [4])] == ["dp4", "dp2·tp2"]
    assert [str(layout) for layout in parallelisms("rollout", config, MODEL)] == ["dp4", "dp2·tp2"]
    # The table has no rows of the trainer: that is not paced, and keeps its layouts.
    assert [str(layout) for layout in layouts.legal("trainer", [1])] == ["tp1"]


def test_memory_of_the_table_bounds_a_layout(tmp_path, table):
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    holds = LegalLayouts(config, tmp_path).holds("rollout")
    assert [holds(Parallelism(4)), holds(Parallelism(2, 2))] == [127, None]
    plan = plan_of("rollout", config, MODEL, [64, 128], [8])
    assert plan.loads[Parallelism(4)][ProfilePoint(128, 8)] is None
    assert plan.loads[Parallelism(2, 2)][ProfilePoint(128, 8)] == ProfilePoint(128, 8)


def test_the_selector_takes_what_is_out_of_memory_for_a_layout_that_does_not_fit(tmp_path, table):
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    pace = config.pace
    assert pace is not None
    rows = parse(HEAD + "rollout,2,2,64,8,90\nrollout,2,2,512,64,50\n", "measured")
    limited = LimitedTable(rows, "rollout", fits=lambda *point: pace.fits("rollout", *point))
    assert limited.predict(Parallelism(2, 2), 95, 64).fits
    refused = limited.predict(Parallelism(2, 2), 96, 64)
    assert not refused.fits and "out of memory at 96 tokens x 64 sequences, by its pace" in refused.reason


def test_a_short_profile_has_points_that_every_layout_holds(tmp_path, table):
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    short = short_profiles(config, MODEL, kept=tmp_path)[0]
    assert short.stage == "rollout"
    assert [str(layout) for layout in short.layouts] == ["dp4", "dp2·tp2"]
    assert [point.context_tokens for point in short.points] == [31, 127]


def test_a_profile_names_the_tables_memory_where_it_measures_nothing(tmp_path, table):
    table.write_text(TABLE + "reference,1,1,64,8,100\nreference,1,1,128,1,oom\n")
    config = loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    lines: list[str] = []
    for stage, bounds in (
        ("rollout", "rollout.kv_tokens or the memory of paced.table"),
        ("reference", "the memory of paced.table"),
    ):
        plan = plan_of(stage, config, MODEL, [128], [8])
        plan = plan.only([layout for layout in plan.points if layout.tp == 1])
        cache = cache_of(stage, config, MODEL, tmp_path)
        measuring = Measuring(plan, config, tmp_path, tmp_path, cache, lines.append)
        with cache.held(fresh=False):
            asyncio.run(measuring.run(1.0))
        assert lines.pop().endswith(f"128 tokens x 8: does not fit: a sequence exceeds {bounds}")
        assert not measuring.lacking


def test_measurements_of_paced_devices_are_kept_apart_from_this_machines(tmp_path, table):
    real, paced = loaded(tmp_path, ""), loaded(tmp_path, f'[paced]\ntable = "{table}"\n')
    slower = loaded(tmp_path, f'[paced]\ntable = "{table}"\ntime_scale = 2\n')
    facts = [facts_of("rollout", config, MODEL)["settings"] for config in (real, paced, slower)]
    table.write_text(TABLE.replace("100", "101"))
    assert len({str(each) for each in facts}) == 3
    assert "paced" not in facts[0]
