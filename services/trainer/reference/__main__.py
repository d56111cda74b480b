"""`python -m services.trainer.reference --run FILE [--name NAME]`: the stage, or a rank of it."""

from __future__ import annotations

import sys

from earl.parallelism import REFERENCE
from services.trainer.rank_process import stage_main

if __name__ == "__main__":
    sys.exit(stage_main(REFERENCE, "services.trainer.reference", __doc__))
