"""Prints how many bytes a rollout worker's arena takes, for `earl doctor`.

`python -m services.rollout.worker.arena_size`.

The run file as JSON on standard input; {"facts", "error"} as one line of JSON on standard output.
"""

from __future__ import annotations

import json
import sys

from earl.config.run import RunConfig
from services.rollout.episode.columns import arena_bytes


def main() -> None:
    config = RunConfig.model_validate_json(sys.stdin.read())
    facts = {"arena_bytes": config.rollout.arena_bytes or arena_bytes(config, config.planned_context)}
    sys.stdout.write(json.dumps({"facts": facts, "error": None}) + "\n")


if __name__ == "__main__":
    main()
