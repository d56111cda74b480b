"""The fragments of a run's algorithm, what they need, and the objective of a micro-batch that they make.

    loss     ratio, advantage ─► a token's loss                     trainer.loss
    weight   trainer / engine ─► how much it counts                 trainer.importance
    credit   a trajectory's scalar, values ─► tokens' advantages    trainer.credit

The step asks what is needed, never which algorithm it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from earl.config.run import RunConfig
from earl.fragments.credit import CREDITS, needs_values
from earl.fragments.lookup import load_fragment
from earl.fragments.losses import LOSSES, clip, needs_sequences
from earl.fragments.weights import WEIGHTS, needs_trajectories
from earl.parallelism import REFERENCE, TEACHER
from services.trainer.model import losses
from services.trainer.model.optimizer import decay
from services.trainer.model.teacher import TeacherTerm
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.step.batch import MicroBatch
from services.trainer.step.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class Prepared:
    """Columns that are made of a batch before its first optimizer step, float32[total tokens] each, 0 where
    nothing is trained.

    advantages: of each token. start: the trainer's log-probs then; None: those of the step are these. values,
    returns: the critic's then, and what it is to learn; None without one.
    """

    advantages: np.ndarray
    start: np.ndarray | None = None
    values: np.ndarray | None = None
    returns: np.ndarray | None = None


# Imitation needs no column: its log-probs alone count.
NOTHING_PREPARED = Prepared(np.zeros(0, np.float32))


class Algorithm:
    """The algorithm of a run file. Raises ConfigError for a fragment that cannot be had."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        trainer = config.trainer
        self._loss = load_fragment("trainer.loss", trainer.loss, LOSSES)
        self.credit = load_fragment("trainer.credit", trainer.credit, CREDITS)
        self._weight = None
        if trainer.importance != "behaviour":
            self._weight = load_fragment("trainer.importance", trainer.importance, WEIGHTS)

    @property
    def has_critic(self) -> bool:
        return needs_values(self.credit)

    @property
    def to_correct(self) -> str:
        """The end of a remedy that names the functions of the user's own; "" if there are none."""
        trainer = self._config.trainer
        named = {"loss": LOSSES, "importance": ("behaviour", *WEIGHTS), "credit": CREDITS}
        users = [
            f"trainer.{key} = {getattr(trainer, key)!r}"
            for key, known in named.items()
            if getattr(trainer, key) not in known
        ]
        return f", or correct {' and '.join(users)}" if users else ""

    @property
    def needs_start(self) -> bool:
        """Returns whether ratios are taken to the trainer's log-probs at the start of the batch."""
        return self._weight is not None

    def objective(
        self,
        micro: MicroBatch,
        outputs: tuple[torch.Tensor, ...],
        prepared: Prepared,
        plan: TrainingPlan,
        shares: torch.Tensor,
        mesh: RankMesh,
    ) -> losses.Objective:
        """The objective of a micro-batch's trained tokens. A collective of the ranks of its replica.

        outputs: the policy's, of these tokens. plan: of the batch. shares: as losses.policy_gradient has it.
        Raises FragmentError.
        """
        logprobs, entropy, *values = outputs
        trainer, device = self._config.trainer, logprobs.device

        def column(array: np.ndarray) -> torch.Tensor:
            """float32[N]: what a column has for the tokens; 0 for one that counts nothing."""
            if not len(micro.column_places):
                return torch.zeros_like(logprobs, requires_grad=False)
            return torch.from_numpy(array[micro.column_places]).to(device)

        behaviour = torch.from_numpy(micro.behaviour).to(device)
        start = None
        if prepared.start is not None and len(micro.column_places):
            start = column(prepared.start)
        critic = None
        if values and prepared.values is not None and prepared.returns is not None:
            critic = losses.CriticTokens(values[0], column(prepared.values), column(prepared.returns))
        # Without a reference no token here is of a protected environment. What counts nothing always has one.
        roles = {role: torch.from_numpy(values).to(device) for role, values in micro.roles.items()}
        protects = trainer.protected_kl > 0.0 and REFERENCE in roles
        now = logprobs.detach() if start is None else start
        of_sequence, of_trajectory = None, None
        if needs_sequences(self._loss):
            old = behaviour if self._weight is None else now
            sums, counts = sequence_sums(micro, logprobs.detach() - old, mesh)
            of_sequence = sums / counts.clamp(min=1.0)
        if self._weight is not None and needs_trajectories(self._weight):
            of_trajectory = sequence_sums(micro, now - behaviour, mesh)[0].exp()
        return losses.policy_gradient(
            logprobs,
            entropy,
            behaviour,
            column(prepared.advantages),
            torch.from_numpy(micro.weights).to(device),
            self._settings(plan, counts=len(micro.column_places) > 0),
            reference=roles.get(REFERENCE),
            start=start,
            shares=shares,
            protected_kl=torch.from_numpy(micro.protected_kl).to(device) if protects else None,
            sequence_log_ratio=of_sequence,
            trajectory_ratio=of_trajectory,
            critic=critic,
            teacher=roles.get(TEACHER) if plan.teacher_weight > 0.0 else None,
        )

    def _settings(self, plan: TrainingPlan, *, counts: bool) -> losses.PolicyGradient:
        """counts: whether the tokens do; what counts nothing is no token of a user's fragments."""
        trainer, teacher = self._config.trainer, self._config.teacher
        weight = self._weight
        return losses.PolicyGradient(
            clip_low=trainer.clip_low,
            clip_high=trainer.clip_high,
            entropy_coefficient=trainer.entropy_coefficient
            * decay(plan.progress, trainer.entropy_final_fraction),
            kl_coefficient=trainer.kl_coefficient,
            importance_cap=trainer.importance_cap,
            importance_floor=trainer.importance_floor,
            loss_name=trainer.loss,
            loss=self._loss if counts else clip,
            dual_clip=trainer.dual_clip,
            weight_name=trainer.importance,
            weight=weight if counts or weight is None else WEIGHTS["decoupled"],
            kl_estimator=trainer.kl_estimator,
            value_coefficient=trainer.value_coefficient,
            value_clip=trainer.value_clip,
            teacher=TeacherTerm(plan.teacher_weight * teacher.coefficient, teacher.form, teacher.rewards),
        )


def sequence_sums(
    micro: MicroBatch, values: torch.Tensor, mesh: RankMesh
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[N] each: for each token, the sum of `values` over the trained tokens of its sequence, and how
    many these are. A collective of the ranks of this replica, each of which has some of them."""
    # What counts nothing is of no sequence.
    counted = torch.full_like(values, float(len(micro.column_places) > 0))
    sequence = torch.from_numpy(micro.sequence).to(values.device)
    sums = torch.zeros(len(micro.lengths), 2, device=values.device)
    sums.index_add_(0, sequence, torch.stack((values * counted, counted), 1))
    if mesh.tensor.size * mesh.context.size > 1:
        sums = mesh.sum_in_replica(sums.cpu()).to(values.device)
    return sums[:, 0][sequence], sums[:, 1][sequence]
