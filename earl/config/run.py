"""A run file as one value."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.cluster import ClusterConfig
from earl.config.context_bound import ContextBound, context_bound, planned_tokens
from earl.config.data_plane import BusConfig, DataPlaneConfig
from earl.config.dtype import DType, settled
from earl.config.environment import EnvironmentConfig, GatewayConfig
from earl.config.frozen_schedule import FrozenSchedule, KeptVersions, PinnedSchedule
from earl.config.frozen_stage import (
    FrozenModelConfig,
    FrozenStageConfig,
    ReferenceConfig,
    RewardModelConfig,
    TeacherConfig,
)
from earl.config.layout_plan import LayoutPlan
from earl.config.mixture import MixtureEntry, resolve
from earl.config.model import ModelConfig
from earl.config.obs import ObsConfig
from earl.config.paced import PacedConfig, pace_of
from earl.config.replay import ReplayConfig
from earl.config.rollout import RolloutConfig
from earl.config.scheduler import EvaluationConfig, SchedulerConfig, SwitchConfig
from earl.config.takes import Takes
from earl.config.trainer import TrainerConfig, WarmupConfig
from earl.pacing.pace import Pace
from earl.parallelism import REFERENCE, REWARD_MODEL, ROLLOUT, TEACHER, TRAINER, Parallelism

# The bound of an episode without scheduler.episode_s: for the environment, and for tokens at a slow pace.
EPISODE_S = 300.0
SLOW_TOKENS_PER_S = 20.0
# The divisor of loss_mean = "constant" where neither it nor a bound of contexts is given.
LOSS_SEQUENCE_TOKENS = 256


class StackConfig(ConfigSection):
    """The local stack: the processes that `earl train` starts."""

    # How many times a process that crashed is started again before the run fails.
    #
    # 0 while you look for the cause of a crash; raise it for long runs on machines where processes are
    # killed.
    restarts: int = Field(default=2, ge=0)
    # Seconds that a process may take to become ready; 0: 60, and one for each 50 MB of the model.
    #
    # Raise it if the model lies on a slow disk, or engines compile.
    start_s: float = Field(default=0.0, ge=0)
    # Seconds that workers may take to finish at the end of a run, the trainer's last checkpoint included;
    # then they are killed.
    #
    # Raise it if saving your model takes longer.
    stop_s: float = Field(default=20.0, gt=0)
    # By how much the scheduling priority of rollout, trainer and reference is lowered where they compute on
    # the processor: they take every free core, and leave it to whoever else wants it.
    #
    # 0 if others use the machine at the same time and the run is not to stand back.
    nice: int = Field(default=5, ge=0, le=19)
    # Several stages may compute on one GPU. Without it a run that needs more GPUs than there are is refused.
    # "alternate": rollout and trainer take turns besides: engines return their memory while a batch is
    # trained, the trainer moves its state out of the GPU while they sample (docs/devices.md).
    #
    # Set true for a small model on a single GPU, where memory holds all stages at once, and "alternate" where
    # it does not.
    share: Annotated[bool | Literal["alternate"], Takes('true, false or "alternate"')] = False
    # Where stages run: one key that decides others which the run file leaves out (docs/algorithms.md).
    # "separate": stack.share = false. "shared": stack.share = true. "actors": rollout.workers = 4, each of
    # rollout.engines = 1. Empty: those keys decide.
    #
    # Set it to try one run file in another placement. With deterministic = true and the same threads, weights
    # are the same in each.
    placement: Literal["", "separate", "shared", "actors"] = ""
    # Devices that rollout, trainer and, in a run that has one, the reference stage draw on together: they may
    # go from one stage to another while all work (docs/reparallelize.md). The run begins with rollout.engines
    # x tp, trainer.ranks and reference.dp x tp of them. 0: each stage keeps its own.
    #
    # Set it to their sum where the better division is not known before, or drifts. Paced devices and
    # processors only: GPUs do not move yet.
    pool_devices: int = Field(default=0, ge=0)


class DashboardConfig(ConfigSection):
    """The web page of the run, which reads and changes nothing (docs/dashboard.md)."""

    # host:port at which the page listens; port 0 takes any free one, "" switches the page off. The link is in
    # dashboard.url of the run's directory.
    #
    # Give a fixed port to keep a bookmark. Off loopback the page needs TLS and a token.
    bind: str = "127.0.0.1:0"


class RunConfig(ConfigSection):
    """Everything a run needs to know; every service reads the same file."""

    # Name of the run and of its directory.
    #
    # Give each run a name of its own; `earl resume NAME` continues one that exists.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    # Seed of every random choice: tasks, sampling, initial weights.
    #
    # Runs that differ only in it show how much of a result is chance.
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    # The same tokens and parameters, bit for bit, however often the run is killed and resumed.
    #
    # Set it for debugging and for proofs; it costs speed. With scheduler.staleness above 0 sampling and
    # training overlap, and the plan fixes which version samples an episode. It needs no
    # scheduler.train_limit_s, no scheduler.extra_episodes or close_groups, rollout.engine = "torch", and a
    # scheduler.selector other than "on". "kernels": engines and ranks compute as with true, and nothing is
    # planned, so timing decides what is trained: to learn what the plan alone costs.
    deterministic: Annotated[bool | Literal["kernels"], Takes('true, false or "kernels"')] = False
    # Directory of all runs; this one is runs_dir/name.
    #
    # Change it to keep runs on a larger disk. Commands find runs by name in ./runs only; give the directory
    # of any other.
    runs_dir: str = "runs"
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig | None = None
    # The environments of a mixture, each a table [[environments]] with the keys of [environment], in place of
    # that.
    #
    # Write them to train one policy on several tasks.
    environments: Annotated[list[EnvironmentConfig], Field(max_length=64)] = []
    gateway: GatewayConfig = GatewayConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    warmup: WarmupConfig = WarmupConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    replay: ReplayConfig = ReplayConfig()
    switch: SwitchConfig = SwitchConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    data_plane: DataPlaneConfig = DataPlaneConfig()
    bus: BusConfig = BusConfig()
    stack: StackConfig = StackConfig()
    cluster: ClusterConfig = ClusterConfig()
    paced: PacedConfig = PacedConfig()
    obs: ObsConfig = ObsConfig()
    dashboard: DashboardConfig = DashboardConfig()

    @property
    def rollout_dtype(self) -> DType:
        """The dtype in which engines compute. Raises ConfigError if it has not been resolved."""
        return settled("rollout.dtype", self.rollout.dtype or self.model.weight_dtype)

    @property
    def trainer_dtype(self) -> DType:
        """The dtype of trainer and reference stage. Raises ConfigError if it has not been resolved."""
        return settled("trainer.dtype", self.trainer.dtype or self.model.weight_dtype)

    @property
    def frozen_stages(self) -> dict[str, FrozenModelConfig]:
        """The stages of the run that make something with a model that never changes, by their roles."""
        stages: dict[str, FrozenModelConfig] = {**self.column_stages}
        if self.reward_model.path:
            stages[REWARD_MODEL] = self.reward_model
        return stages

    @property
    def frozen_models(self) -> dict[str, FrozenModelConfig]:
        """The stages among them whose ranks have that model: not a teacher that another server serves."""
        return {
            role: stage
            for role, stage in self.frozen_stages.items()
            if role != TEACHER or not self.teacher.url
        }

    @property
    def column_stages(self) -> dict[str, FrozenStageConfig]:
        """The stages among them that make a column of log-probs, by their roles."""
        stages: dict[str, FrozenStageConfig] = {}
        if self.trainer.uses_reference:
            stages[REFERENCE] = self.reference
        if self.teacher.given:
            stages[TEACHER] = self.teacher
        return stages

    def column_stage(self, role: str) -> FrozenStageConfig:
        """The section of a role's stage that makes a column."""
        return {REFERENCE: self.reference, TEACHER: self.teacher}[role]

    def frozen_stage(self, role: str) -> FrozenModelConfig:
        """The section of a role's stage."""
        sections = {REFERENCE: self.reference, TEACHER: self.teacher, REWARD_MODEL: self.reward_model}
        return sections[role]

    @property
    def score_coefficient(self) -> float:
        """The weight of the reward model's score in a trajectory's reward; 0 without a reward model."""
        return self.reward_model.coefficient if self.reward_model.path else 0.0

    @property
    def keeps_standby(self) -> bool:
        """Returns whether rollout workers keep processes ready for engines to come."""
        standby, plan = self.rollout.standby, self.layout_plan
        if standby != "auto":
            return standby
        return self.scheduler.selector == "on" or (plan is not None and len(plan.layouts(ROLLOUT)) > 1)

    @property
    def pace(self) -> Pace | None:
        """The pace of the run's devices; None if they are real. Raises ConfigError."""
        return pace_of(self.paced)

    @property
    def alternates(self) -> bool:
        """Returns whether rollout and trainer take turns on their devices."""
        return self.stack.share == "alternate"

    @property
    def episode_s(self) -> float:
        """Seconds that an episode may take: the context planned for at a slow pace, where no bound is
        given."""
        return self.scheduler.episode_s or EPISODE_S + self.planned_context / SLOW_TOKENS_PER_S

    @property
    def context_bound(self) -> ContextBound:
        """The bound of contexts: a wish, or what the machine holds."""
        return context_bound(self.model, self.rollout)

    @property
    def context_tokens(self) -> int:
        """Tokens of the longest context that engines may have."""
        return self.context_bound.tokens

    @property
    def planned_context(self) -> int:
        """Tokens of the contexts that the run is made ready for before it has any, at most context_tokens."""
        answers = ((entry.max_turns, entry.max_new_tokens) for entry in self.mixture)
        return planned_tokens(self.context_bound, answers)

    @property
    def loss_tokens(self) -> int:
        """The divisor of loss_mean = "constant": it depends on what the run file says, on no machine."""
        return self.trainer.loss_sequence_tokens or self.rollout.max_context_tokens or LOSS_SEQUENCE_TOKENS

    @property
    def longest_sequence(self) -> int:
        """The most tokens of a sequence. A trainer whose ranks were given a bound truncates what is longer
        than they can take, unless the selector may raise its cp.
        """
        given = self.trainer.microbatch_tokens
        plan = self.layout_plan
        least_cp = min(layout.cp for layout in plan.layouts(TRAINER)) if plan is not None else self.trainer.cp
        most_cp = self.trainer.ranks if self.selector_decides else least_cp
        return min(self.context_tokens, given * most_cp) if given else self.context_tokens

    @property
    def selector_decides(self) -> bool:
        """Returns whether stages may change their parallelism without being told: not without a profile."""
        scheduler = self.scheduler
        return self.selects_layouts and bool(scheduler.profile or scheduler.profile_s > 0)

    @property
    def selects_layouts(self) -> bool:
        """Returns whether layouts may change within a stage without being told: in a run with a pool, where
        devices move between stages, only by a profile that its file names."""
        scheduler = self.scheduler
        return scheduler.selector == "on" and (not self.stack.pool_devices or bool(scheduler.profile))

    @property
    def mixture(self) -> tuple[MixtureEntry, ...]:
        """The environments that the run plays, at least one in a run that passed `cross_check`."""
        sections = self.environments or ([self.environment] if self.environment is not None else [])
        return resolve(sections, self.scheduler, self.rollout, self.model, self.longest_sequence)

    @property
    def exact(self) -> bool:
        """Returns whether a plan decides what is trained, so that two runs make the same bits."""
        return self.deterministic is True

    @property
    def exact_kernels(self) -> bool:
        """Returns whether engines and ranks compute a sequence bit for bit the same, whatever it is with."""
        return bool(self.deterministic)

    @property
    def layout_plan(self) -> LayoutPlan | None:
        """The switches of parallelism that the run file names; None without any. Raises as LayoutPlan.of."""
        if not self.switch.plan:
            return None
        engines = Parallelism(self.rollout.engines, self.rollout.tp)
        initial = {ROLLOUT: engines, TRAINER: self.trainer.parallelism}
        return LayoutPlan.of(self.switch.plan, self.warmup.batches + 1, initial)

    @property
    def frozen(self) -> FrozenSchedule | None:
        """The frozen versions that the run trains against; None if it does not."""
        every = max((entry.frozen_every for entry in self.mixture), default=0)
        if not every or not self.scheduler.steps:
            return None
        return FrozenSchedule(self.warmup.batches + 1, every, self.scheduler.staleness)

    @property
    def pinned(self) -> PinnedSchedule | None:
        """The versions that tickets are pinned to: a deterministic run with staleness, or with planned
        switches, plans which version samples each. None where tickets take the newest version."""
        scheduler = self.scheduler
        if not self.exact or not scheduler.steps or not (scheduler.staleness or self.switch.plan):
            return None
        return PinnedSchedule(self.warmup.batches + 1, scheduler.staleness)

    @property
    def kept(self) -> KeptVersions | None:
        """The earlier versions that the trainer keeps readable; None if it keeps none."""
        schedules = [schedule for schedule in (self.frozen, self.pinned) if schedule is not None]
        return KeptVersions(schedules) if schedules else None

    @property
    def batch_trajectories(self) -> int:
        """The trajectories of a training batch, at most: environments may have group sizes of their own."""
        sizes = (entry.group_trajectories for entry in self.mixture)
        return max(sizes, default=self.scheduler.group_size) * self.scheduler.batch_groups

    @property
    def warmup_trajectories(self) -> int:
        """The trajectories of a batch of warm-up, at most."""
        return self.warmup.batch_episodes * max((entry.seats for entry in self.mixture), default=1)
