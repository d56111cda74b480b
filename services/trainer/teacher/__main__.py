"""`python -m services.trainer.teacher --run FILE [--name NAME]`: the teacher's stage, or a rank of it."""

from __future__ import annotations

import sys

from earl.parallelism import TEACHER
from services.trainer.rank_process import stage_main

if __name__ == "__main__":
    sys.exit(stage_main(TEACHER, "services.trainer.teacher", __doc__))
