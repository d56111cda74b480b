"""The model card of an export, README.md, and the lines that `earl export` prints. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from earl.models.export_record import ExportRecord
from earl.obs.outcomes import has_winners
from earl.visible import visible

# Characters of a prompt that a printed line shows.
SHOWN_CHARACTERS = 60

_HEAD = """---
library_name: transformers
tags:
- earl
- reinforcement-learning
---

# {run}, version {version}

A policy trained with EARL, by reinforcement learning in an environment.

| | |
|---|---|
"""
_USE = """The chat template contains this. `apply_chat_template` gives the token ids with which an episode
of the run began:

```python
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
messages = [{"role": "user", "content": observation}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
```
"""
_PREFIX = """
The model continues after the action prefix. Put the prefix before what it generates to get the whole answer,
also when the answer becomes a message of the conversation.
"""
_PLAIN = """The run used no chat template (`model.chat = false`). A prompt has these parts, each encoded by
itself, with the tokenizer's beginning of sequence before the first one:

{parts}
"""


def model_card(record: ExportRecord) -> str:
    """README.md: the run, its version, environment, prompts, sampling and evaluation."""
    rows = {
        "run": _cell(record.run),
        "version": str(record.version),
        "started from": _cell(record.base) if record.base else "random weights",
        "environment": _cell(record.environment),
        "task": _cell(json.dumps(record.task, ensure_ascii=False)) if record.task else "",
        "evaluation": evaluation_text(record) or "none of this version",
    }
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items() if value)
    sections = [_HEAD.format(run=_line(record.run), version=record.version) + table]
    sections.append("## Prompt\n\n" + (_chat(record) if record.prompts.chat else _plain(record)))
    stops = ", ".join(map(_cell, record.stop_tokens)) or "none"
    filters = "".join(
        f"| {name} | {value:g} (none in training) |\n" for name, value in record.filters.items()
    )
    sections.append(
        "## Sampling\n\n"
        "`generation_config.json` has the settings of the run's evaluations.\n\n"
        "| | |\n|---|---|\n"
        f"| temperature | {record.temperature:g} (in training {record.training_temperature:g}) |\n"
        f"{filters}"
        f"| most new tokens of an answer | {record.max_new_tokens} |\n"
        f"| an answer ends after | {stops} |\n"
        f"{_stop_texts(record)}"
    )
    return "\n".join(sections)


def _stop_texts(record: ExportRecord) -> str:
    """The rest of the table if the run had stop texts, and who has to be told of them."""
    texts = record.prompts.stop_texts
    if not texts:
        return ""
    shown = [_cell(json.dumps(text, ensure_ascii=False)) for text in texts]
    return (
        f"| an answer ends after the text | {', '.join(shown)} |\n\n"
        "`generation_config.json` has no texts: give them to `generate` as `stop_strings`, to an inference "
        "server as `stop`.\n"
    )


def summary(record: ExportRecord, *, base_template: bool) -> list[str]:
    """Describes the files of an export, a line for each. base_template: the model that the run started from
    has a chat template, which the run did not use unless model.chat is true."""
    prompts = record.prompts
    texts = {"system prompt": prompts.system, "action prefix": prompts.action_prefix}
    if not prompts.chat:
        del texts["system prompt"]
        texts = {"observation prefix": prompts.observation_prefix, **texts}
    shown = ", ".join(f"{name} {_quoted(text)}" for name, text in texts.items() if text)
    if prompts.chat:
        lines = [f"chat_template.jinja: {shown or 'no system prompt, no action prefix'}"]
    else:
        which = "the base model's chat_template.jinja" if base_template else "no chat_template.jinja"
        lines = [f"{which}: the run has model.chat = false, {shown or 'no prefixes'}"]
    stops = ", ".join(map(_quoted, record.stop_tokens)) or "no token"
    if texts := record.prompts.stop_texts:
        stops += f" (and not at the texts {', '.join(map(_quoted, texts))}, which requests have to name)"
    filters = "".join(f"{name} {value:g}, " for name, value in record.filters.items())
    lines.append(
        f"generation_config.json: stops at {stops}, temperature {record.temperature:g}, {filters}"
        f"at most {record.max_new_tokens} new tokens"
    )
    evaluation = evaluation_text(record) or "no evaluation of this version"
    lines.append(f"README.md, earl.json: {record.run}, version {record.version}, {evaluation}")
    return [visible(line) for line in lines]


def evaluation_text(record: ExportRecord) -> str:
    """The figures of the evaluation with their 95 % intervals; "" if there was none."""
    figures = record.evaluation
    if not figures:
        return ""
    parts = []
    # Elsewhere a reward is a score, and there is no win rate.
    if has_winners((), figures.get("metrics", ())):
        parts.append("win rate " + _figure(figures, "win_rate"))
    parts.append("reward " + _figure(figures, "mean_reward"))
    note = " (95 % interval)" if "mean_reward_low" in figures else ""
    return ", ".join(parts) + f" over {figures.get('done', 0)} episodes{note}"


def _figure(figures: Mapping[str, Any], name: str) -> str:
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    bounds = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{figures[name]:.2f}{bounds}"


def _chat(record: ExportRecord) -> str:
    prompts = record.prompts
    text = _block("System prompt, unless the messages have one:", prompts.system, "no system prompt")
    text += _block("Action prefix, after the generation prompt:", prompts.action_prefix, "no action prefix")
    return text + _USE + (_PREFIX if prompts.action_prefix else "")


def _plain(record: ExportRecord) -> str:
    prompts = record.prompts
    parts = [prompts.observation_prefix and _code(prompts.observation_prefix), "the observation"]
    parts.append(prompts.action_prefix and _code(prompts.action_prefix))
    return _PLAIN.format(parts=" + ".join(part for part in parts if part))


def _block(title: str, text: str, none: str) -> str:
    if not text:
        return f"The run has {none}.\n\n"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{title}\n\n{fence}text\n{text}\n{fence}\n\n"


def _code(text: str) -> str:
    """A text as code on one line."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    edge = " " if "`" in text else ""
    return f"{fence}{edge}{_line(text)}{edge}{fence}"


def _cell(text: str) -> str:
    """A text as code in a table."""
    return _code(text).replace("|", r"\|")


def _line(text: str) -> str:
    return " ".join(text.splitlines())


def _quoted(text: str) -> str:
    short = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return json.dumps(short, ensure_ascii=False)
