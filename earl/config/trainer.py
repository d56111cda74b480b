"""`[trainer]`: the optimizer step, its ranks and its checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.errors import IllegalParallelism
from earl.parallelism import Parallelism

LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class TrainerConfig(ConfigSection):
    # Processes: replicas of tp x cp ranks each, dp of them.
    ranks: int = Field(default=1, ge=1)
    # Ranks that share every block's matrices: heads and inner columns are dealt over them.
    tp: int = Field(default=1, ge=1)
    # Ranks that share sequences: each has a part of the tokens, in attention a part of the heads (Ulysses).
    cp: int = Field(default=1, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the run, as a fraction of lr; linear decay in between.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # Optimizer steps over which the learning rate rises from nothing.
    lr_warmup_steps: int = Field(default=0, ge=0)
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    # Clipped objective: ratio kept within [1 - clip_low, 1 + clip_high].
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    # A batch's remaining optimizer steps are left out once the policy's KL to the one that sampled
    # exceeds this (PPO's early stopping); 0: no bound.
    kl_limit: float = Field(default=0.0, ge=0)
    # How token losses become one number: mean over tokens, mean over sequences of their token means, or
    # ("constant") mean over sequences of their token sums divided by loss_sequence_tokens.
    loss_mean: Literal["token", "sequence", "constant"] = "token"
    # 0: rollout.max_context_tokens.
    loss_sequence_tokens: int = Field(default=0, ge=0)
    entropy_coefficient: float = Field(default=0.0, ge=0)
    # Entropy bonus at the end of the run, as a fraction; linear decay in between.
    entropy_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # What the engine recorded against what the trainer computes for the same tokens. "behaviour": the
    # ratio is taken to the engine's log-probs. "truncated": the ratio is taken to the trainer's own
    # log-probs at the start of the batch, and each token weighs min(trainer / engine, importance_cap)
    # (truncated importance sampling). The fraction of tokens above the cap is a metric either way.
    importance: Literal["behaviour", "truncated"] = "behaviour"
    importance_cap: float = Field(default=2.0, gt=0)
    # KL to the policy that reinforcement learning started from (k3 estimator), whose log-probs the
    # reference stage computes; 0: there is no such stage.
    kl_coefficient: float = Field(default=0.0, ge=0)
    # What forward and backward compute in; parameters and moments stay float32, log-probs and losses are
    # float32, and versions are published in model.dtype. Empty: model.dtype. "auto": bfloat16
    # if the device (and the reference stage's) computes it without emulation, else float32; decided once, by
    # the machine that launches the run.
    dtype: Literal["", "float32", "bfloat16", "auto"] = ""
    # Keep only each block's input for the backward pass and compute the rest again.
    activation_checkpointing: bool = False
    # Train low-rank adapters of this rank on lora_targets and nothing else; 0: every parameter. What is
    # published and exported is the model with the adapters added to its weights.
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: float = Field(default=32.0, gt=0)
    lora_targets: list[LoraTarget] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    # Optimizer steps per batch: the batch is split into this many mini-batches...
    minibatches: int = Field(default=1, ge=1)
    # ...and gone through this often.
    passes: int = Field(default=1, ge=1)
    # Tokens of one forward pass on one rank; gradients accumulate over the passes. cp ranks share a pass of
    # cp times as many: what is longer than one rank may take needs context parallelism, and
    # is truncated where scheduler.selector does not bring it.
    microbatch_tokens: int = Field(default=16_384, ge=64)
    # Compute what sequences of a micro-batch have in common at their beginning (their group's prompt)
    # once instead of once each; gradients are the same sums.
    share_prefixes: bool = True
    # Steps between checkpoints; 0: only at the end.
    checkpoint_every: int = Field(default=20, ge=0)
    keep_checkpoints: int = Field(default=2, ge=1)
    arena_bytes: int = Field(default=0, ge=0)  # 0: two slots of this rank's shards
    bind: str = "127.0.0.1:0"

    @property
    def parallelism(self) -> Parallelism:
        """As the run starts. Raises IllegalParallelism."""
        if self.ranks % (self.tp * self.cp):
            raise IllegalParallelism(
                f"trainer.ranks = {self.ranks} is no multiple of trainer.tp x trainer.cp = "
                f"{self.tp} x {self.cp}",
                "give a multiple: every replica has tp x cp ranks",
            )
        return Parallelism(self.ranks // (self.tp * self.cp), self.tp, self.cp)


class ReferenceConfig(ConfigSection):
    """The reference stage: the policy that reinforcement learning started from, in its own parallelism."""

    # Data-parallel ranks, each of them tp processes; used when trainer.kl_coefficient > 0.
    dp: int = Field(default=1, ge=1)
    tp: int = Field(default=1, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1)
    # Tokens of one forward pass on one rank.
    microbatch_tokens: int = Field(default=16_384, ge=64)
    # Log-probs that wait for the trainer; 0: what (staleness + 1) batches need, and a margin.
    arena_bytes: int = Field(default=0, ge=0)
    bind: str = "127.0.0.1:0"


class WarmupConfig(ConfigSection):
    """Imitation of uniformly random legal play, so that training starts from legal moves."""

    batches: int = Field(default=0, ge=0)
    batch_episodes: int = Field(default=128, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the phase, as a fraction of lr; linear decay in between.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    lr_warmup_steps: int = Field(default=0, ge=0)
    minibatches: int = Field(default=1, ge=1)
    passes: int = Field(default=1, ge=1)
