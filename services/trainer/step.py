"""One batch: mini-batches, each one optimizer step over all ranks, each of them packed micro-batches.

    for pass · for mini-batch:  count over ranks ─► micro-batches: forward, loss, backward (gradients add
                                up, FSDP2 sums them over ranks) ─► norm, clip ─► AdamW

Promise: the gradient of a mini-batch is that of all its sequences in one piece, whatever the number
of ranks and micro-batches; what is not finite raises TrainerError before any parameter changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from earl.config.run import RunConfig
from earl.errors import TrainerError
from services.trainer import losses
from services.trainer.batch import EMPTY, Columns, MicroBatch, build, cut_minibatches, pack
from services.trainer.group import Group
from services.trainer.optimizer import AdamW, decay, ramp
from services.trainer.parallel import Policy
from services.trainer.plan import Plan

KL_BEHAVIOUR = losses.STAT_NAMES.index("kl_behaviour")


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One optimizer step. chosen: micro-batches of this rank, as indices into its columns' items.

    micro_batches, trained_tokens, trained_sequences: over all ranks (the most, the sums).
    """

    chosen: list[list[int]]
    micro_batches: int
    trained_tokens: int
    trained_sequences: int


class Stepper:
    """Holds what a step changes: parameters, moments, and the count of updates.

    temperature: the sampler's, by which logits are divided for the policy gradient.
    """

    def __init__(self, policy: Policy, group: Group, config: RunConfig) -> None:
        self.policy = policy
        self.group = group
        self.config = config
        trainer = config.trainer
        self.optimizer = AdamW(policy.shards, trainer.betas, trainer.weight_decay)
        # The policy that reinforcement learning started from; kept only where its KL is wanted.
        self.reference: Policy | None = None

    def train(self, plan: Plan, columns: Columns) -> dict[str, float]:
        """Train one batch; returns its metrics, equal on every rank. Raises TrainerError."""
        if plan.first_of_phase:
            self.optimizer.reset()
        imitates = plan.objective == "imitate"
        trainer = self.config.trainer
        if not imitates and trainer.kl_coefficient > 0.0 and (plan.first_of_phase or self.reference is None):
            self.keep_reference()
        phase = self.config.warmup if imitates else trainer
        stats = np.zeros(len(losses.STAT_NAMES))
        norms: list[float] = []
        first: np.ndarray | None = None
        stopped = False
        for mini in self._minibatches(plan, columns, phase.passes, phase.minibatches):
            if not mini.trained_tokens:
                continue
            lr = phase.lr * decay(plan.progress, phase.lr_final_fraction)
            lr *= ramp(self.optimizer.updates, phase.lr_warmup_steps)
            part, norm = self._gradient(plan, columns, mini)
            first = part if first is None else first
            stats += part
            norms.append(norm)
            if not imitates and 0.0 < trainer.kl_limit < part[KL_BEHAVIOUR]:
                # The policy has left the one that sampled: the rest of the batch would mislead it.
                self.policy.clear_gradients()
                stopped = True
                break
            self.optimizer.step(lr, norm, trainer.max_grad_norm)
        means = (stats / max(1, len(norms))).tolist()
        metrics = dict(zip(losses.STAT_NAMES, means, strict=True))
        if first is not None:
            # Against what the engine recorded, before this batch changed anything.
            metrics["logprob_mismatch"] = float(first[losses.STAT_NAMES.index("logprob_mismatch")])
        metrics["kl_stopped"] = float(stopped)
        metrics["grad_norm"] = float(np.mean(norms)) if norms else 0.0
        metrics["lr"] = phase.lr * decay(plan.progress, phase.lr_final_fraction)
        return metrics

    def keep_reference(self) -> None:
        """The policy as it is now becomes the one that the KL is measured against."""
        if self.reference is None:
            self.reference = Policy(self.policy.spec, self.group, self.config.model.dtype, frozen=True)
        self.reference.copy_from(self.policy)

    def _minibatches(self, plan: Plan, columns: Columns, passes: int, count: int) -> list[MiniBatch]:
        """Every optimizer step of the batch, in order; one agreement over ranks for all of them."""
        lengths = [item.total_tokens for item in columns.items]
        trained = columns.trained_tokens()
        capacity = self.config.trainer.microbatch_tokens
        packed: list[list[list[int]]] = []
        sums = np.zeros((passes * count, 2), np.int64)
        for p in range(passes):
            for chosen in cut_minibatches(plan, self.group.rank, count, p, self.config.seed):
                # Sequences without a trained token would cost a forward pass and count nothing.
                useful = [i for i in chosen if trained[i]]
                sums[len(packed)] = trained[useful].sum(), len(useful)
                packed.append([[useful[i] for i in b] for b in pack([lengths[i] for i in useful], capacity)])
        self.group.sum(torch.from_numpy(sums))
        most = self.group.max(torch.tensor([len(bins) for bins in packed])).tolist()
        return [
            MiniBatch(bins, int(most[k]), int(sums[k, 0]), int(sums[k, 1])) for k, bins in enumerate(packed)
        ]

    def _gradient(self, plan: Plan, columns: Columns, mini: MiniBatch) -> tuple[np.ndarray, float]:
        """Forward and backward of one optimizer step: (stats over all ranks, norm of the gradient)."""
        totals = torch.zeros(len(losses.STAT_NAMES), dtype=torch.float32, device=self.group.device)
        self.policy.clear_gradients()
        for index in range(mini.micro_batches):
            if index < len(mini.chosen):
                micro = build(
                    columns,
                    mini.chosen[index],
                    self.config.trainer.loss_mean,
                    mini.trained_tokens,
                    mini.trained_sequences,
                )
            else:
                micro = EMPTY
            objective = self._objective(plan, micro)
            objective.loss.backward()
            totals += objective.stats
        stats = self.group.sum(totals.double().cpu()).numpy()
        norm = self.optimizer.gradient_norm(self.group)
        if not (math.isfinite(stats[0]) and math.isfinite(norm)):
            self.policy.clear_gradients()
            raise TrainerError(
                f"batch {plan.batch_id} of version {plan.version}: loss {stats[0]}, gradient norm {norm}",
                "nothing was committed; lower trainer.lr or resume from an earlier checkpoint",
            )
        return stats, norm

    def _objective(self, plan: Plan, micro: MicroBatch) -> losses.Objective:
        device = self.group.device

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        packed = (
            on_device(micro.tokens),
            on_device(micro.positions),
            micro.lengths,
            on_device(micro.source),
            on_device(micro.targets),
        )
        weights = on_device(micro.weights)
        if plan.objective == "imitate":
            return losses.imitation(*self.policy(*packed, 1.0), weights)
        # Greedy sampling records log-probs of the plain distribution.
        temperature = self.config.scheduler.temperature or 1.0
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = self.reference(*packed, temperature)
        trainer = self.config.trainer
        settings = losses.PolicyGradient(
            trainer.clip_low,
            trainer.clip_high,
            trainer.entropy_coefficient * decay(plan.progress, trainer.entropy_final_fraction),
            trainer.kl_coefficient,
        )
        return losses.policy_gradient(
            *self.policy(*packed, temperature),
            on_device(micro.behaviour),
            on_device(micro.advantages),
            weights,
            settings,
            reference,
        )
