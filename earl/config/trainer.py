"""`[trainer]`: the optimizer step, its ranks and its checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.errors import IllegalParallelism
from earl.parallelism import Parallelism

LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class TrainerConfig(ConfigSection):
    # Trainer processes: dp replicas of tp x cp ranks each.
    ranks: int = Field(default=1, ge=1)
    # Ranks that share the matrices of every block (tensor parallelism). Raise it if the model does not fit
    # into the memory of one device.
    tp: int = Field(default=1, ge=1)
    # Ranks that share sequences: each computes a part of the tokens, and in attention a part of the heads
    # (Ulysses). Raise it if the activations of long sequences do not fit.
    cp: int = Field(default=1, ge=1)
    # Where ranks compute; "auto" takes a GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # torch threads of each rank. On a CPU, ranks x threads should not exceed the cores.
    threads: int = Field(default=1, ge=1)
    # Learning rate of AdamW. About 1e-3 for a small model from scratch, 1e-6 to 1e-5 for a pretrained
    # language model.
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the run as a fraction of lr, with linear decay in between.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # Optimizer steps over which the learning rate rises linearly from 0.
    lr_warmup_steps: int = Field(default=0, ge=0)
    # Decay rates of AdamW's moments.
    betas: tuple[float, float] = (0.9, 0.99)
    # Added to the root of AdamW's second moment. Where gradients are far smaller, updates shrink with them;
    # where they are larger, updates are about lr. Raise it (1e-5 is usual in PPO) if a policy that has
    # learned its task is moved by noise.
    epsilon: float = Field(default=1e-8, gt=0)
    # Weight decay of AdamW; vectors such as norms and biases have none.
    weight_decay: float = Field(default=0.0, ge=0)
    # Gradients with a larger norm are scaled down to it.
    max_grad_norm: float = Field(default=1.0, gt=0)
    # Clipped objective (PPO): the ratio is kept above 1 - clip_low.
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    # Clipped objective (PPO): the ratio is kept below 1 + clip_high. A larger value lets rare tokens grow
    # faster (DAPO's clip-higher).
    clip_high: float = Field(default=0.2, gt=0)
    # The remaining optimizer steps of a batch are left out once the policy's KL to the one that sampled
    # exceeds this (PPO's early stopping); 0: no limit.
    kl_limit: float = Field(default=0.0, ge=0)
    # How the losses of tokens become one number: mean over tokens ("token"), mean over sequences of their
    # token means ("sequence"), or mean over sequences of their token sums divided by loss_sequence_tokens
    # ("constant", Dr. GRPO).
    loss_mean: Literal["token", "sequence", "constant"] = "token"
    # Divisor of loss_mean = "constant", in tokens; 0: rollout.max_context_tokens.
    loss_sequence_tokens: int = Field(default=0, ge=0)
    # Weight of the entropy bonus, which keeps the policy exploring; 0: none.
    entropy_coefficient: float = Field(default=0.0, ge=0)
    # Entropy bonus at the end of the run as a fraction of entropy_coefficient, with linear decay in between.
    entropy_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # How the trainer treats differences between its log-probs and the engine's. "behaviour": the ratio is
    # taken to the engine's log-probs. "truncated": the ratio is taken to the trainer's own log-probs at the
    # start of the batch, and each token is weighted by min(trainer / engine, importance_cap) (truncated
    # importance sampling). The fraction of tokens above the cap is a metric either way.
    importance: Literal["behaviour", "truncated"] = "behaviour"
    # Largest weight of a token with importance = "truncated".
    importance_cap: float = Field(default=2.0, gt=0)
    # Weight of the KL term (k3 estimator) to the policy from which reinforcement learning started; the
    # reference stage computes its log-probs. 0: there is no such stage.
    kl_coefficient: float = Field(default=0.0, ge=0)
    # Dtype of forward and backward passes; parameters, moments, log-probs and losses stay float32, and
    # versions are published in model.dtype. Empty: model.dtype. "auto": bfloat16 if the devices of trainer
    # and reference stage compute it without emulation, else float32, decided once by the machine that starts
    # the run.
    dtype: Literal["", "float32", "bfloat16", "auto"] = ""
    # Keeps only the input of each block for the backward pass and computes the rest again: less memory, about
    # a third more time.
    activation_checkpointing: bool = False
    # Rank of low-rank adapters of lora_targets, which alone are trained; 0: every parameter is trained.
    # Published and exported is the model with its adapters added.
    lora_rank: int = Field(default=0, ge=0)
    # Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
    lora_alpha: float = Field(default=32.0, gt=0)
    # Linear layers that have an adapter.
    lora_targets: list[LoraTarget] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    # Optimizer steps for each pass over a batch: it is split into so many mini-batches.
    minibatches: int = Field(default=1, ge=1)
    # How many times each batch is used. More learn more from the same episodes, further from the policy that
    # sampled them.
    passes: int = Field(default=1, ge=1)
    # Tokens of one forward pass on one rank; gradients accumulate over passes. Lower it if the trainer runs
    # out of memory. cp ranks share a pass of cp times as many: a sequence longer than one rank may take needs
    # context parallelism, and is truncated unless scheduler.selector brings it.
    microbatch_tokens: int = Field(default=16_384, ge=64)
    # Computes what sequences of a micro-batch have in common at their beginning (the prompt of their group)
    # once instead of once each; the gradients are the same sums.
    share_prefixes: bool = True
    # Steps between checkpoints; 0: only at the end. After a crash of the trainer the steps since the last one
    # are repeated.
    checkpoint_every: int = Field(default=20, ge=0)
    # Number of newest checkpoints that are kept.
    keep_checkpoints: int = Field(default=2, ge=1)
    # Memory of each rank for published weights; 0: two slots of its shards.
    arena_bytes: int = Field(default=0, ge=0)
    # host:port at which the trainer listens; port 0 takes any free one. Off loopback it needs TLS and a
    # token.
    bind: str = "127.0.0.1:0"

    @property
    def parallelism(self) -> Parallelism:
        """The parallelism with which the trainer starts. Raises IllegalParallelism."""
        if self.ranks % (self.tp * self.cp):
            raise IllegalParallelism(
                f"trainer.ranks = {self.ranks} is no multiple of trainer.tp x trainer.cp = "
                f"{self.tp} x {self.cp}",
                "give a multiple: every replica has tp x cp ranks",
            )
        return Parallelism(self.ranks // (self.tp * self.cp), self.tp, self.cp)


class ReferenceConfig(ConfigSection):
    """The reference stage: the policy that reinforcement learning started from, in its own parallelism."""

    # Replicas of the reference policy, each of tp processes; used when trainer.kl_coefficient > 0.
    dp: int = Field(default=1, ge=1)
    # Ranks of each replica (tensor parallelism).
    tp: int = Field(default=1, ge=1)
    # Where ranks compute; "auto" takes a GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # torch threads of each rank.
    threads: int = Field(default=1, ge=1)
    # Tokens of one forward pass on one rank. Lower it if the stage runs out of memory.
    microbatch_tokens: int = Field(default=16_384, ge=64)
    # Memory of each rank for log-probs that wait for the trainer; 0: what staleness + 1 batches need, and a
    # margin.
    arena_bytes: int = Field(default=0, ge=0)
    # host:port at which the stage listens; port 0 takes any free one. Off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"


class WarmupConfig(ConfigSection):
    """Imitation of uniformly random legal play, so that training starts from legal moves."""

    # Batches of imitation before reinforcement learning; 0: none. A model from scratch needs some to make
    # legal moves at all.
    batches: int = Field(default=0, ge=0)
    # Episodes of each batch of imitation.
    batch_episodes: int = Field(default=128, ge=1)
    # Learning rate of the warm-up.
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the warm-up as a fraction of its lr, with linear decay in between.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # Optimizer steps over which the learning rate rises linearly from 0.
    lr_warmup_steps: int = Field(default=0, ge=0)
    # Optimizer steps for each pass over a batch.
    minibatches: int = Field(default=1, ge=1)
    # How many times each batch is used.
    passes: int = Field(default=1, ge=1)
