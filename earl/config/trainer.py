"""`[trainer]`: the optimizer step, its ranks and its checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.devices import Devices
from earl.config.takes import Takes
from earl.errors import IllegalParallelism
from earl.fragments.names import CREDITS, IMPORTANCE, LOSSES
from earl.parallelism import Parallelism


def _takes(names: Collection[str]) -> Takes:
    quoted = ", ".join(f'"{name}"' for name in names)
    return Takes(f'one of {quoted}, or "package.module:function"')


LeastReward = Annotated[
    Annotated[float, Field(allow_inf_nan=False)] | Literal["any"], Takes('a number, or "any"')
]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


# trainer.microbatch_tokens where it is left open.
PASS_TOKENS = 16_384


class TrainerConfig(ConfigSection):
    # Trainer processes: dp replicas of tp x cp ranks each.
    #
    # Raise it if trajectories wait for the trainer and devices or cores are free.
    ranks: int = Field(default=1, ge=1)
    # Ranks that share the matrices of every block (tensor parallelism).
    #
    # Raise it if the model does not fit into the memory of one device.
    tp: int = Field(default=1, ge=1)
    # Ranks that share sequences: each computes a part of the tokens, and in attention a part of the heads
    # (Ulysses).
    #
    # Raise it if the activations of long sequences do not fit.
    cp: int = Field(default=1, ge=1)
    # Where ranks compute; "auto" takes a GPU if there is one.
    #
    # Set "cpu" to leave the GPU to the engines, "cuda" to have a missing GPU reported instead of computing on
    # the processor.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Devices of the ranks: "auto", how many, or their numbers in a text. Without GPUs a device is a slot of
    # the processor.
    #
    # Leave it at "auto" unless other programs use some of the GPUs; "0-3" keeps the ranks to those.
    devices: Devices = "auto"
    # Directory for the ranks' parameters and moments while engines sample, with stack.share = "alternate".
    # Empty: host memory, which is where ranks on a CPU have them anyway.
    #
    # Set it to a directory on a fast disk if the machine's memory does not hold them beside the engines.
    offload_dir: str = ""
    # torch threads of each rank. 0: one on a GPU; on a CPU the machine's cores over all ranks of the run that
    # compute there, decided once by the machine that starts the run.
    #
    # Give a number if a run must be repeated bit for bit on another machine. On a CPU, ranks x threads plus
    # the engines' threads should not exceed the cores.
    threads: int = Field(default=0, ge=0)
    # Learning rate of AdamW.
    #
    # About 1e-3 for a small model from scratch, 1e-6 to 1e-5 for a pretrained language model. Lower it if
    # reward rises and then falls.
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the run as a fraction of lr, with linear decay in between.
    #
    # Lower it, to 0.1 for example, if reward is unsteady late in the run.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # Optimizer steps over which the learning rate rises linearly from 0.
    #
    # Raise it if the first steps make the policy worse: AdamW's moments are still inaccurate then.
    lr_warmup_steps: int = Field(default=0, ge=0)
    # Decay rates of AdamW's two moments, the gradient's and its square's.
    #
    # Lower the second, to 0.95 for example, in runs of few optimizer steps; raise it if gradients are noisy.
    betas: tuple[float, float] = (0.9, 0.99)
    # Added to the root of AdamW's second moment. Where gradients are far smaller, updates shrink with them;
    # where they are larger, updates are about lr.
    #
    # Raise it (1e-5 is usual in PPO) if a policy that has learned its task is moved by noise.
    epsilon: float = Field(default=1e-8, gt=0)
    # Weight decay of AdamW; vectors such as norms and biases have none.
    #
    # Raise it, to 0.01 for example, if weights grow without end in a long run.
    weight_decay: float = Field(default=0.0, ge=0)
    # Gradients with a larger norm are scaled down to it.
    #
    # Lower it if single batches with a large grad_norm make reward fall; raise it if nearly every step is
    # scaled down.
    max_grad_norm: float = Field(default=1.0, gt=0)
    # Clipped objective (PPO): the ratio is kept above 1 - clip_low.
    #
    # Lower it if the policy changes too much in a batch; raise it if hardly anything is learned with many
    # passes.
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    # Clipped objective (PPO): the ratio is kept below 1 + clip_high.
    #
    # A larger value lets rare tokens grow faster (DAPO's clip-higher): raise it, to 0.28 for example, if
    # entropy falls early.
    clip_high: float = Field(default=0.2, gt=0)
    # The fragment that makes losses of ratios and advantages (docs/algorithms.md). "clip": PPO's.
    # "dual-clip": that, bounded where advantages are negative. "cispo": the gradient of every token, its
    # ratio bounded. "gspo": the ratio of whole trajectories. Or a function of yours as
    # "package.module:function".
    #
    # Set "gspo" with loss_mean = "sequence" and a clip_low and clip_high of about 0.0003 if single tokens'
    # ratios make training unsteady; "cispo" if rare tokens that matter are clipped away.
    loss: Annotated[str, _takes(LOSSES)] = "clip"
    # Bound of a token's loss with loss = "dual-clip", in multiples of its negative advantage.
    #
    # Lower it towards 1 if steps with large losses undo what was learned.
    dual_clip: float = Field(default=3.0, gt=1)
    # The remaining optimizer steps of a batch are left out once the policy's KL to the one that sampled
    # exceeds this (PPO's early stopping); 0: no limit.
    #
    # Set it, to 0.02 for example, if many passes or mini-batches take the policy too far from its samples.
    kl_limit: float = Field(default=0.0, ge=0)
    # How the losses of tokens become one number: mean over tokens ("token"), mean over sequences of their
    # token means ("sequence"), or mean over sequences of their token sums divided by loss_sequence_tokens
    # ("constant", Dr. GRPO).
    #
    # "token" gives long answers more weight; set "sequence" to give every trajectory the same, "constant" to
    # make a token's weight independent of all lengths.
    loss_mean: Literal["token", "sequence", "constant"] = "token"
    # Divisor of loss_mean = "constant", in tokens; 0: rollout.max_context_tokens, or 256 without it.
    #
    # Set it to keep the size of updates when max_context_tokens changes; a smaller divisor makes updates
    # larger.
    loss_sequence_tokens: int = Field(default=0, ge=0)
    # The fragment that makes tokens' advantages of a trajectory's (docs/algorithms.md). "discounted": each
    # token has it, less what the discounts take. "gae": generalised advantage estimation, PPO with a critic,
    # which is a part of the trainer then; scheduler.advantage must be "reward". Or a function of yours as
    # "package.module:function".
    #
    # Set "gae" if episodes are long and groups tell little of which of their turns was good.
    credit: Annotated[str, _takes(CREDITS)] = "discounted"
    # Whether a step's reward counts at the turn that earned it. false: an episode's rewards are summed up,
    # and count at its last token. true: scheduler.advantage must be "reward" or a function of yours.
    #
    # Set true where the environment rewards single turns: none is credited then for what was earned before
    # it. A critic (credit = "gae") gains most.
    turn_rewards: bool = False
    # Factor by which a turn's advantage is smaller for each turn of its trajectory that follows; 1: all turns
    # have the same.
    #
    # Lower it, to 0.8 for example, if the last turns decide how an episode ends; where a first turn decides
    # much later ones, leave it at 1.
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    # The same for each trained token that follows; with credit = "gae", PPO's gamma.
    #
    # Lower it, to 0.99 for example, if short ways to a reward are better than long ones; it favours short
    # answers.
    token_discount: float = Field(default=1.0, gt=0, le=1)
    # GAE's lambda with credit = "gae": 1 looks at what was earned alone, 0 at the critic's next value alone.
    #
    # Lower it if advantages are noisy and explained_variance is high; raise it while the critic is poor.
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    # Weight of the critic's error in the loss, with a critic. It shares the policy's layers.
    #
    # Raise it if explained_variance stays low; lower it if the policy gets worse while the critic learns.
    value_coefficient: float = Field(default=0.1, gt=0)
    # A value may move this far from its value at the start of the batch before its error has no gradient.
    #
    # Raise it with rewards much larger than 1.
    value_clip: float = Field(default=0.2, gt=0)
    # Weight of the entropy bonus, which keeps the policy exploring; 0: none.
    #
    # Raise it, to 0.01 for example, if entropy falls to 0 early; lower it if the policy stays random.
    entropy_coefficient: float = Field(default=0.0, ge=0)
    # Entropy bonus at the end of the run as a fraction of entropy_coefficient, with linear decay in between.
    #
    # Set 0 to explore at first and to end with the best actions.
    entropy_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # How the trainer treats differences between its log-probs and the engine's. "behaviour": the ratio is
    # taken to the engine's log-probs. Else it is taken to the trainer's own log-probs at the start of the
    # batch, and each token is weighted by w = trainer / engine: "truncated" by min(w, importance_cap)
    # (truncated importance sampling), "masked" by w between importance_floor and importance_cap and by 0
    # elsewhere (IcePop), "decoupled" by w (decoupled PPO), "sequence-truncated" and "sequence-masked" by
    # these with the product of w over a trajectory; or as a function of yours says,
    # "package.module:function". The fraction of tokens above the cap, and of those that count nothing, is a
    # metric in any case.
    #
    # Set "truncated" if logprob_mismatch is large, as with different dtypes or a large staleness; "masked" if
    # single tokens differ by orders of magnitude, as with mixtures of experts.
    importance: Annotated[str, _takes(IMPORTANCE)] = "behaviour"
    # Largest weight of a token with importance = "truncated" or "masked", or of a sequence.
    #
    # Lower it if single tokens dominate updates; a larger cap has less bias and more noise.
    importance_cap: float = Field(default=2.0, gt=0)
    # Smallest weight with importance = "masked" or "sequence-masked"; one below it counts nothing.
    #
    # Raise it towards 1 to train on tokens alone on which engine and trainer agree.
    importance_floor: float = Field(default=0.5, gt=0, le=1)
    # Weight of the KL term (kl_estimator) to the policy from which reinforcement learning started; the
    # reference stage computes its log-probs. 0: there is no such stage.
    #
    # Raise it, to 0.001 or 0.01 for example, if a language model's texts degenerate; it costs the memory and
    # time of the reference stage.
    kl_coefficient: float = Field(default=0.0, ge=0)
    # How the KL is estimated from a token's log-probs (Schulman, "Approximating KL Divergence"): "k3" and
    # "k2" in the loss, "k1" in the reward, where each token's advantage also has the KL of those after it.
    #
    # Set "k2" for the KL's own gradient, "k1" for PPO as in RLHF; "k3" is GRPO's.
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    # Weight of the same KL term on the tokens of protected environments alone, beside kl_coefficient. 0:
    # none.
    #
    # Raise it, to 0.01 or 0.1 for example, if a version loses what the model could do when a task is added;
    # protected environments need a weight above 0 for it, and it needs the reference stage.
    protected_kl: float = Field(default=0.0, ge=0)
    # Dtype of forward and backward passes; parameters, moments, log-probs and losses stay float32, and
    # versions are published in model.dtype. Empty: model.dtype. "auto": bfloat16 if the devices of trainer
    # and reference stage compute it without emulation, else float32, decided once by the machine that starts
    # the run.
    #
    # Set "float32" if training in bfloat16 is unstable; it needs more time and memory.
    dtype: Literal["", "float32", "bfloat16", "auto"] = ""
    # Keeps only the input of each block for the backward pass and computes the rest again: less memory, about
    # a third more time. "auto": on GPUs where the trainer is predicted not to fit without, decided once by
    # the machine that starts the run; never on a CPU.
    #
    # Set true if the trainer runs out of memory and a smaller microbatch_tokens is not enough.
    activation_checkpointing: bool | Literal["auto"] = "auto"
    # Rank of low-rank adapters of lora_targets, which alone are trained; 0: every parameter is trained.
    # Published and exported is the model with its adapters added.
    #
    # Set it, to 8 to 64 for example, if the optimizer's moments do not fit into memory; a larger rank can
    # learn more.
    lora_rank: int = Field(default=0, ge=0)
    # Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
    #
    # Change it together with lora_rank to keep their quotient; a larger one makes the same lr move the model
    # further.
    lora_alpha: float = Field(default=32.0, gt=0)
    # Linear layers that have an adapter.
    #
    # Remove layers to save memory; adapters of the attention alone (q, k, v, o) usually learn less.
    lora_targets: list[LoraTarget] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    # Optimizer steps for each pass over a batch: it is split into so many mini-batches.
    #
    # More learn faster from each batch, with noisier gradients and further from the policy that sampled it.
    minibatches: int = Field(default=1, ge=1)
    # How many times each batch is used.
    #
    # More learn more from the same episodes, further from the policy that sampled them.
    passes: int = Field(default=1, ge=1)
    # Tokens of one forward pass on one rank; gradients accumulate over passes. cp ranks share a pass of cp
    # times as many: a sequence longer than one rank may take needs context parallelism, and is truncated
    # unless scheduler.selector brings it. 0: 16,384, and a longer sequence alone.
    #
    # Lower it if the trainer runs out of memory; raise it if a GPU is not busy.
    microbatch_tokens: int = Field(default=0, ge=0)
    # Computes what sequences of a micro-batch have in common at their beginning (the prompt of their group)
    # once instead of once each; the gradients are the same sums.
    #
    # Set false only to rule it out while you look for a fault: nothing else gets better without it.
    share_prefixes: bool = True
    # Steps between checkpoints; 0: only at the end. After a crash of the trainer the steps since the last one
    # are repeated.
    #
    # Lower it if steps are long or machines unreliable; raise it if saving takes a large part of a step.
    checkpoint_every: int = Field(default=20, ge=0)
    # Number of newest checkpoints that are kept.
    #
    # Raise it to go back further or to compare versions; each holds what is trained and AdamW's two moments
    # of it.
    keep_checkpoints: int = Field(default=2, ge=1)
    # Memory of each rank for published weights, if it is more than two slots of the most that its shards take
    # in any parallelism.
    #
    # Leave it at 0: a larger arena is of no use.
    arena_bytes: int = Field(default=0, ge=0)
    # host:port at which the trainer listens; port 0 takes any free one.
    #
    # Change it in a fleet, where other machines connect to the trainer; off loopback it needs TLS and a
    # token.
    bind: str = "127.0.0.1:0"

    @property
    def pass_tokens(self) -> int:
        """Tokens of one forward pass on one rank, unless a sequence alone has more."""
        return self.microbatch_tokens or PASS_TOKENS

    @property
    def checkpoints_activations(self) -> bool:
        """Returns whether activations are computed again; "auto" that no launch has decided is no."""
        return self.activation_checkpointing is True

    @property
    def uses_reference(self) -> bool:
        """Returns whether the loss has a KL to the reference policy, which the reference stage serves."""
        return self.kl_coefficient > 0 or self.protected_kl > 0

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


class WarmupConfig(ConfigSection):
    """Imitation of uniformly random legal play, or of recorded episodes, before reinforcement learning."""

    # Batches of imitation before reinforcement learning; 0: none.
    #
    # A model from scratch needs some to make legal moves at all; raise it until most of the first
    # evaluation's moves are legal.
    batches: int = Field(default=0, ge=0)
    # File of recorded episodes that the warm-up imitates (evaluation.record writes one). Another tokenizer,
    # or environments that the file does not have, are refused. Empty: legal play, or demonstration_key.
    #
    # Set it to begin with what another policy can do; with teacher.episodes the run makes the file itself.
    episodes: str = ""
    # The least reward of a recorded episode that is imitated; "any": all are.
    #
    # Set it to imitate only what went well, 0.5 for example where a win earns 1.
    least_reward: LeastReward = "any"
    # Episodes of each batch of imitation.
    #
    # Raise it if the environment has so many states that a batch shows few of them.
    batch_episodes: int = Field(default=128, ge=1)
    # Learning rate of the warm-up.
    #
    # About 1e-3 for a small model from scratch; lower it if the loss rises.
    lr: float = Field(default=1e-3, gt=0)
    # Learning rate at the end of the warm-up as a fraction of its lr, with linear decay in between.
    #
    # Lower it if the loss is unsteady at the end of the warm-up.
    lr_final_fraction: float = Field(default=1.0, ge=0, le=1)
    # Optimizer steps over which the learning rate rises linearly from 0.
    #
    # Raise it if the loss jumps in the first steps.
    lr_warmup_steps: int = Field(default=0, ge=0)
    # Optimizer steps for each pass over a batch.
    #
    # More learn faster from the same episodes, with noisier gradients.
    minibatches: int = Field(default=1, ge=1)
    # How many times each batch is used.
    #
    # Raise it if episodes are slow to play; the model then sees fewer different ones for the same training.
    passes: int = Field(default=1, ge=1)
