"""A rank of the teacher's stage: that of the reference stage, with the policy in <run>/teacher."""

from __future__ import annotations

from functools import partial

from earl.parallelism import TEACHER
from services.trainer.reference.service import serve_role

serve = partial(serve_role, TEACHER)
