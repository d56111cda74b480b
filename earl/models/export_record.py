"""earl.json of an exported directory: the run, and how it prompted, stopped and judged the policy.

transformers and inference engines do not read it; they have chat_template.jinja and generation_config.json.
EARL reads it to prompt an exported model as its run did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from earl.config.model import ModelConfig
from earl.config.sampling_filters import SamplingFilters
from earl.errors import ModelNotFound

FILE = "earl.json"
# The keys of [model] that decide which tokens the policy reads and where its answers end.
PROMPT_KEYS = frozenset({"chat", "system", "observation_prefix", "action_prefix", "stop", "stop_texts"})
# The keys of an environment that decide what is played, and how it is prompted.
RECORDED = frozenset(
    {"name", "label", "task", "tasks", "system", "max_turns", "max_new_tokens", "max_context_tokens"}
)


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """The record of one exported version of a run's policy."""

    run: str
    version: int
    # The model that the run started from; empty: random weights.
    base: str
    # What the run played, as the report calls it, and its task; {} if it played several environments.
    environment: str
    task: Mapping[str, Any]
    # PROMPT_KEYS of the run file.
    model: Mapping[str, Any]
    # End-of-sequence ids of the model that the run started from.
    eos_token_ids: tuple[int, ...]
    # Every token that ended an answer in the run: of the model, of its chat template, and model.stop.
    stop_token_ids: tuple[int, ...]
    stop_tokens: tuple[str, ...]
    # The sampling temperature of evaluations.
    temperature: float
    training_temperature: float
    max_new_tokens: int
    # Figures of this version's last evaluation, as evaluations.jsonl has them; empty if there was none.
    evaluation: Mapping[str, Any]
    # RECORDED of each environment; empty in a record of an earlier version, which had one.
    environments: tuple[Mapping[str, Any], ...] = ()
    # The filters of evaluations that filter something, by name; empty in a record of an earlier version.
    filters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompts(self) -> ModelConfig:
        """[model] of a run file that prompts as this run did."""
        return ModelConfig.model_validate(self.model)

    def encode(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_record(directory: str | Path) -> ExportRecord | None:
    """The record of an exported directory; None if the model was not exported by EARL.

    Raises ModelNotFound if its file cannot be read.
    """
    file = Path(directory) / FILE
    if not file.is_file():
        return None
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        values = {"environments": (), "filters": {}, **written}
        values = {part.name: values[part.name] for part in fields(ExportRecord)}
        for name in ("eos_token_ids", "stop_token_ids", "stop_tokens", "environments"):
            values[name] = tuple(values[name])
        record = ExportRecord(**values)
        ModelConfig.model_validate(record.model)
        SamplingFilters(**record.filters)
        return record
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelNotFound(f"{file} cannot be read: {error}", "export the model again") from None
