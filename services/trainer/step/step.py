"""One batch: mini-batches, each one optimizer step over all ranks, each of them packed micro-batches.

    where they are needed: log-probs and values of all sequences, before anything changes (no gradients)
                           ─► the advantage of every token
    for pass · for mini-batch:  count over ranks ─► micro-batches: forward, loss, backward (gradients add
                                up, FSDP2 sums them over ranks) ─► norm, clip ─► AdamW

Promise: the gradient of a mini-batch is that of all its sequences in one piece, whatever the parallelism
and the number of micro-batches; what is not finite raises TrainerError before any parameter changes.
Ranks of one replica go through the same micro-batches; each counts its own part of the trained tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from earl.config.run import RunConfig
from earl.errors import TrainerError
from earl.parallelism import TRAINER
from services.trainer.model import losses
from services.trainer.model.optimizer import AdamW, decay, ramp
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.process_group import Group
from services.trainer.step.algorithm import NOTHING_PREPARED, Algorithm, Prepared
from services.trainer.step.batch import EMPTY, Columns, MicroBatch, build, minibatches
from services.trainer.step.credit import credit_columns, explained_variance, whitened
from services.trainer.step.microbatch_bound import MicrobatchBound
from services.trainer.step.paced_pass import PacedPass
from services.trainer.step.plan import TrainingPlan
from services.trainer.step.prefix_packing import Bin, bins
from services.trainer.step.roles import check_roles

T = TypeVar("T")

KL_BEHAVIOUR = losses.STAT_NAMES.index("kl_behaviour")
# Metrics that compare the policy that a batch starts with to the engine.
OF_THE_START = ("logprob_mismatch", "logprob_mismatch_kl", "truncated_fraction")


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One optimizer step. bins: micro-batches of this replica, as indices into its columns' items.

    micro_batches, trained_tokens, trained_sequences: over all ranks (the most, the sums). capacity: tokens of
    a micro-batch on one rank that it was packed for.
    """

    bins: list[Bin]
    micro_batches: int
    trained_tokens: int
    trained_sequences: int
    capacity: int

    @property
    def chosen(self) -> list[int]:
        """The sequences of this replica."""
        return [index for packed in self.bins for index in packed.chosen]


class Stepper:
    """Holds what a step changes: parameters, moments, and the count of updates.

    temperature: the sampler's, by which logits are divided for the policy gradient.
    updates: the count to continue from, with moments that the caller fills in.
    """

    def __init__(self, policy: ShardedPolicy, config: RunConfig, *, updates: int = 0) -> None:
        self.policy = policy
        self.mesh = policy.mesh
        self.group = policy.mesh.group
        self.config = config
        trainer = config.trainer
        self.optimizer = AdamW(policy.shards, trainer.betas, trainer.weight_decay, updates, trainer.epsilon)
        self._algorithm = Algorithm(config)
        self._paced = PacedPass(config, TRAINER, policy.mesh.parallelism)
        self._bound = MicrobatchBound(
            "trainer.microbatch_tokens",
            trainer.pass_tokens,
            "set trainer.activation_checkpointing = true, or use more ranks",
        )

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a micro-batch: fewer than the run file's after a step that found no memory."""
        return self._bound.tokens

    def train(
        self, plan: TrainingPlan, columns: Columns, progressed: Callable[[float], None] = lambda _: None
    ) -> dict[str, float]:
        """Trains one batch; returns its metrics, equal on every rank. Raises TrainerError, and OutOfMemory if
        there is none for the smallest micro-batches, or on one of several ranks.

        progressed: gets the part of the micro-batches that are done, 0..1, after each of them.
        """
        self._paced.begin()
        paced, late = self._paced.count.steps, self._paced.count.late
        self._paced.check(len(columns.items), int(columns.offsets[-1]))
        if plan.first_of_phase:
            self.optimizer.reset()
        imitates = plan.objective == "imitate"
        trainer = self.config.trainer
        if not imitates:
            check_roles(self.config, plan, columns)
        phase = self.config.warmup if imitates else trainer
        batch = self._minibatches(plan, columns, phase.passes, phase.minibatches)
        steps = [mini for mini in batch if mini.trained_tokens]
        prepared = NOTHING_PREPARED if imitates else self._prepare(plan, columns, len(steps))
        tally = Tally()
        done, total = itertools.count(1), sum(mini.micro_batches for mini in steps)
        stopped = False
        for mini in steps:
            lr = phase.lr * decay(plan.progress, phase.lr_final_fraction)
            lr *= ramp(self.optimizer.updates, phase.lr_warmup_steps)
            compute = partial(
                self._gradient, plan, columns, mini, prepared, tally,
                lambda: progressed(min(1.0, next(done) / total)),
            )  # fmt: skip
            stats, norm = self._within_memory(columns, mini.chosen, compute)
            # The policy has left the one that sampled: the rest of the batch would mislead it.
            stopped = not imitates and 0.0 < trainer.kl_limit < stats[KL_BEHAVIOUR]
            if stopped:
                self.policy.clear_gradients()
            else:
                self.optimizer.step(lr, norm, trainer.max_grad_norm)
            self._paced.wait(len(mini.chosen), sum(columns.items[i].total_tokens for i in mini.chosen))
            if stopped:
                break
        metrics = tally.metrics(self.group, whole=prepared.start is not None)
        metrics["kl_stopped"] = float(stopped)
        metrics |= self._critic_metrics(columns, prepared, metrics.pop("value_loss"))
        if self._paced.active:
            count = self._paced.count
            sums = self.group.sum(torch.tensor([count.steps - paced, count.late - late])).tolist()
            metrics["paced_passes"], metrics["late_passes"] = map(float, sums)
        if self.config.teacher.given:
            metrics["teacher_weight"] = plan.teacher_weight
        else:
            del metrics["kl_teacher"]
        metrics["lr"] = phase.lr * decay(plan.progress, phase.lr_final_fraction)
        return metrics

    def logprobs(
        self, columns: Columns, temperature: float, blocks: Sequence[int] | None = None
    ) -> np.ndarray:
        """float32[total tokens]: trained tokens' log-probs under the policy as it is now; 0 elsewhere.

        blocks: the numbers of those that are computed; None: all. A collective.
        """
        return self._outputs(columns, temperature, blocks)[0]

    def _outputs(
        self, columns: Columns, temperature: float, blocks: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """Log-probs as `logprobs` has them; with a critic the values of the same tokens too."""
        trained = columns.trained_tokens()
        packed = self._bins(columns, np.flatnonzero(trained).tolist())
        most = int(self.group.max(torch.tensor([len(packed)]))[0])
        made = np.zeros((2 if self._algorithm.has_critic else 1, int(columns.offsets[-1])), np.float32)
        with torch.no_grad():
            for index in range(most):
                whole = build(columns, packed[index], "token", 1, 1) if index < len(packed) else EMPTY
                micro = whole.of(self.mesh.tensor, self.mesh.context)
                logprobs, _, *values = self._forward(micro, temperature, blocks)
                places = micro.column_places
                for row, output in zip(made, (logprobs, *values), strict=True):
                    row[places] = output[: len(places)].cpu().numpy()
        self.policy.reshard()
        self.mesh.sum_in_replica(torch.from_numpy(made))
        return list(made)

    def _prepare(self, plan: TrainingPlan, columns: Columns, steps: int) -> Prepared:
        """Columns of the batch before its first optimizer step, of so many. Raises FragmentError."""
        algorithm, start, values = self._algorithm, None, None
        if algorithm.has_critic or (algorithm.needs_start and steps > 1):
            chosen = np.flatnonzero(columns.trained_tokens()).tolist()
            temperature = self._temperature(plan)
            outputs = self._within_memory(columns, chosen, lambda: self._outputs(columns, temperature))
            if not self.group.agree(all(np.isfinite(output).all() for output in outputs)):
                raise TrainerError(
                    f"batch {plan.batch_id} of version {plan.version}: log-probs or values are not finite",
                    "nothing was committed; lower trainer.lr or resume from an earlier checkpoint",
                )
            start = outputs[0] if algorithm.needs_start else None
            values = outputs[1] if algorithm.has_critic else None
        credit = credit_columns(columns, algorithm.credit, self.config.trainer, values)
        advantages = credit.advantages
        if values is not None:
            advantages = whitened(advantages, columns.loss_mask, self.mesh)
        return Prepared(advantages, start, values, credit.returns)

    def _critic_metrics(self, columns: Columns, prepared: Prepared, loss: float) -> dict[str, float]:
        """Figures of the critic before the batch changed it; nothing without one. A collective with one."""
        if prepared.values is None or prepared.returns is None:
            return {}
        explained = explained_variance(prepared.returns, prepared.values, columns.loss_mask, self.mesh)
        return {"value_loss": loss, "explained_variance": explained}

    def _minibatches(self, plan: TrainingPlan, columns: Columns, passes: int, count: int) -> list[MiniBatch]:
        """Every optimizer step of the batch, in order; one agreement over ranks for all of them."""
        trained = columns.trained_tokens()
        packed: list[list[Bin]] = []
        sums = np.zeros((passes * count, 2), np.int64)
        for p in range(passes):
            for chosen in minibatches(plan, self.mesh.replica, count, p, self.config.seed):
                # Sequences without a trained token would cost a forward pass and count nothing.
                useful = [i for i in chosen if trained[i]]
                if self.mesh.counts:
                    sums[len(packed)] = trained[useful].sum(), len(useful)
                packed.append(self._bins(columns, useful))
        self.group.sum(torch.from_numpy(sums))
        most = self.group.max(torch.tensor([len(step_bins) for step_bins in packed])).tolist()
        return [
            MiniBatch(step_bins, int(most[k]), int(sums[k, 0]), int(sums[k, 1]), self.microbatch_tokens)
            for k, step_bins in enumerate(packed)
        ]

    def _bins(self, columns: Columns, chosen: Sequence[int]) -> list[Bin]:
        trainer = self.config.trainer
        of = (columns.tokens_of, columns.trained_from)
        # cp ranks share a forward pass.
        capacity = self.microbatch_tokens * self.mesh.parallelism.cp
        return bins(chosen, *of, capacity, share=trainer.share_prefixes)

    # --- memory -------------------------------------------------------------------------------

    def _within_memory(self, columns: Columns, chosen: Sequence[int], compute: Callable[[], T]) -> T:
        """Returns what `compute` does, if need be with smaller micro-batches of these sequences.

        Raises OutOfMemory, see `train`.
        """
        return self._bound.within_memory(compute, lambda: len(self._bins(columns, chosen)), self._recover)

    def _recover(self) -> bool:
        # With several ranks, the others wait for this one within the step.
        return self.group.size == 1 and self.policy.recover()

    def _repacked(self, columns: Columns, mini: MiniBatch) -> MiniBatch:
        """The mini-batch, packed anew if micro-batches have become smaller since; that happens on one rank
        alone."""
        if mini.capacity == self.microbatch_tokens:
            return mini
        packed = self._bins(columns, mini.chosen)
        return replace(mini, bins=packed, micro_batches=len(packed), capacity=self.microbatch_tokens)

    # --- gradients ----------------------------------------------------------------------------

    def _gradient(
        self, plan: TrainingPlan, columns: Columns, mini: MiniBatch, prepared: Prepared, tally: Tally,
        after_each: Callable[[], None],
    ) -> tuple[np.ndarray, float]:  # fmt: skip
        """Forward and backward of one optimizer step: (stats over all ranks, norm of the gradient).

        after_each: is called after each micro-batch.
        """
        device = self.group.device
        totals = torch.zeros(len(losses.STAT_NAMES), dtype=torch.float32, device=device)
        largest = torch.zeros((), device=device)
        trainer = self.config.trainer
        length = self.config.loss_tokens
        # Imitation has no sequence too long to count fully.
        whole = plan.objective == "imitate" and trainer.loss_mean == "constant"
        mean = "token" if whole else trainer.loss_mean
        self.policy.clear_gradients()
        mini = self._repacked(columns, mini)
        for index in range(mini.micro_batches):
            whole = EMPTY
            if index < len(mini.bins):
                sums = (mini.trained_tokens, mini.trained_sequences)
                whole = build(columns, mini.bins[index], mean, *sums, length)
            micro = whole.of(self.mesh.tensor, self.mesh.context)
            share = 1.0 / mini.trained_tokens if len(micro.column_places) else 0.0
            objective = self._objective(plan, micro, prepared, share)
            objective.loss.backward()
            totals += objective.stats
            largest = torch.maximum(largest, objective.mismatch_max)
            after_each()
        stats = self.group.sum(totals.double().cpu()).numpy()
        norm = self.optimizer.gradient_norm(self.group)
        if not (math.isfinite(stats[0]) and math.isfinite(norm)):
            self.policy.clear_gradients()
            raise TrainerError(
                f"batch {plan.batch_id} of version {plan.version}: loss {stats[0]}, gradient norm {norm}",
                "nothing was committed; lower trainer.lr or resume from an earlier checkpoint"
                + self._algorithm.to_correct,
            )
        tally.add(stats, norm, largest)
        return stats, norm

    def _temperature(self, plan: TrainingPlan) -> float:
        """Greedy sampling records log-probs of the plain distribution."""
        return 1.0 if plan.objective == "imitate" else self.config.scheduler.temperature or 1.0

    def _forward(
        self, micro: MicroBatch, temperature: float, blocks: Sequence[int] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """(log-probs, entropy), with a critic (.., .., values), of the micro-batch's trained tokens."""
        tokens, positions = self._on_device(micro.tokens), self._on_device(micro.positions)
        source, targets = self._on_device(micro.source), self._on_device(micro.targets)
        return self.policy(
            tokens, positions, micro.lengths, source, targets, temperature, micro.shared, blocks
        )

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.group.device)

    def _objective(
        self, plan: TrainingPlan, micro: MicroBatch, prepared: Prepared, share: float
    ) -> losses.Objective:
        weights = self._on_device(micro.weights)
        shares = torch.full_like(weights, share)
        outputs = self._forward(micro, self._temperature(plan))
        if plan.objective == "imitate":
            logprobs, entropy, *_ = outputs
            return losses.imitation(logprobs, entropy, weights, shares)
        return self._algorithm.objective(micro, outputs, prepared, plan, shares, self.mesh)


class Tally:
    """Statistics of the optimizer steps of one batch."""

    def __init__(self) -> None:
        self._stats: list[np.ndarray] = []
        self._norms: list[float] = []
        self._largest: list[torch.Tensor] = []

    def add(self, stats: np.ndarray, norm: float, largest: torch.Tensor) -> None:
        """Counts one optimizer step. stats: sums over all ranks. largest: this rank's mismatch_max."""
        self._stats.append(stats)
        self._norms.append(norm)
        self._largest.append(largest)

    def metrics(self, group: Group, *, whole: bool) -> dict[str, float]:
        """Means over the steps. A collective.

        What compares with the engine is taken before this batch changed anything: of the first step, or of
        all if each had the log-probs of the start (whole).
        """
        if not self._stats:
            named = dict.fromkeys((*losses.STAT_NAMES, "grad_norm"), 0.0)
            return named | {"logprob_mismatch_max": 0.0}
        means = np.mean(self._stats, axis=0)
        metrics = dict(zip(losses.STAT_NAMES, means.tolist(), strict=True))
        largest = torch.stack(self._largest).cpu()
        if not whole:
            first = dict(zip(losses.STAT_NAMES, self._stats[0].tolist(), strict=True))
            metrics |= {name: first[name] for name in OF_THE_START}
            largest = largest[:1]
        metrics["logprob_mismatch_max"] = float(group.max(largest).max())
        metrics["grad_norm"] = float(np.mean(self._norms))
        return metrics
