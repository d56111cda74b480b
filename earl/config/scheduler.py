"""`[scheduler]` and `[evaluation]`: what is issued, when it is trained, how it is judged."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.sampling_filters import LEAST_PENALTY, MOST_PENALTY, SamplingFilters
from earl.config.takes import Takes
from earl.fragments.advantages import ADVANTAGES

_ADVANTAGES = ", ".join(f'"{name}"' for name in ADVANTAGES)


class SchedulerConfig(ConfigSection):
    # Episodes of one task instance, each one trajectory, or one for each seat that the policy plays.
    # Advantages are relative to the others of the group.
    #
    # With more of them advantages are less noisy and rare successes are found; each step takes longer.
    group_size: int = Field(default=16, ge=1)
    # Groups of one batch; a step trains group_size x batch_groups episodes.
    #
    # Raise it if the curve is noisy; lower it for more steps in the same time.
    batch_groups: int = Field(default=16, ge=1)
    # Episodes with which a group may be trained if the attempts of its others are used up; 0: all.
    #
    # Set it, to half of group_size for example, where episodes fail now and then: a failure then costs one
    # episode instead of its group.
    min_group_size: int = Field(default=0, ge=0)
    # Episodes of each group of training that are issued beyond group_size. The group is closed as soon as
    # group_size of its episodes have been accepted, and the others are dropped as closed_early; 0: none.
    #
    # Set it where a few slow episodes keep all others waiting. It favours short answers: compare length_mean
    # and closed_length_mean in metrics.jsonl (docs/tasks.md).
    extra_episodes: int = Field(default=0, ge=0)
    # Groups of a batch that are closed with min_group_size episodes or more, instead of waiting for their
    # others, once the trainer asks for the batch and all its other groups are complete; 0: none.
    #
    # Set it to 1 or 2 where the trainer waits for the last groups of a batch. It favours short answers like
    # extra_episodes, but costs no episodes beyond group_size.
    close_groups: int = Field(default=0, ge=0)
    # How many times the group at one place of a batch is replaced by another task because all its rewards
    # are equal and there is nothing to learn from it (DAPO's dynamic sampling); 0: never.
    #
    # Set it to 1 or more where many tasks are always, or never, solved; each replacement costs its episodes.
    resample: int = Field(default=0, ge=0, le=64)
    # "longest": of a batch, the tickets of the groups whose responses are predicted to be longest, by earlier
    # ones of the same task, are leased first, and late sequences move to idle engines. "planned": each engine
    # is leased what is planned for it by these predictions and the profile, where there are several engines
    # and both are good enough; otherwise as "longest". "drawn": tickets are leased in the order in which they
    # were drawn, and nothing moves.
    #
    # Set "planned" where engines of several workers differ in tp, "drawn" to see what the others are worth: a
    # deterministic run trains on the same tokens with each (docs/history.md).
    length_order: Literal["planned", "longest", "drawn"] = "longest"
    # Training steps after the warm-up; 0 only evaluates.
    #
    # Raise it to continue a run that is complete.
    steps: int = Field(default=100, ge=0)
    # Seconds after which training ends at the next step, whatever steps is; 0: no limit.
    #
    # Set it to bound the time on machines of unknown speed; raise it, or set 0, to continue a run that it
    # ended.
    train_limit_s: float = Field(default=0.0, ge=0)
    # How many versions older than the trained weights a token may be. 0: sampling and training take turns. 1:
    # they overlap.
    #
    # More keeps engines busy if episodes differ much in length; lower it if learning is unstable. With
    # deterministic = true every episode is sampled by exactly the version that is so many before the trained
    # one.
    staleness: int = Field(default=1, ge=0, le=8)
    # The fragment that makes advantages of rewards (docs/algorithms.md). "mean": reward - mean of the group.
    # "grpo": that, divided by the group's standard deviation. "rloo", "opo", "reinforce++",
    # "reinforce++-baseline", or a function of yours as "package.module:function".
    #
    # Set "mean" if groups in which rewards hardly differ should count less (Dr. GRPO), "opo" if answers of a
    # group differ much in length, "reinforce++-baseline" if groups are small.
    advantage: Annotated[str, Takes(f'one of {_ADVANTAGES}, or "package.module:function"')] = "grpo"
    # How many times an episode is tried before its group is dropped.
    #
    # Raise it for environments that fail now and then; lower it if attempts are long and fail again.
    attempts: int = Field(default=3, ge=1)
    # The run ends when so many tickets in a row used up their attempts and none succeeded.
    #
    # Raise it if the environment can be away for a while; lower it to learn sooner that it is broken.
    give_up_after: int = Field(default=64, ge=1)
    # Seconds after which an episode is given to another worker if its worker does not renew it.
    #
    # Raise it if workers are paused for longer without being lost; lower it to replay the episodes of frozen
    # workers sooner.
    lease_s: float = Field(default=30.0, gt=0)
    # Seconds that an episode may take; then its attempt fails. 0: 300, and one for each 20 tokens of
    # rollout.max_context_tokens, or without it of two times all answers that an episode may have.
    #
    # Raise it for long episodes with slow tools.
    episode_s: float = Field(default=0.0, ge=0)
    # "train": what an episode that ends as TRUNCATED sampled is trained on like any other. "mask": its reward
    # counts in its group, its tokens in no loss (DAPO's overlong filtering). "drop": it is left out of its
    # group, which needs min_group_size others (or group_size with extra_episodes), or is replaced by another
    # task.
    #
    # Set "mask" where a bound, not the policy, is to blame for episodes that are cut short.
    truncated: Literal["train", "mask", "drop"] = "train"
    # Seconds that a turn may take, the model's answer and the environment's together; 0: no bound of its own.
    #
    # Set it so that one slow call of a tool ends its episode soon.
    turn_s: float = Field(default=0.0, ge=0)
    # "retry": an episode past episode_s, or a turn past turn_s, is a failed attempt. "truncate": it ends
    # there as TRUNCATED, with the rewards that it has.
    #
    # Set "truncate" where slow episodes are a property of the policy rather than of the machine.
    timeout: Literal["retry", "truncate"] = "retry"
    # Most actions of an episode; one that reaches it ends as TRUNCATED.
    #
    # Raise it if tasks need more actions; lower it to bound episodes that never end.
    max_turns: int = Field(default=64, ge=1)
    # Sampling temperature of training episodes; 0 always takes the most probable token.
    #
    # Below 1 they explore less. Leave it at 1 unless the model writes nonsense: at 0 all trajectories of a
    # group are alike and nothing is learned.
    temperature: float = Field(default=1.0, ge=0)
    # Trajectories of each batch, group by group, and episodes of each evaluation, that are kept as readable
    # conversations.
    #
    # Raise it to a multiple of group_size to read whole groups; the run's directory grows with it.
    transcripts: int = Field(default=8, ge=0, le=64)
    # "on": after every step decides the parallelism of each stage that has a profile, logs the decision with
    # its reasons (`earl explain`), and switches. "observe": decides and logs, but does not switch. "static":
    # decides nothing. `earl parallelism` works with each of them.
    #
    # Set "observe" to see what it would do, or "static" to keep the layouts of the run file.
    selector: Literal["on", "observe", "static"] = "on"
    # CSV file of `earl profile` for the selector. Empty: the measurements that `earl profile` kept for this
    # model, machine and settings; without any, nothing is decided.
    #
    # Set it to use measurements of another machine of the same kind, or of a chosen day.
    profile: str = ""
    # Most seconds that a launch spends on a profile, by prediction. It measures the layouts that a stage may
    # choose from where `profile` is empty and nothing was kept of them; later runs find the figures. 0: none.
    #
    # Raise it for large models, whose measurement takes longer; 0 starts without one.
    profile_s: float = Field(default=30.0, ge=0)
    # Seconds that a change of parallelism is assumed to cost until the first one has been measured.
    #
    # Raise it to make the selector's first switch less likely, lower it to make it earlier.
    switch_cost_s: float = Field(default=1.0, ge=0)
    # Seconds between the heartbeats of a worker.
    #
    # Lower it together with membership_s to notice lost workers sooner; raise it to send fewer messages.
    heartbeat_s: float = Field(default=1.0, gt=0)
    # Seconds after its last heartbeat until a worker counts as lost, and its episodes are played again.
    #
    # Raise it if workers that are alive are called lost, as on overloaded machines; lower it to replay
    # sooner.
    membership_s: float = Field(default=10.0, gt=0)
    # Most heartbeats a second of all workers together. In a larger fleet each worker sends fewer, and counts
    # as lost after three of its intervals.
    #
    # Raise it to notice lost workers of a large fleet sooner; lower it if the scheduler is busy with
    # heartbeats.
    heartbeats_per_s: float = Field(default=100.0, gt=0)
    # host:port at which the scheduler listens; port 0 takes any free one.
    #
    # Change it in a fleet, where workers connect from other machines; off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"

    @property
    def early_close(self) -> str:
        """The first key that closes groups early, such as "scheduler.extra_episodes"; "" if none does."""
        keys = {"scheduler.extra_episodes": self.extra_episodes, "scheduler.close_groups": self.close_groups}
        return next((key for key, value in keys.items() if value), "")


class SwitchDeadlines(ConfigSection):
    """Seconds that each part of a switch of a stage's parallelism may take."""

    # Seconds until new engines have started next to the old ones and loaded the weights, or until the trainer
    # has finished its step and its ranks are prepared.
    #
    # Raise it for models that load slowly.
    prepare_s: float = Field(default=300.0, gt=0)
    # Seconds of prepare_s that new engines have for an attempt to load the weights, without the wait for a
    # publication that the worker is loading; at most prepare_s. 0: all that is left of prepare_s. No newer
    # weights reach the worker during an attempt. Trainer ranks do not use it.
    #
    # Set it where engines take long to start and a load that hangs should end sooner.
    load_s: float = Field(default=0.0, ge=0)
    # Seconds until engines have paused; where the new ones do not fit next to them, the old ones end here.
    # Trainer ranks do not use it.
    #
    # Raise it if engines take long to stop, as large ones on GPUs do.
    quiesce_s: float = Field(default=120.0, gt=0)
    # Seconds until sequences, or parameters and moments, are handed over.
    #
    # Raise it for large models on slow networks.
    switch_s: float = Field(default=120.0, gt=0)
    # Seconds for comparing the log-probs of a few fixed prompts with those before.
    #
    # Raise it for models that are slow, as on a CPU.
    verify_s: float = Field(default=60.0, gt=0)
    # Seconds until engines that had ended for lack of memory are started again after a switch that failed.
    #
    # Raise it together with prepare_s for models that load slowly.
    recover_s: float = Field(default=300.0, gt=0)

    @property
    def total_s(self) -> float:
        """The most seconds of a whole switch: a roll-back hands state over and verifies it once more, or
        brings engines back that had ended."""
        roll_back_s = max(2 * self.switch_s + self.verify_s, self.recover_s)
        return self.prepare_s + self.quiesce_s + self.verify_s + roll_back_s


class SwitchStage(StrEnum):
    """A part of a switch that ends by a deadline of its own; the value is how texts name it.

    LOAD is a part of PREPARE. Trainer ranks have neither LOAD nor QUIESCE: their switch begins at a step
    boundary, for which PREPARE waits. RECOVER is the pool's alone: engines that had ended start again after a
    switch that failed.
    """

    PREPARE = "prepare"
    LOAD = "load"
    QUIESCE = "quiesce"
    SWITCH = "switch"
    VERIFY = "verify"
    RECOVER = "recover"

    def deadline_s(self, deadlines: SwitchDeadlines) -> float:
        """The seconds that the stage may take: SwitchDeadlines has a field for each; 0 is prepare_s."""
        return getattr(deadlines, f"{self.value}_s") or deadlines.prepare_s


class SwitchConfig(SwitchDeadlines):
    """Bounds of a switch of a stage's parallelism. Past one of them the stage keeps the former one."""

    # Largest difference of those log-probs, in nats: bfloat16 sums in another order differ by about 0.02. A
    # layout that differs by more is not used again in the run.
    #
    # Raise it if switches of a bfloat16 model are refused for slightly more; lower it in float32 to find
    # smaller faults.
    logprob_tolerance: float = Field(default=0.05, gt=0)
    # Seconds during which a layout that failed in another way is not tried again.
    #
    # Lower it if the cause passes quickly; raise it if failed attempts cost too much time.
    retry_s: float = Field(default=120.0, ge=0)
    # Switches of a run with deterministic = true, in the order of their steps: "5 rollout tp=2" samples the
    # version that step 5 begins with, and newer ones, on engines of two devices; "5 trainer tp=2,cp=2" trains
    # them so (docs/operating.md).
    #
    # Give them if a run whose contexts grow must be repeated bit for bit.
    plan: Annotated[tuple[str, ...], Takes('a list of switches, each like "5 rollout tp=2"')] = ()


class EvaluationConfig(ConfigSection):
    """Evaluation tickets: seeds that training never uses, the same in every evaluation, never trained on."""

    # Episodes of the evaluations at the start and the end; 0: no evaluation.
    #
    # The confidence interval narrows with the square root of their number: four times as many halve it.
    episodes: int = Field(default=512, ge=0, le=16_384)
    # Evaluates the policy before training, after the warm-up.
    #
    # Set false to begin training sooner; the report then has nothing to compare the end with.
    at_start: bool = True
    # Evaluates the policy after training.
    #
    # Set false to end sooner; `earl eval` can do it later.
    at_end: bool = True
    # Steps between evaluations during training, which waits for them; 0: none.
    #
    # Set it to find the best version of a run whose reward may fall again; a smaller number costs more time.
    every_steps: int = Field(default=0, ge=0)
    # Episodes of the evaluations during training; 0: as many as at the end.
    #
    # Set fewer to make those evaluations shorter and less exact.
    every_episodes: int = Field(default=0, ge=0, le=16_384)
    # Sampling temperature of evaluations; 0 always takes the most probable token.
    #
    # Set the temperature at which the model will be used.
    temperature: float = Field(default=1.0, ge=0)
    # Evaluations sample from this many of the most probable tokens; 0: from all. Training has no such key
    # (docs/operating.md).
    #
    # Set it, and the three keys below, if the model will be used with them.
    top_k: int = Field(default=0, ge=0, lt=1 << 31)
    # Evaluations sample from the fewest most probable tokens that have this part of the probability, of those
    # that top_k keeps; 1: from all.
    #
    # Set it to 0.95 for example, to leave out what the model hardly ever means.
    top_p: float = Field(default=1.0, gt=0, le=1)
    # Evaluations sample from the tokens at least this times as probable as the most probable one, of those
    # that top_k and top_p keep; 0: from all.
    #
    # Set it to 0.05 for example; it leaves out little where the model is unsure, unlike top_k.
    min_p: float = Field(default=0.0, ge=0, le=1)
    # In evaluations positive logits of tokens that the context has are divided by this, negative ones
    # multiplied, before the temperature; 1: no penalty.
    #
    # Set it to 1.1 for example, if the model will be used with it. It counts what the prompt repeats, too.
    repetition_penalty: float = Field(default=1.0, ge=LEAST_PENALTY, le=MOST_PENALTY)
    # Writes what the final evaluation's episodes read and wrote, in token ids, to episodes.jsonl of the run,
    # for another run's warmup.episodes. It plays training's tasks instead, so that nothing of an evaluation
    # is ever imitated. Only a run that trains nothing records: scheduler.steps = 0 and no warm-up.
    #
    # Set it, with `earl eval` for example, to let a smaller model begin with what this one can do.
    record: bool = False
    # Keeps the checkpoint of the version with the best mean reward, whatever keep_checkpoints is.
    #
    # Set false to save the disk space of one checkpoint.
    keep_best: bool = True
    # The part of its score in the first evaluation that a protected environment may lose. A version whose
    # paired 95 % interval lies wholly below 1 - protected_loss does not become the best one.
    #
    # Lower it to allow less, with more evaluation.episodes: with few of them intervals are wide, and little
    # is found to be lost.
    protected_loss: float = Field(default=0.03, ge=0, lt=1)

    @property
    def filters(self) -> SamplingFilters:
        """The filters of what evaluations sample from."""
        return SamplingFilters(self.repetition_penalty, self.top_k, self.top_p, self.min_p)
