"""The state of a run as plain values: one snapshot for the terminal view and the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from earl.obs.outcomes import has_winners
from earl.switch_figures import StageSwitch

# After so long without a sign of life a small fleet's worker is shown with its time.
LATE_S = 5.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles of a length distribution, in tokens."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Tickets by state; issued = trained + replayed + evaluated + dropped + live at every moment."""

    issued: int = 0
    trained: int = 0
    evaluated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    pending: int = 0
    leased: int = 0
    ready: int = 0
    planned: int = 0
    replayed: int = 0

    @property
    def live(self) -> int:
        return self.pending + self.leased + self.ready + self.planned

    @property
    def dropped_total(self) -> int:
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class TicketLease:
    """A ticket that a worker plays. age_s: since it was leased, or the scheduler began if that is later.

    purpose: "train", "warmup", or the name of the evaluation that it is of.
    """

    ticket: int
    worker: str
    age_s: float
    attempt: int
    purpose: str


@dataclass(frozen=True, slots=True)
class Transfers:
    """Reads of one worker over one path. retries: requests that were sent again."""

    size_bytes: int
    seconds: float
    retries: int

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second of reading; 0 while nothing was read."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RoleState:
    """Trajectories by what a consumer (the reference stage, the trainer) has done with them."""

    name: str
    waiting: int
    leased: int
    done: int


@dataclass(frozen=True, slots=True)
class StageState:
    """A stage's parallelism, and what the selector decided for it last, if it did.

    running: "" while its workers differ. chosen: what the selector would choose; sentence: that, with the
    reason. pinned: the selector does not change it. epoch: number of its newest switch. switching: the switch
    in progress; last: the switch that ended last.
    """

    name: str
    running: str
    chosen: str = ""
    sentence: str = ""
    pinned: bool = False
    epoch: int = 0
    switching: StageSwitch[str] | None = None
    last: StageSwitch[str] | None = None

    @property
    def differs(self) -> bool:
        """Returns whether the selector would choose another parallelism."""
        return bool(self.chosen) and self.chosen != self.running


@dataclass(frozen=True, slots=True)
class DeviceMoveState:
    """A move of devices from one stage of a pool to another.

    before, after: devices by stage, in the order of POOLED. holds: what each has for sure. phase: "giving",
    "given", "taking", "returning" or "ended". stall_s: for which the ranks of giver and taker stood still.
    layouts: by stage, of what each has for sure, as far as it is known.
    """

    number: int
    before: Mapping[str, int]
    after: Mapping[str, int]
    holds: Mapping[str, int]
    reason: str
    phase: str
    rolled_back: bool
    message: str
    stall_s: float
    seconds: float
    layouts: Mapping[str, str]

    @property
    def running(self) -> bool:
        return self.phase != "ended"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as the scheduler sees it. transfers: by path."""

    name: str
    stage: str
    parallelism: str
    capacity: int
    running: int
    version: int
    silent_s: float
    gauges: Mapping[str, float]
    transfers: Mapping[str, Transfers]


@dataclass(frozen=True, slots=True)
class ConfidenceBounds:
    """A 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean difference of rewards to the run's first evaluation, over the `episodes` instances of both."""

    value: float
    bounds: ConfidenceBounds | None
    episodes: int


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """One evaluation, in progress or done. metrics: means of the environment's numbers, 0..1 for rates.

    Bounds are None where too few episodes are done, the gain for the run's first evaluation.
    """

    name: str
    version: int
    episodes: int
    done: int
    win_rate: float
    mean_reward: float
    metrics: Mapping[str, float]
    failed: int = 0
    win_bounds: ConfidenceBounds | None = None
    reward_bounds: ConfidenceBounds | None = None
    gain: Gain | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The scheduler's answer to GetStatus."""

    run: str = ""
    phase: str = ""
    step: int = 0
    steps: int = 0
    version: int = 0
    ledger: LedgerStatus = LedgerStatus()
    workers: tuple[WorkerState, ...] = ()
    evaluations: tuple[EvaluationStatus, ...] = ()
    episode_tokens: Lengths = Lengths()
    turn_tokens: Lengths = Lengths()
    metrics: Mapping[str, float] = field(default_factory=dict)
    elapsed_s: float = 0.0
    done: bool = False
    message: str = ""
    # The version with the best evaluation so far, 0 if none.
    best_version: int = 0
    # Stages that make columns, then the trainer; empty in a run without such a stage.
    roles: tuple[RoleState, ...] = ()
    stages: tuple[StageState, ...] = ()
    # Interval of each worker's heartbeats; longer in a large fleet.
    heartbeat_s: float = 0.0
    # That the run's times are simulated, and by what; empty where devices are real.
    paced: str = ""
    move: DeviceMoveState | None = None

    def is_late(self, worker: WorkerState) -> bool:
        """Returns whether a worker was last seen longer ago than its heartbeats allow."""
        return worker.silent_s > max(LATE_S, 2 * self.heartbeat_s)

    @property
    def has_winners(self) -> bool:
        """Returns whether episodes are won or lost; elsewhere a reward is a score."""
        return has_winners(self.metrics, {name for item in self.evaluations for name in item.metrics})

    def evaluation(self, name: str) -> EvaluationStatus | None:
        """The latest evaluation of that name, for example "final"."""
        return next((item for item in reversed(self.evaluations) if item.name == name), None)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the stack. state: waiting, starting, ready, restarting, done, failed, stopped.

    seconds: since it came into that state. pid: 0 before it was started. expendable: the run continues
    without it should it fail. usual_s: seconds that it took to start the last time with the run's model on
    this machine, 0 if that is not known; most_s: seconds that it may take, 0 without a bound.
    """

    name: str
    state: str
    seconds: float
    restarts: int
    pid: int = 0
    expendable: bool = False
    usual_s: float = 0.0
    most_s: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Returns whether nothing waits for the process: it serves, has finished, or failed and is
        expendable.
        """
        return self.state in ("ready", "done") or (self.expendable and self.state == "failed")

    @property
    def identity(self) -> tuple[str, str, int]:
        """Returns values that change whenever the process's state does."""
        return self.name, self.state, self.pid
