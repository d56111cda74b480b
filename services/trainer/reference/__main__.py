"""`python -m services.trainer.reference --run FILE [--name NAME]`: the stage, or a rank of it."""

from __future__ import annotations

import sys

from earl.config.run import RunConfig
from services.trainer.rank_process import stage_main


def ranks_of(config: RunConfig) -> int:
    return config.reference.dp * config.reference.tp


if __name__ == "__main__":
    sys.exit(stage_main("reference", "services.trainer.reference", ranks_of, __doc__))
