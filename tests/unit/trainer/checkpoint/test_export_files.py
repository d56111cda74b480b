"""Checks what an export says about its run: generation_config.json, earl.json, model card, printed lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from earl.config.model import ModelConfig
from earl.config.run import RunConfig
from earl.errors import ModelNotFound
from earl.models.export_record import FILE, ExportRecord, read_record
from earl.models.tokenizer import Tokenizer
from services.trainer.checkpoint.export_files import generation_config, record_of, texts_of
from services.trainer.checkpoint.model_card import evaluation_text, model_card, summary
from tests.support.chat_checkpoint import CHATML, chat_model

FIGURES = {
    "name": "end", "version": 5, "episodes": 9, "done": 8, "failed": 1, "win_rate": 0.75, "win_rate_low": 0.5,
    "win_rate_high": 0.9, "mean_reward": 0.5, "mean_reward_low": 0.25, "mean_reward_high": 0.75,
    "metrics": {"win": 0.75}, "rewards": [1.0, None],
}  # fmt: skip


def configuration(**model: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "numbers",
            "model": {"path": "/data/models/small", "chat": True, **model},
            "environment": {"name": "tools/calculator", "task": {"terms": 2}},
            "rollout": {"max_new_tokens": 12},
            "evaluation": {"temperature": 0.5},
        }
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with a chat model."""
    chat_model(tmp_path / "model")
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(FIGURES) + "\n")
    return tmp_path


def written(run: Path, config: RunConfig, version: int = 5) -> tuple[ExportRecord, dict[str, str]]:
    record = record_of(run, config, version)
    return record, texts_of(run / "model", record)


def test_a_record_names_what_prompted_and_ended_answers(run: Path) -> None:
    record, texts = written(run, configuration(system="Be brief.", stop=["b"]))
    # The end of sequence of tokenizer_config.json, of config.json, then model.stop.
    assert (record.stop_tokens[0], record.stop_tokens[-1]) == ("<|im_end|>", "b")
    assert record.eos_token_ids == record.stop_token_ids[:-1]
    assert (record.base, record.environment, record.task) == ("small", "tools/calculator", {"terms": 2})
    assert record.evaluation["done"] == 8 and "rewards" not in record.evaluation
    (run / FILE).write_text(texts[FILE])
    assert read_record(run) == record
    assert record.prompts == ModelConfig(chat=True, system="Be brief.", stop=["b"])
    assert written(run, configuration(), 4)[0].evaluation == {}


def test_stop_tokens_of_an_export_do_not_end_a_turn_of_the_chat(run: Path) -> None:
    config = configuration(stop=["b"])
    _, texts = written(run, config)
    before = Tokenizer.load(run / "model", config.model)
    for name, text in texts.items():
        (run / "model" / name).write_text(text)
    assert before.token(0) and before.token(100_000) == ""
    for model in (config.model, configuration().model):
        after = Tokenizer.load(run / "model", model)
        assert after.checkpoint_eos_ids == before.checkpoint_eos_ids
    stop = next(iter(before.stop_ids - frozenset(before.checkpoint_eos_ids)))
    later = after.encode_observation("a", False, "user", stop)
    assert later == before.encode_observation("a", False, "user", stop)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_transformers_reads_the_runs_sampling(run: Path, tmp_path: Path, temperature: float) -> None:
    record = replace(record_of(run, configuration(), 5), temperature=temperature)
    before = {"pad_token_id": 7, "top_k": 20, "repetition_penalty": 1.1, "eos_token_id": 3}
    model = json.loads((run / "model" / "config.json").read_text())
    settings = generation_config(record, before, model)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    loaded = GenerationConfig.from_pretrained(tmp_path)
    assert (loaded.temperature, loaded.do_sample) == (temperature, temperature > 0)
    assert loaded.max_new_tokens == 12 and loaded.repetition_penalty is None
    assert (loaded.bos_token_id, loaded.pad_token_id) == (1, 7)
    assert loaded.eos_token_id == list(record.stop_token_ids)
    assert loaded.top_k == (model["vocab_size"] if temperature else None)
    ends = replace(record, stop_token_ids=(), stop_tokens=())
    assert "eos_token_id" not in generation_config(ends, {}, {"vocab_size": 9})
    assert "stops at no token," in summary(ends, base_template=True)[1]


def test_the_filters_of_evaluations_are_those_of_the_export(run: Path, tmp_path: Path) -> None:
    config = configuration()
    filters = {"repetition_penalty": 1.25, "top_k": 5, "top_p": 0.75}
    changed = config.evaluation.model_copy(update=filters)
    record = record_of(run, config.model_copy(update={"evaluation": changed}), 5)
    assert record.filters == filters
    model = {"vocab_size": 99}
    for temperature, expected in ((0.5, (5, 0.75, None, 1.25)), (0.0, (None, None, None, 1.25))):
        settings = generation_config(replace(record, temperature=temperature), {}, model)
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        loaded = GenerationConfig.from_pretrained(tmp_path)
        assert (loaded.top_k, loaded.top_p, loaded.min_p, loaded.repetition_penalty) == expected
    card = model_card(record)
    assert "| top_k | 5 (none in training) |\n| top_p | 0.75 (none in training) |\n" in card
    line = summary(record, base_template=True)[1]
    assert line.endswith(
        "temperature 0.5, repetition_penalty 1.25, top_k 5, top_p 0.75, at most 12 new tokens"
    )
    (tmp_path / FILE).write_text(record.encode())
    assert read_record(tmp_path) == record
    # A record of before has none, and one of filters that this version does not know cannot be read.
    values = json.loads(record.encode())
    (tmp_path / FILE).write_text(json.dumps({name: values[name] for name in values if name != "filters"}))
    before = read_record(tmp_path)
    assert before is not None and before.filters == {}
    (tmp_path / FILE).write_text(json.dumps(values | {"filters": {"typical_p": 0.5}}))
    with pytest.raises(ModelNotFound, match="typical_p"):
        read_record(tmp_path)


def test_stop_texts_are_in_the_record_and_the_card(run: Path) -> None:
    record, texts = written(run, configuration(stop_texts=["a|b\n", "."]))
    assert record.prompts.stop_texts == ["a|b\n", "."]
    assert '| an answer ends after the text | `"a\\|b\\n"`, `"."` |\n' in texts["README.md"]
    assert "stop_strings" in texts["README.md"] and "stop_strings" not in texts["generation_config.json"]
    assert '(and not at the texts "a|b\\n", ".", which' in summary(record, base_template=True)[1]
    assert "stop_strings" not in written(run, configuration())[1]["README.md"]


def test_a_template_in_tokenizer_config_becomes_a_file(run: Path) -> None:
    file = run / "model" / "tokenizer_config.json"
    (run / "model" / "chat_template.jinja").unlink()
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "chat_template": CHATML}))
    _, texts = written(run, configuration(action_prefix="It is"))
    assert CHATML in texts["chat_template.jinja"] and '"It is"' in texts["chat_template.jinja"]
    assert json.loads(texts["tokenizer_config.json"]) == settings
    _, plain = written(run, configuration(chat=False))
    assert not {"chat_template.jinja", "tokenizer_config.json"} & set(plain)


def test_the_card_shows_the_prompts_as_they_are(run: Path) -> None:
    system = "Say:\n```\nx | y\n```"
    record, texts = written(run, configuration(system=system, action_prefix="It is"))
    card = texts["README.md"]
    assert card == model_card(record)
    assert f"\n````text\n{system}\n````\n" in card and "\n```text\nIt is\n```\n" in card
    for row in (
        "| run | `numbers` |",
        "| version | 5 |",
        "| started from | `small` |",
        "| environment | `tools/calculator` |",
        '| task | `{"terms": 2}` |',
        "| evaluation | win rate 0.75 [0.50, 0.90], reward 0.50 [0.25, 0.75] over 8 episodes (95 % ",
        "| temperature | 0.5 (in training 1) |",
        "| most new tokens of an answer | 12 |",
        "| an answer ends after | `<\\|im_end\\|>`, `",
    ):
        assert row in card, row
    assert "/data" not in "".join(texts.values())
    plain = model_card(record_of(run, configuration(chat=False, action_prefix="`>"), 4))
    assert "the observation + `` `> ``" in plain and "| evaluation | none of this version |" in plain
    none = model_card(
        replace(record, model={"chat": True}, base="", evaluation={"mean_reward": 1.0, "done": 2})
    )
    assert "The run has no system prompt." in none and "The run has no action prefix." in none
    assert "| started from | random weights |" in none and "| reward 1.00 over 2 episodes" in none


def test_printed_lines_are_short_and_safe(run: Path) -> None:
    record = record_of(run, configuration(system="x\x1b[31m" + "y" * 100, action_prefix="It is"), 5)
    template, generation, card = summary(record, base_template=True)
    assert template.endswith('…", action prefix "It is"') and len(template) < 140
    assert "\x1b" not in template
    assert generation.endswith("temperature 0.5, at most 12 new tokens")
    assert card == f"README.md, earl.json: numbers, version 5, {evaluation_text(record)}"
    bare = replace(record, model={"chat": False, "observation_prefix": "<", "action_prefix": ">"})
    assert summary(bare, base_template=False)[0] == (
        'no chat_template.jinja: the run has model.chat = false, observation prefix "<", action prefix ">"'
    )
    assert (
        "no system prompt, no action prefix"
        in summary(replace(record, model={"chat": True}), base_template=True)[0]
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"run": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ModelNotFound, match=r"earl\.json cannot be read"):
        read_record(tmp_path)
