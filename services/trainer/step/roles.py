"""Checks that a batch has the log-probs of frozen policies that its loss needs."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.errors import TrainerError
from earl.parallelism import REFERENCE, TEACHER
from services.trainer.step.batch import Columns
from services.trainer.step.plan import TrainingPlan


def check_roles(config: RunConfig, plan: TrainingPlan, columns: Columns) -> None:
    """Raises TrainerError for a batch of policy gradient whose sequences lack a column that they need."""
    trainer, roles = config.trainer, columns.roles
    if REFERENCE not in roles and _wants_reference(config, columns):
        raise TrainerError(
            f"batch {plan.batch_id} came without reference log-probs, and kl_coefficient is "
            f"{trainer.kl_coefficient}, protected_kl {trainer.protected_kl}",
            "run scheduler, reference stage and trainer from one run file",
        )
    if TEACHER not in roles and plan.teacher_weight > 0.0 and columns.trained_tokens().any():
        raise TrainerError(
            f"batch {plan.batch_id} came without the teacher's log-probs, and its weight is "
            f"{plan.teacher_weight}",
            "run scheduler, teacher and trainer from one run file",
        )


def _wants_reference(config: RunConfig, columns: Columns) -> bool:
    """Returns whether the loss of these sequences has a KL to the reference policy."""
    if config.trainer.kl_coefficient > 0.0:
        return bool(columns.items)
    trained = columns.trained_tokens()
    return any(item.protected_kl > 0.0 and trained[i] for i, item in enumerate(columns.items))
