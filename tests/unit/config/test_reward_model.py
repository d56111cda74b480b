"""Run files with a reward model: what they start, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from earl.config.check import cross_check
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound, UnsupportedModel
from earl.models.create import create_models, write_scratch
from earl.models.spec import spec_of_scratch
from earl.stack.placement import place
from earl.stack.plan import plan
from earl.stack.thread_counts import with_threads
from services.scheduler.memory.node import node_plan
from services.scheduler.memory.stage_spec import spec_of_stage
from tests.support.runs import WORDS, tictactoe
from tests.support.scorer import SCORER, write_scorer


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scorer(tmp_path_factory.mktemp("scorer"))


def run_of(directory: Path, scorer: Path, keys: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    return tictactoe(directory, reward_model={"path": str(scorer), **(keys or {})}, **sections)


def test_it_has_a_process_devices_threads_and_memory_of_its_own(tmp_path: Path, scorer: Path) -> None:
    config = run_of(tmp_path, scorer, {"tp": 2, "dp": 2}, trainer={"kl_coefficient": 0.1})
    cross_check(config)
    assert list(config.frozen_stages) == ["reference", "reward_model"]
    assert list(config.column_stages) == ["reference"]
    spec = {each.name: each for each in plan(config, Path("run.json"))}["reward_model"]
    assert spec.arguments[:2] == ("-m", "services.trainer.reward_model")
    assert spec.ends_with_run and spec.restartable and not spec.may_end_early
    placement = place(config, 0)
    assert placement.devices["reward_model"] == (3, 4, 5, 6)
    assert with_threads(config, 0, 14.0).reward_model.threads == 2
    student = spec_of_scratch(config.model.scratch)
    assert spec_of_stage("reward_model", config, student).hidden == SCORER.hidden_size
    uses = {use.process: use for use in node_plan(config, student, placement, 1 << 40).uses}
    assert uses["reward_model"].ranks == 4
    assert uses["reward_model"].parts.logits == 0 < uses["reference"].parts.weights
    assert config.score_coefficient == 1.0
    without = tictactoe(tmp_path)
    assert without.score_coefficient == 0.0
    assert "reward_model" not in {each.name for each in plan(without, Path("run.json"))}


@pytest.mark.parametrize(
    ("keys", "sections", "message"),
    [
        ({"tp": 4}, {}, r"reward_model\.tp = 4 does not divide .*6 heads and 2"),
        ({}, {"stack": {"pool_devices": 3}}, r"stack\.pool_devices = 3 with reward_model\.path"),
        ({}, {"paced": {"table": "h200"}}, r"paced\.table = 'h200' with reward_model\.path"),
        ({}, {"scheduler": {"resample": 2}}, r"scheduler\.resample = 2 with reward_model\.path"),
    ],
)
def test_what_it_cannot_be_is_refused_by_its_key(
    tmp_path: Path, scorer: Path, keys: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    config = run_of(tmp_path, scorer, keys)
    changes = {name: getattr(config, name).model_copy(update=section) for name, section in sections.items()}
    with pytest.raises((ConfigError, IllegalParallelism), match=message):
        cross_check(config.model_copy(update=changes))


def test_a_teacher_alone_leaves_it_nothing_to_say(tmp_path: Path, scorer: Path) -> None:
    teacher = tmp_path / "teacher"
    write_scratch(teacher, SCORER, 1, "float32")
    config = run_of(tmp_path, scorer, teacher={"path": str(teacher), "rewards": False})
    with pytest.raises(ConfigError, match=r"teacher\.rewards = false: no reward counts"):
        cross_check(config)


def test_it_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"reward_model\.path = .*nowhere"):
        cross_check(run_of(tmp_path, tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"reward_model\.coefficient = 2 without reward_model\.path"):
        cross_check(tictactoe(tmp_path, reward_model={"coefficient": 2.0}))


def test_what_does_not_score_with_this_tokenizer_is_refused(tmp_path: Path, scorer: Path) -> None:
    create_models(tmp_path / "run", run_of(tmp_path, scorer))
    assert (tmp_path / "run" / "reward_model").resolve() == scorer.resolve()
    # Doing it again changes nothing.
    create_models(tmp_path / "run", run_of(tmp_path, scorer))
    write_scratch(tmp_path / "policy", SCORER, 1, "float32")
    with pytest.raises(UnsupportedModel, match=r"has no score\.weight"):
        create_models(tmp_path / "second", run_of(tmp_path, tmp_path / "policy"))
    labels = write_scorer(tmp_path / "three", head=torch.zeros(3, SCORER.hidden_size))
    with pytest.raises(UnsupportedModel, match=r"shape \(3, 48\), and a reward model has one label"):
        create_models(tmp_path / "third", run_of(tmp_path, labels))
    other = write_scorer(tmp_path / "other", SCORER.model_copy(update={"words": [*WORDS[1:], "y"]}))
    with pytest.raises(ConfigError, match=r"reward_model\.path = .* has another tokenizer"):
        create_models(tmp_path / "fourth", run_of(tmp_path, other))
    assert not (tmp_path / "fourth" / "reward_model").is_symlink()
