"""Checks which layouts a launch measures by itself, how long that should take, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import LEAST, ProfilePoint
from services.scheduler.profile.predict import predicted_s, short_points
from services.scheduler.profiler.facts import cache_of
from services.scheduler.profiler.outlook import outlook
from services.scheduler.profiler.short import measure_short, short_profiles

TINY = ModelSpec("llama", 128, 2, 8, 8, 16, 352, 30, max_positions=128)
# The shape of a model of 0.5 B parameters.
LARGE = ModelSpec("qwen2", 896, 24, 14, 2, 64, 4864, 151_936, max_positions=32_768)


def run(**sections: dict) -> RunConfig:
    stages = {name: {"device": "cpu", **sections.pop(name, {})} for name in ("rollout", "trainer")}
    return RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, **stages, **sections})


def test_a_tiny_models_layouts_are_soon_measured_and_a_large_ones_are_not(tmp_path: Path) -> None:
    config = run(rollout={"engines": 2}, trainer={"ranks": 2})
    short = {one.stage: one for one in short_profiles(config, TINY, tmp_path)}
    assert short["rollout"].layouts == [Parallelism(2, 1), Parallelism(1, 2)]
    assert set(short["trainer"].layouts) == {Parallelism(2), Parallelism(tp=2), Parallelism(cp=2)}
    assert 10 < short["rollout"].seconds <= config.scheduler.profile_s
    large = {one.stage: one for one in short_profiles(run(trainer={"ranks": 2}), LARGE, tmp_path)}
    assert large["trainer"].seconds > 10 * config.scheduler.profile_s


def test_what_has_rows_is_not_measured_again(tmp_path: Path) -> None:
    config = run(rollout={"engines": 4})
    cache = cache_of("rollout", config, TINY, tmp_path)
    with cache.held(fresh=False):
        for layout in (Parallelism(4), Parallelism(2, 2)):
            for _ in range(LEAST):
                cache.note(layout, ProfilePoint(16, 4), 100.0, 0.1, None)
    [short] = short_profiles(config, TINY, tmp_path)
    assert short.layouts == [Parallelism(1, 4)]
    with cache.held(fresh=False):
        cache.note_oom(Parallelism(1, 4), ProfilePoint(16, 4))
    assert short_profiles(config, TINY, tmp_path) == []


def test_a_machine_too_small_for_a_layout_leaves_it_out(tmp_path: Path) -> None:
    config = run(rollout={"engines": 2})
    plenty = outlook(config, TINY, 1 << 40, tmp_path)
    assert list(plenty) == ["rollout"] and plenty["rollout"]["excluded"] == {}
    assert plenty["rollout"]["layouts"] == plenty["rollout"]["lacking"] == ["dp2", "tp2"]
    assert plenty["rollout"]["predicted_s"] == short_profiles(config, TINY, tmp_path)[0].seconds
    assert set(outlook(config, TINY, 1 << 20, tmp_path)["rollout"]["excluded"]) == {"dp2", "tp2"}
    assert outlook(run(), TINY, 1 << 40, tmp_path) == {}


def test_one_device_has_nothing_to_choose(tmp_path: Path) -> None:
    assert short_profiles(run(), TINY, tmp_path) == []
    # Seven ranks of a model with eight heads have one layout.
    assert short_profiles(run(trainer={"ranks": 7}), TINY, tmp_path) == []


def test_the_reference_stage_counts_where_the_loss_wants_it(tmp_path: Path) -> None:
    reference = {"dp": 2, "device": "cpu"}
    assert short_profiles(run(reference=reference), TINY, tmp_path) == []
    [short] = short_profiles(run(reference=reference, trainer={"kl_coefficient": 0.1}), TINY, tmp_path)
    assert short.stage == "reference" and len(short.layouts) == 2


def test_points_are_the_largest_load_at_two_lengths() -> None:
    assert short_points(256, 64, 8) == (ProfilePoint(64, 64), ProfilePoint(256, 64))
    assert short_points(16, 4, 8) == (ProfilePoint(8, 4), ProfilePoint(16, 4))
    assert short_points(6, 4, 8) == (ProfilePoint(8, 4),)


@pytest.mark.parametrize("stage", ["rollout", "reference", "trainer"])
def test_predictions_grow_with_model_and_layouts_and_shrink_on_a_gpu(stage: str) -> None:
    config, points = run(), short_points(4096, 64, 8)

    def seconds(spec: ModelSpec, layouts: int, *, gpu: bool = False) -> float:
        chosen = [Parallelism(), Parallelism(2), Parallelism(tp=2)][:layouts]
        return predicted_s(stage, config, spec, chosen, points, gpu=gpu)

    assert seconds(TINY, 1) < seconds(TINY, 2) < seconds(TINY, 3)
    assert seconds(TINY, 1) < seconds(LARGE, 1)
    assert seconds(LARGE, 1, gpu=True) < seconds(LARGE, 1)


async def test_what_would_take_too_long_is_named_with_the_command_for_it(tmp_path: Path) -> None:
    config = run(rollout={"engines": 2}, trainer={"ranks": 2}, scheduler={"profile_s": 1.0})
    shape = {"vocab_size": 30, "hidden_size": 128, "intermediate_size": 352}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8}
    about = {"model_type": "llama", "max_position_embeddings": 128, "rms_norm_eps": 1e-5, **shape, **heads}
    (tmp_path / "config.json").write_text(json.dumps(about))
    said: list[str] = []
    await measure_short(config, tmp_path, tmp_path / "jobs", said.append, tmp_path / "kept")
    assert [line.partition(":")[0] for line in said] == [
        "2 layouts of rollout not measured",
        "3 layouts of trainer not measured",
    ]
    assert all("scheduler.profile_s leaves 1 s" in line for line in said)
    assert said[0].endswith("earl profile RUN.toml --stage rollout")
    assert not (tmp_path / "jobs").exists() and not (tmp_path / "kept").exists()


def test_an_engine_that_takes_a_minute_to_start_is_not_started_for_it(tmp_path: Path) -> None:
    config = run(rollout={"engines": 2, "engine": "vllm"})
    [short] = short_profiles(config, TINY, tmp_path)
    assert short.seconds > config.scheduler.profile_s
