"""`[reference]`, `[teacher]` and `[reward_model]`: the stages of models that never change."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.devices import Devices
from earl.config.takes import Takes
from earl.errors import ConfigError

Score = Annotated[
    Annotated[float, Field(allow_inf_nan=False)] | Literal["auto"], Takes('a number, or "auto"')
]


class FrozenModelConfig(ConfigSection):
    """A stage of dp x tp ranks that compute something of each trajectory with a model that never changes."""

    # Replicas of the stage's model, each of tp processes.
    #
    # Raise it if trajectories wait for the stage and devices or cores are free.
    dp: int = Field(default=1, ge=1)
    # Ranks of each replica (tensor parallelism).
    #
    # Raise it if the model does not fit into the memory of one device.
    tp: int = Field(default=1, ge=1)
    # Where ranks compute; "auto" takes a GPU if there is one.
    #
    # Set "cpu" if the GPUs' memory is needed by trainer and engines; the stage is then slower.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Devices of the ranks: "auto", how many, or their numbers in a text. Without GPUs a device is a slot of
    # the processor.
    #
    # Leave it at "auto" unless other programs use some of the GPUs.
    devices: Devices = "auto"
    # torch threads of each rank. 0: one on a GPU; on a CPU the machine's cores over all ranks of the run that
    # compute there, decided once by the machine that starts the run.
    #
    # Raise it if trajectories wait for this stage and cores are idle.
    threads: int = Field(default=0, ge=0)
    # Tokens of one forward pass on one rank.
    #
    # Lower it if the stage runs out of memory; raise it if a GPU is not busy.
    microbatch_tokens: int = Field(default=16_384, ge=64)
    # host:port at which the stage listens; port 0 takes any free one.
    #
    # Change it in a fleet, where other machines connect to the stage; off loopback it needs TLS and a token.
    bind: str = "127.0.0.1:0"


class FrozenStageConfig(FrozenModelConfig):
    """A stage that computes log-probs of trained tokens under a policy that never changes."""

    # Memory of each rank for log-probs that wait for the trainer; 0: what staleness + 1 batches need, and a
    # margin.
    #
    # Leave it at 0; the run file is refused if it is too small.
    arena_bytes: int = Field(default=0, ge=0)


class ReferenceConfig(FrozenStageConfig):
    """The reference stage: the policy that reinforcement learning started from, in its own parallelism."""

    # Replicas of the reference policy, each of tp processes; used when trainer.kl_coefficient or
    # trainer.protected_kl is above 0.
    #
    # Raise it if trajectories wait for the reference stage and devices or cores are free.
    dp: int = Field(default=1, ge=1)


class TeacherConfig(FrozenStageConfig):
    """The teacher: another policy, in its own parallelism, that the trained one learns from."""

    # Model directory of the teacher, as model.path takes it. It may have other sizes than the trained model,
    # and must have its tokenizer. Empty: there is no teacher, or url names it.
    #
    # Set it to distil a larger model into a smaller one, or to begin with what an earlier run has learned.
    path: str = ""
    # Where another server serves the teacher, in place of path: the base of vLLM's OpenAI-compatible API,
    # such as "http://127.0.0.1:8000/v1". It must return prompt_logprobs, and have the trained model's
    # tokenizer. Its token is EARL_TEACHER_TOKEN, or in the file EARL_TEACHER_TOKEN_FILE.
    #
    # Set it where the teacher is too large for the run's devices, or is served already.
    url: str = ""
    # Name of the teacher among the models of url. Empty: the only one that is served there.
    #
    # Set it where the server has several models, adapters for example.
    served_model: str = ""
    # Most requests that wait for url at once, one for each trajectory.
    #
    # Lower it for a server that others use, too; raise it if the teacher's process waits and the server has
    # capacity.
    requests: int = Field(default=16, ge=1, le=1024)
    # Seconds that url may take to answer a request. After that it is repeated, a few times.
    #
    # Raise it for long trajectories, or for a server that is slow.
    request_s: float = Field(default=60.0, gt=0, le=3600)
    # Weight of the KL to the teacher on every trained token.
    #
    # Raise it if the policy stays far from the teacher (kl_teacher in the metrics); lower it if rewards no
    # longer count.
    coefficient: float = Field(default=1.0, gt=0)
    # How the KL is brought down. "advantage": each token's advantage is raised by the teacher's log-prob less
    # the policy's (on-policy distillation). "loss": the k3 estimate of the KL is added to the loss, as with
    # trainer.kl_coefficient.
    #
    # "advantage" makes the policy leave what the teacher would not do; set "loss" to make it take up what the
    # teacher might do, too.
    form: Literal["advantage", "loss"] = "advantage"
    # Whether rewards count beside the teacher. false: advantages of rewards are 0, and the policy learns from
    # the teacher alone.
    #
    # Set false to distil where rewards tell little, or nothing at all.
    rewards: bool = True
    # The version from which on the teacher no longer counts, and its process ends; 0: it counts to the end of
    # the run.
    #
    # Set it where the policy is to become better than its teacher.
    until: int = Field(default=0, ge=0)
    # Lets the teacher count the less, the nearer the policy's reward is to teacher.score (QDagger); once the
    # policy has reached it, the teacher's process ends.
    #
    # Set true to begin with a teacher that the policy can surpass. It needs environment.reward_range, and
    # teacher.episodes, warmup.episodes or teacher.score.
    wean: bool = False
    # The teacher's mean reward in the run's tasks, for teacher.wean. "auto": that of the recorded episodes
    # which the warm-up imitates, decided once by the machine that starts the run.
    #
    # Give a number where nothing of the teacher was recorded: the mean reward of an evaluation of it.
    score: Score = "auto"
    # Episodes that the teacher plays before the run begins, on training's tasks at scheduler.temperature, in
    # a run of its own (NAME-teacher). The warm-up imitates them, as warmup.episodes; 0: it plays none.
    #
    # Set it to begin with what the teacher can do, 1024 for example; more of them show rarer situations.
    episodes: int = Field(default=0, ge=0, le=16_384)

    @property
    def given(self) -> bool:
        """Returns whether the run has a teacher."""
        return bool(self.path or self.url)

    @property
    def named(self) -> str:
        """The key that names the teacher, with its value, for errors."""
        return f"teacher.url = {self.url!r}" if self.url else f"teacher.path = {self.path!r}"

    @property
    def measured_score(self) -> float:
        """The score of a launched run. Raises ConfigError if it has not been measured."""
        if isinstance(self.score, str):
            raise ConfigError(
                f"teacher.score = {self.score!r} has not been measured",
                "start the run with `earl train`, or give teacher.score as a number",
            )
        return self.score


class RewardModelConfig(FrozenModelConfig):
    """A learned reward model: it scores each trajectory, in its own parallelism, beside the environment."""

    # Model directory of a sequence classifier with one label, as transformers saves it
    # (AutoModelForSequenceClassification): a decoder as model.path takes it, and score.weight. It must have
    # the trained model's tokenizer. Empty: there is none.
    #
    # Set it where a model tells better than the environment how good a trajectory is, as in RLHF.
    path: str = ""
    # The score of a trajectory, times this, is added to its reward from the environment.
    #
    # Raise it if the policy follows the environment's rewards alone; lower it if reward_model_mean rises
    # while what the policy writes gets worse.
    coefficient: float = Field(default=1.0, gt=0)
