"""Run files of tests: the smallest that still play the real games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from earl.config.run import RunConfig

WORDS = ["x", "o", "[", "]", "0", "1", "2", "3", "4", "5", "6", "7", "8"]


def tictactoe(directory: Path, **sections: dict[str, Any]) -> RunConfig:
    """Tic-tac-toe with a Llama of a few thousand parameters: one warm-up batch, two training steps.

    sections: keys that replace the defaults here, by section, for example rollout={"engines": 2}.
    """
    run: dict[str, Any] = {
        "name": "test",
        "runs_dir": str(directory),
        "model": {
            "stop": ["]"],
            "scratch": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "layers": 1,
                "heads": 2,
                "kv_heads": 2,
                "max_positions": 128,
                "words": WORDS,
            },
        },
        "environment": {
            "name": "open_spiel/tic_tac_toe",
            "serve": "earl.env.adapters.open_spiel:environments",
            "task": {"opponent": "random", "player": 0},
        },
        "rollout": {
            "max_sequences": 16,
            "max_context_tokens": 128,
            "max_new_tokens": 4,
            "arena_bytes": 4 << 20,
        },
        "warmup": {"batches": 1, "batch_episodes": 16},
        "scheduler": {"group_size": 4, "batch_groups": 4, "steps": 2, "staleness": 0, "max_turns": 5},
        "evaluation": {"episodes": 8, "at_start": False, "at_end": True},
    }
    for section, keys in sections.items():
        run[section] = _merged(run.get(section, {}), keys)
    return RunConfig.model_validate(run)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        merged[key] = (
            _merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
        )
    return merged
