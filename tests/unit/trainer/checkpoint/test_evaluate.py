"""Checks the run that evaluates an exported model by its earl.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.sampling_filters import SamplingFilters
from earl.errors import ConfigError
from earl.models.export_record import FILE, ExportRecord
from services.trainer.checkpoint.evaluate import evaluation_of, recorded_config

SERVE = ("environment.serve", "earl.env.adapters.open_spiel:environments")
CONTEXT = ("rollout.max_context_tokens", "80")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exported model, as far as it is read here."""
    record = ExportRecord(
        run="first", version=7, base="", environment="open_spiel/tic_tac_toe", task={"player": 1},
        model={"chat": False, "action_prefix": ">", "stop": ["]"]}, eos_token_ids=(), stop_token_ids=(3,),
        stop_tokens=("]",), temperature=0.5, training_temperature=1.0, max_new_tokens=4, evaluation={},
        filters={"top_p": 0.9},
    )  # fmt: skip
    (tmp_path / FILE).write_text(record.encode())
    (tmp_path / "config.json").write_text('{"num_attention_heads": 8, "num_key_value_heads": 8}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_evaluation_has_the_settings_of_the_record_and_those_that_were_given(model: Path):
    overrides = [SERVE, CONTEXT, ("scheduler.max_turns", "5")]
    config = evaluation_of(recorded_config(model, overrides), model, 24, overrides)
    assert config.name == "first-eval" and config.model.path == str(model)
    assert (config.model.action_prefix, list(config.model.stop)) == (">", ["]"])
    assert (config.mixture[0].name, config.mixture[0].task) == ("open_spiel/tic_tac_toe", {"player": 1})
    assert (config.mixture[0].section.serve, config.rollout.max_context_tokens) == (SERVE[1], 80)
    assert (config.evaluation.temperature, config.rollout.max_new_tokens) == (0.5, 4)
    assert config.evaluation.filters == SamplingFilters(top_p=0.9)
    assert (config.evaluation.episodes, config.scheduler.max_turns, config.scheduler.steps) == (24, 5, 0)


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        ([], "--environment.serve and --rollout.max_context_tokens"),
        ([CONTEXT], "--environment.serve"),
        ([SERVE], "--rollout.max_context_tokens"),
    ],
)
def test_what_the_record_lacks_is_asked_for(model: Path, overrides: list[tuple[str, str]], missing: str):
    with pytest.raises(ConfigError) as raised:
        recorded_config(model, overrides)
    assert str(raised.value) == (
        f"{model / FILE} does not have all that an evaluation in open_spiel/tic_tac_toe needs; "
        f"give {missing}, or the run file: --run-file RUN.toml"
    )


def test_a_model_without_a_record_needs_a_run_file(tmp_path: Path):
    with pytest.raises(ConfigError) as raised:
        recorded_config(tmp_path, [SERVE, CONTEXT])
    assert str(raised.value) == (
        f"{tmp_path} has no earl.json, which would name its environment; "
        "give its run file: --run-file RUN.toml"
    )
