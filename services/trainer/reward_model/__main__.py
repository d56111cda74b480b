"""`python -m services.trainer.reward_model --run FILE [--name NAME]`: the reward model, or a rank of it."""

from __future__ import annotations

import sys

from earl.parallelism import REWARD_MODEL
from services.trainer.rank_process import stage_main

if __name__ == "__main__":
    sys.exit(stage_main(REWARD_MODEL, "services.trainer.reward_model", __doc__))
