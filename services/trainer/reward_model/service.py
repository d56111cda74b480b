"""A rank of the reward model's stage: that of the reference stage, with the model in <run>/reward_model."""

from __future__ import annotations

from functools import partial

from earl.parallelism import REWARD_MODEL
from services.trainer.reference.service import serve_role

serve = partial(serve_role, REWARD_MODEL)
