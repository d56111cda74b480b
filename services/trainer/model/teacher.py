"""The teacher's part in the loss of a trained token.

Every tensor is float32[N], one entry per trained token. The KL from policy to teacher, in tokens that the
policy sampled, is brought down in one of two ways (TeacherTerm.form):

    "advantage"  the policy gradient of KL(policy || teacher) at each token, given those before it (on-policy
                 distillation: GKD, arXiv 2306.13649; Lu, "On-Policy Distillation", Thinking Machines, 2025)
    "loss"       the gradient of the k3 estimate itself: in expectation that of KL(teacher || policy) there
                 (Tang and Munos, arXiv 2506.09477)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TeacherTerm:
    """The weight of a teacher, and the way it counts.

    coefficient: of the KL to it, 0 without one. form: "advantage" or "loss". rewards: the advantages of
    rewards count beside it.
    """

    coefficient: float = 0.0
    form: str = "advantage"
    rewards: bool = True

    def advantages(
        self, advantages: torch.Tensor, logprobs: torch.Tensor, teacher: torch.Tensor | None
    ) -> torch.Tensor:
        """Each token's advantage with the teacher's part in it, without a graph.

        The reward of a token is what the teacher's log-prob is above the policy's, and no later token's
        counts for it. Raises ValueError if the teacher's log-probs are missing.
        """
        rewarded = advantages if self.rewards else torch.zeros_like(advantages)
        if self.coefficient <= 0.0 or self.form != "advantage":
            return rewarded
        if teacher is None:
            raise ValueError("a coefficient of the teacher above 0 needs its log-probs")
        return rewarded + self.coefficient * (teacher - logprobs.detach())

    def loss(self, kl: torch.Tensor | None) -> torch.Tensor | float:
        """The part that is added to each token's loss. kl: the k3 estimate of the KL from policy to teacher.

        Raises ValueError if it is missing.
        """
        if self.coefficient <= 0.0 or self.form != "loss":
            return 0.0
        if kl is None:
            raise ValueError("a coefficient of the teacher above 0 needs its log-probs")
        return self.coefficient * kl


NO_TEACHER = TeacherTerm()
