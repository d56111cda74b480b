"""Files of an export other than weights and tokenizer: how the run prompted, sampled and judged its policy.

chat_template.jinja      the model's own, with the run's system prompt and action prefix as defaults
generation_config.json   stop tokens, temperature, filters and longest answer of the run
earl.json                the same for EARL (earl.models.export_record)
README.md                the same for people (services.trainer.checkpoint.model_card)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from earl.config.mixture import MixtureEntry
from earl.config.run import RunConfig
from earl.models.chat import read_template
from earl.models.export_record import FILE, PROMPT_KEYS, RECORDED, ExportRecord
from earl.models.prompt_defaults import with_defaults
from earl.models.tokenizer import Tokenizer
from earl.obs.metrics import read_lines
from services.trainer.checkpoint.model_card import model_card

CHAT_TEMPLATE, GENERATION, CARD = "chat_template.jinja", "generation_config.json", "README.md"
# The keys of an evaluations.jsonl record that describe all its episodes together.
_FIGURES = (
    "name", "episodes", "done", "failed", "win_rate", "win_rate_low", "win_rate_high", "mean_reward",
    "mean_reward_low", "mean_reward_high", "metrics",
)  # fmt: skip
# Token ids that generation_config.json keeps from the model that the run started from.
_TOKEN_IDS = ("bos_token_id", "pad_token_id")


def record_of(run: Path, config: RunConfig, version: int) -> ExportRecord:
    """Reads the record of one version from a run's directory. Raises ConfigError, ModelNotFound."""
    entries = config.mixture
    prompts, longest = config.model, max(entry.max_new_tokens for entry in entries)
    if len({entry.system for entry in entries}) == 1:
        prompts = prompts.model_copy(update={"system": entries[0].system})
    tokenizer = Tokenizer.load(run / "model", prompts)
    stops = tokenizer.checkpoint_eos_ids
    stops += tuple(sorted(tokenizer.stop_ids - frozenset(stops)))
    base = config.model.path
    return ExportRecord(
        run=config.name,
        version=version,
        # A directory's name without the path to it: an export may be published.
        base=base if base.startswith("package:") else Path(base).name,
        environment=" + ".join(entry.label for entry in entries),
        task=entries[0].task if len(entries) == 1 else {},
        environments=tuple(_recorded(entry) for entry in entries),
        model=prompts.model_dump(mode="json", include=set(PROMPT_KEYS)),
        eos_token_ids=tokenizer.checkpoint_eos_ids,
        stop_token_ids=stops,
        stop_tokens=tuple(map(tokenizer.token, stops)),
        temperature=config.evaluation.temperature,
        training_temperature=config.scheduler.temperature,
        max_new_tokens=longest,
        evaluation=_evaluation(run, version),
        filters=config.evaluation.filters.active,
    )


def _recorded(entry: MixtureEntry) -> dict[str, Any]:
    """The keys that decide what is played. A file of tasks is only named: an export may be published."""
    section = entry.section
    named = section.model_copy(update={"tasks": Path(section.tasks).name if section.tasks else ""})
    return named.model_dump(mode="json", include=set(RECORDED))


def _evaluation(run: Path, version: int) -> dict[str, Any]:
    """Figures of the last evaluation of a version; {} if there is none."""
    file = run / "evaluations.jsonl"
    lines = read_lines(file) if file.is_file() else ()
    last: Mapping[str, Any] = {}
    for line in lines:
        if line.get("version") == version and line.get("done"):
            last = line
    return {name: last[name] for name in _FIGURES if name in last}


def texts_of(model: Path, record: ExportRecord) -> dict[str, str]:
    """The files by their names. model: the directory of the model that the run started from.

    Without model.chat the run had no chat template, and that of the model, if it has one, stays as it is.
    """
    texts = {
        GENERATION: _json(generation_config(record, _read(model / GENERATION), _read(model / "config.json"))),
        FILE: record.encode(),
        CARD: model_card(record),
    }
    prompts = record.prompts
    if prompts.chat:
        template, written = read_template(model)
        texts[CHAT_TEMPLATE] = with_defaults(template, prompts.system, prompts.action_prefix)
        if "chat_template" in written:
            kept = {name: value for name, value in written.items() if name != "chat_template"}
            texts["tokenizer_config.json"] = _json(kept)
    return texts


def generation_config(
    record: ExportRecord, before: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
    """generation_config.json. before: that of the model that the run started from; model: its config.json.

    Other settings of `before`, such as its penalty for repetitions, did not apply in the run and are left
    out.
    """
    kept = {name: before.get(name, model.get(name)) for name in _TOKEN_IDS}
    settings: dict[str, Any] = {name: value for name, value in kept.items() if value is not None}
    if record.stop_token_ids:
        settings["eos_token_id"] = list(record.stop_token_ids)
    settings |= {
        "do_sample": record.temperature > 0,
        "temperature": record.temperature,
        "max_new_tokens": record.max_new_tokens,
    }
    if record.temperature > 0:
        # Without top_k transformers takes 50, and what means "all" differs between engines: 0 is an error in
        # SGLang, -1 in transformers. Every token of the model is a number that all of them know.
        settings |= {"top_k": int(model["vocab_size"]), "top_p": 1.0, **record.filters}
    elif "repetition_penalty" in record.filters:
        # Greedy decoding has no other filter.
        settings["repetition_penalty"] = record.filters["repetition_penalty"]
    return settings


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
