"""`[scheduler]` and `[evaluation]`: what is issued, when it is trained, how it is judged."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection


class SchedulerConfig(ConfigSection):
    # Trajectories of one task instance, and groups of one batch.
    group_size: int = Field(default=16, ge=1)
    batch_groups: int = Field(default=16, ge=1)
    steps: int = Field(default=100, ge=1)
    # Training ends at the first boundary after this; 0: no bound.
    train_limit_s: float = Field(default=0.0, ge=0)
    # 0: synchronous; 1: one step off. Groups issued and not yet trained stay within
    # (staleness + 1) batches.
    staleness: int = Field(default=1, ge=0, le=8)
    # Group-relative advantages: (reward - mean), divided by the group's deviation if "grpo".
    advantage: Literal["grpo", "mean"] = "grpo"
    attempts: int = Field(default=3, ge=1)
    # The run ends when this many tickets in a row used up their attempts and not one succeeded.
    give_up_after: int = Field(default=64, ge=1)
    lease_s: float = Field(default=30.0, gt=0)
    episode_s: float = Field(default=300.0, gt=0)
    max_turns: int = Field(default=64, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    # Trajectories of each batch, and episodes of each evaluation, that are kept as conversations.
    transcripts: int = Field(default=2, ge=0, le=64)
    # "on": after every step, decide the parallelism of each stage that has a profile, log the decision
    # with its reasons (earl explain), and switch. "observe": the same, but nothing is switched. "static":
    # nothing is decided. earl parallelism works with each of them.
    selector: Literal["on", "observe", "static"] = "on"
    # CSV file of `earl profile`, with the stages that are to be decided for. Empty: what it has kept for
    # this model, machine and settings; if there is nothing, nothing is decided.
    profile: str = ""
    # What a switch of a stage's parallelism is taken to cost until the first one is measured.
    switch_cost_s: float = Field(default=1.0, ge=0)
    # How often a worker says how it is, and how long after its last report it counts as gone.
    heartbeat_s: float = Field(default=1.0, gt=0)
    membership_s: float = Field(default=10.0, gt=0)
    # Reports of all workers together. In a fleet that would exceed this, each reports less often, and counts
    # as gone after three times as long.
    heartbeats_per_s: float = Field(default=100.0, gt=0)
    bind: str = "127.0.0.1:0"


class SwitchDeadlines(ConfigSection):
    """Seconds that each part of a switch of a stage's parallelism may take."""

    # New engines start beside the old ones and load the weights.
    prepare_s: float = Field(default=300.0, gt=0)
    # Engines pause, a trainer comes to the end of its step.
    quiesce_s: float = Field(default=120.0, gt=0)
    # Sequences, or parameters and moments, are handed over.
    switch_s: float = Field(default=120.0, gt=0)
    # Log-probs of a few fixed prompts are compared with those of before.
    verify_s: float = Field(default=60.0, gt=0)

    @property
    def total_s(self) -> float:
        """The most seconds of a whole switch: a roll-back hands state over and verifies it once more."""
        return self.prepare_s + self.quiesce_s + 2 * (self.switch_s + self.verify_s)


class SwitchConfig(SwitchDeadlines):
    """Bounds of a switch of a stage's parallelism. Past one of them the stage keeps the former one."""

    # Largest difference of those log-probs, in nats: bfloat16 sums in another order differ by some 0.02. A
    # layout that differs by more is not used again in the run.
    logprob_tolerance: float = Field(default=0.05, gt=0)
    # For so long what failed otherwise is not tried again.
    retry_s: float = Field(default=120.0, ge=0)


class EvaluationConfig(ConfigSection):
    """Evaluation tickets: seeds that training never uses, the same in every evaluation, never trained on."""

    episodes: int = Field(default=512, ge=0, le=16_384)
    at_start: bool = True
    at_end: bool = True
    # Steps between evaluations during training, which waits for them; 0: none.
    every_steps: int = Field(default=0, ge=0)
    # Episodes of those in between; 0: as many as at the end.
    every_episodes: int = Field(default=0, ge=0, le=16_384)
    temperature: float = Field(default=1.0, ge=0)
    # Keep the checkpoint of the version with the best mean reward, whatever keep_checkpoints says.
    keep_best: bool = True
