"""`python -m services.trainer --run FILE [--name NAME]`: the trainer, or a rank under torchrun."""

from __future__ import annotations

import sys

from earl.parallelism import TRAINER
from services.trainer.rank_process import stage_main

if __name__ == "__main__":
    sys.exit(stage_main(TRAINER, "services.trainer", __doc__))
