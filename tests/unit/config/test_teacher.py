"""Run files with a teacher: what they start, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.check import cross_check
from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound
from earl.models.create import create_models, write_scratch
from earl.models.spec import load_spec, spec_of_scratch
from earl.stack.placement import place
from earl.stack.plan import plan
from earl.stack.thread_counts import with_threads
from services.scheduler.memory.node import node_plan
from services.scheduler.memory.stage_spec import spec_of_stage
from tests.support.runs import WORDS, tictactoe

SIZES = ScratchModel(
    hidden_size=48, intermediate_size=96, layers=2, heads=6, kv_heads=2, max_positions=128, words=WORDS
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("teacher") / "larger"
    write_scratch(directory, SIZES, 1, "float32")
    return directory


def run_of(directory: Path, teacher: Path, keys: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return tictactoe(directory, teacher={"path": str(teacher), **(keys or {})}, **sections)


def test_a_teacher_has_a_process_devices_threads_and_memory_of_its_own(tmp_path: Path, teacher: Path):
    config = run_of(tmp_path, teacher, {"tp": 2, "dp": 2}, trainer={"kl_coefficient": 0.1})
    cross_check(config)
    assert list(config.frozen_stages) == ["reference", "teacher"]
    spec = {each.name: each for each in plan(config, Path("run.json"))}["teacher"]
    assert spec.arguments[:2] == ("-m", "services.trainer.teacher")
    assert spec.may_end_early and spec.ends_with_run and spec.restartable
    placement = place(config, 0)
    assert placement.devices["teacher"] == (3, 4, 5, 6)
    assert with_threads(config, 0, 14.0).teacher.threads == 2
    student = spec_of_scratch(config.model.scratch)
    assert spec_of_stage("teacher", config, student) == load_spec(teacher)
    uses = {use.process: use for use in node_plan(config, student, placement, 1 << 40).uses}
    assert uses["teacher"].ranks == 4
    assert uses["teacher"].parts.weights > uses["reference"].parts.weights
    without = tictactoe(tmp_path)
    assert not without.frozen_stages
    assert "teacher" not in {each.name for each in plan(without, Path("run.json"))}


@pytest.mark.parametrize(
    ("keys", "sections", "message"),
    [
        ({"tp": 4}, {}, r"teacher\.tp = 4 does not divide .*6 heads and 2"),
        ({}, {"stack": {"pool_devices": 3}}, r"stack\.pool_devices = 3 with teacher\.path"),
        ({}, {"paced": {"table": "h200"}}, r"paced\.table = 'h200' with teacher\.path"),
        ({"until": 2}, {}, r"teacher\.until = 2, and .* starts from version 2"),
        ({"until": 9, "rewards": False}, {}, "nothing would be learned from that version on"),
        ({"wean": True, "rewards": False}, {}, "a policy that is weaned would learn nothing"),
        ({"wean": True, "score": 1.0}, {}, "environments have no reward_range"),
        ({"wean": True}, {"environment": {"reward_range": [-1, 1]}}, "and nothing to measure it by"),
        (
            {"wean": True, "score": -1.0}, {"environment": {"reward_range": [-1, 1]}},
            r"teacher\.score = -1 with",
        ),
        (
            {"until": 9}, {"deterministic": True, "scheduler": {"selector": "static"}},
            r"deterministic = true with teacher\.until",
        ),
        ({}, {"replay": {"reuse": 1}}, r"replay\.reuse = 1 with teacher\.path"),
        ({"arena_bytes": 100}, {}, r"teacher\.arena_bytes = 100 cannot hold"),
    ],
)  # fmt: skip
def test_what_a_teacher_cannot_be_is_refused_by_its_key(
    tmp_path: Path, teacher: Path, keys: dict[str, Any], sections: dict[str, Any], message: str
):
    config = run_of(tmp_path, teacher, keys)
    changes = {
        name: getattr(config, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    with pytest.raises((ConfigError, IllegalParallelism), match=message):
        cross_check(config.model_copy(update=changes))


def test_a_teacher_that_counts_by_returns_is_taken(tmp_path: Path, teacher: Path):
    keys = {"wean": True, "score": 0.0, "until": 5}
    cross_check(run_of(tmp_path, teacher, keys, environment={"reward_range": [-1, 1]}))


def test_a_teacher_must_be_there(tmp_path: Path):
    with pytest.raises(ModelNotFound, match=r"teacher\.path = .*nowhere"):
        cross_check(run_of(tmp_path, tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"teacher\.until = 3 without teacher\.path"):
        cross_check(tictactoe(tmp_path, teacher={"until": 3}))


def test_another_tokenizer_is_refused_and_both_are_named(tmp_path: Path, teacher: Path):
    create_models(tmp_path / "run", run_of(tmp_path, teacher))
    assert (tmp_path / "run" / "teacher").resolve() == teacher.resolve()
    # Doing it again changes nothing.
    create_models(tmp_path / "run", run_of(tmp_path, teacher))
    other = tmp_path / "other"
    words = [*WORDS[1:], "y"]
    write_scratch(other, SIZES.model_copy(update={"words": words}), 1, "float32")
    with pytest.raises(ConfigError) as refused:
        create_models(tmp_path / "second", run_of(tmp_path, other))
    assert "model.scratch" in refused.value.message and str(other) in refused.value.message
    assert "have different ids, such as" in refused.value.message
