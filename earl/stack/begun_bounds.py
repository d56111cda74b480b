"""The bounds of contexts that a run began with, which it keeps when it is resumed.

A run file that leaves them open means no bound. Before that was so, it meant 256 tokens, and the run.json of
such a run has them as if they had been asked for: they stay, because engines, model and loss were made for
them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig

# Keys by section, and what a run.json of before has that a later one has not: their former defaults.
_KEPT = {"rollout": ("max_context_tokens",), "trainer": ("microbatch_tokens",)}


def with_begun_bounds(config: RunConfig, run_json: Path | None) -> tuple[RunConfig, list[str]]:
    """The configuration with the bounds that the run file leaves open as the run began, and lines that say
    so. run_json: of the run that is resumed; None, or nothing there: nothing is changed."""
    if run_json is None or not run_json.is_file():
        return config, []
    try:
        before: dict[str, Any] = json.loads(run_json.read_bytes())
    except ValueError:
        return config, []
    began = before.get("rollout", {})
    is_of_before = bool(began) and "held_context_tokens" not in began
    bound = config.rollout.max_context_tokens
    changes: dict[str, Any] = {}
    for section, names in _KEPT.items():
        values = getattr(config, section)
        kept = {name: before.get(section, {}).get(name, 0) for name in names if not getattr(values, name)}
        changes[section] = values.model_copy(update={name: value for name, value in kept.items() if value})
    scratch = config.model.scratch
    positions = before.get("model", {}).get("scratch", {}).get("max_positions", 0)
    if not scratch.max_positions and positions:
        scratch = scratch.model_copy(update={"max_positions": positions})
        changes["model"] = config.model.model_copy(update={"scratch": scratch})
    config = config.model_copy(update=changes)
    kept_tokens = config.rollout.max_context_tokens
    if kept_tokens != bound or (is_of_before and kept_tokens == began.get("max_context_tokens")):
        return config, [
            f"contexts end at {kept_tokens:,} tokens, as when the run began: rollout.max_context_tokens "
            "changes that"
        ]
    return config, []
