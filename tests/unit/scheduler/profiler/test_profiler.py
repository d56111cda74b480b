"""Checks what there is to measure of a stage, what is kept of it, and what a wrong question is answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import LEAST, ProfilePoint
from services.scheduler.profile.stages import parallelisms, plan_of
from services.scheduler.profiler.cache import Cache
from services.scheduler.profiler.command import app, numbers, stages_of
from services.scheduler.profiler.facts import cache_of, facts_of

SPEC = ModelSpec("llama", 96, 2, 12, 6, 8, 192, 50, max_positions=4096)
LAYOUT = Parallelism(dp=4)


def run(**sections) -> RunConfig:
    rollout = {"device": "cpu", **sections.pop("rollout", {})}
    return RunConfig.model_validate(
        {"name": "t", "environment": {"name": "e"}, "rollout": rollout, **sections}
    )


def test_every_legal_parallelism_of_the_devices():
    assert parallelisms("rollout", run(rollout={"engines": 4, "tp": 3}), SPEC) == [
        Parallelism(dp, tp) for dp, tp in ((12, 1), (6, 2), (4, 3), (2, 6), (1, 12))
    ]
    found = parallelisms("reference", run(reference={"dp": 2, "tp": 1}), SPEC)
    assert found == [Parallelism(2, 1), Parallelism(1, 2)]
    assert parallelisms("trainer", run(trainer={"ranks": 5}), SPEC) == [Parallelism(dp=5)]
    # Neither 4 nor, after tp 2, 2 ranks could have whole key-value heads of 6.
    found = parallelisms("trainer", run(trainer={"ranks": 4}), SPEC)
    assert found == [Parallelism(4), Parallelism(2, cp=2), Parallelism(2, tp=2)]
    fed_two = run(trainer={"ranks": 4}, scheduler={"batch_groups": 1, "group_size": 2})
    assert parallelisms("trainer", fed_two, SPEC) == found[1:]


def test_without_given_points_the_run_file_says_which():
    config = run(
        rollout={"max_context_tokens": 4096, "max_sequences": 64, "engines": 2},
        scheduler={"batch_groups": 4, "group_size": 8},
    )
    points = plan_of("rollout", config, SPEC).points[Parallelism(dp=2)]
    assert {point.context_tokens for point in points} == {512, 1024, 2048, 4096}
    assert {point.concurrency for point in points} == {8, 32, 128}
    batches = plan_of("trainer", config, SPEC).points[Parallelism()]
    assert {point.concurrency for point in batches} == {2, 8, 32}
    small = plan_of("rollout", run(rollout={"max_context_tokens": 20, "max_sequences": 1}), SPEC)
    assert set(small.points[Parallelism()]) == {ProfilePoint(10, 1), ProfilePoint(20, 1)}


def test_sequences_beyond_the_kv_bound_wait_and_one_that_is_longer_does_not_fit():
    config = run(rollout={"engines": 2, "tp": 1, "kv_tokens": 3072})
    loads = plan_of("rollout", config, SPEC, [1024, 2048, 4096], [2, 8]).loads
    assert loads[Parallelism(dp=2)] == {
        ProfilePoint(1024, 2): ProfilePoint(1024, 2),
        ProfilePoint(1024, 8): ProfilePoint(1024, 6),
        ProfilePoint(2048, 2): ProfilePoint(2048, 2),
        ProfilePoint(2048, 8): ProfilePoint(2048, 2),
        ProfilePoint(4096, 2): None,
        ProfilePoint(4096, 8): None,
    }
    # Two devices hold twice the tokens of one engine, and have to hold all sequences.
    both = loads[Parallelism(tp=2)]
    assert (both[ProfilePoint(2048, 8)], both[ProfilePoint(4096, 8)]) == (
        ProfilePoint(2048, 3),
        ProfilePoint(4096, 1),
    )
    assert plan_of("trainer", config, SPEC, [2048], [8]).loads[Parallelism()] == {
        ProfilePoint(2048, 8): ProfilePoint(2048, 8)
    }


def test_a_trainers_ranks_take_so_much_of_a_sequence_each():
    config = run(trainer={"ranks": 2, "microbatch_tokens": 2048}, scheduler={"selector": "on"})
    loads = plan_of("trainer", config, SPEC, [2048, 4096], [8]).loads
    assert loads[Parallelism(dp=2)] == {
        ProfilePoint(2048, 8): ProfilePoint(2048, 8),
        ProfilePoint(4096, 8): None,
    }
    assert loads[Parallelism(cp=2)] == {one: one for one in (ProfilePoint(2048, 8), ProfilePoint(4096, 8))}


def test_settings_that_change_the_figures_change_the_fingerprint(tmp_path):
    def path(config: RunConfig, spec: ModelSpec = SPEC) -> Path:
        return cache_of("rollout", config, spec, tmp_path).path

    same = path(run())
    assert path(run(rollout={"max_new_tokens": 8})) == same
    others = [
        path(run(rollout={"threads": 2})),
        path(run(rollout={"kv_tokens": 4096})),
        path(run(model={"dtype": "bfloat16"})),
        path(run(), ModelSpec("llama", 96, 3, 12, 6, 8, 192, 50)),
    ]
    assert len({same, *others}) == 5


def test_windows_are_kept_as_they_are_measured(tmp_path):
    cache = Cache(tmp_path, "rollout", {"model": "m"})
    with cache.held(fresh=False):
        for rate in (1.0, 2.0, 3.0):
            cache.note(LAYOUT, ProfilePoint(64, 2), rate, 0.5, 0.25)
        cache.note(LAYOUT, ProfilePoint(64, 8), 9.0, 0.5, None)
        cache.note_oom(LAYOUT, ProfilePoint(128, 16))
    with cache.path.open("a") as file:
        file.write('{"dp": 4, "context_tok')  # killed
    with cache.held(fresh=False):
        cache.note(LAYOUT, ProfilePoint(64, 8), 9.0, 0.5, None)
    known = Cache(tmp_path, "rollout", {"model": "m"}).known(
        {LAYOUT: [ProfilePoint(64, 2), ProfilePoint(64, 8), ProfilePoint(32, 1)]}
    )
    assert known[LAYOUT].windows(ProfilePoint(64, 8)) == 2 < LEAST
    assert known[LAYOUT].lacking() == [ProfilePoint(32, 1), ProfilePoint(64, 8)]
    rows = cache.rows()
    assert [(row.context_tokens, row.tokens_per_device_s, row.oom) for row in rows] == [
        (64, 2.0, False),
        (128, None, True),
    ]
    with cache.held(fresh=True):
        assert cache.rows() == []


def test_two_processes_do_not_measure_the_same(tmp_path):
    cache, other = Cache(tmp_path, "rollout", {}), Cache(tmp_path, "rollout", {})
    with (
        cache.held(fresh=False),
        pytest.raises(ConfigError, match="another process"),
        other.held(fresh=False),
    ):
        pass


def test_wrong_questions_are_refused_with_their_value():
    for contexts, concurrency, words in (
        ([4], [1], "4 tokens"),
        ([8192], [1], "4096"),
        ([64], [0], "0 sequences"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_of("rollout", run(), SPEC, contexts, concurrency)
    with pytest.raises(ConfigError, match="'12,x'"):
        numbers("--contexts", "12,x")
    with pytest.raises(ConfigError, match="'rollouts'"):
        stages_of("rollouts", run())


def test_all_stages_are_those_that_the_run_has():
    assert stages_of("all", run()) == ["rollout", "trainer"]
    assert stages_of("all", run(trainer={"kl_coefficient": 0.1})) == ["rollout", "reference", "trainer"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--minutes", "0"), "--minutes 0"),
        (("--stage", "env"), "'env'"),
        (("--contexts", "a"), "'a'"),
        (("--out", "/no/such/directory/table.csv"), "/no/such/directory"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, arguments, words):
    file = tmp_path / "run.toml"
    file.write_text('name = "t"\n[environment]\nname = "e"\n')
    done = CliRunner().invoke(app, [str(file), *arguments])
    assert isinstance(done.exception, ConfigError) and words in str(done.exception)


def test_help_names_its_options():
    done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    for option in ("--stage", "--out", "--contexts", "--concurrency", "--minutes", "--fresh", "--json"):
        assert option in done.output


def test_facts_are_json():
    assert json.dumps(facts_of("trainer", run(trainer={"device": "cpu"}), SPEC), default=str)
