"""Plans the processes of a run on this machine, with their order and names. Pure.

    valkey ──► scheduler ──┐
       └─────► gateway ────┼──► rollout-0 .. n      (an arrow: must be ready, or done, before)
               │           ├──► trainer, reference, teacher, reward_model
               └► env-0..n │
    model ──► profile ─────┘           scheduler, gateway ──► dashboard

`model` and `profile` are jobs: one makes the run's model directory, the other measures layouts for the
selector (where it may choose between some), and they end. All others serve until they are
stopped; trainer, frozen models and rollout workers also end by themselves when the run has ended.
Ranks and engines are their services' own: the trainer calls torchrun, a rollout worker its engines.
The reference stage is there only where the loss wants the KL to it (trainer.kl_coefficient or
trainer.protected_kl above 0), teacher and reward model only where the run has one (teacher.path or
teacher.url, reward_model.path). A teacher may end before the run does: once it no longer counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from earl.config.mixture import host_plans
from earl.config.run import RunConfig
from earl.errors import EpisodesFailing, FragmentError, UnknownEnvironment
from earl.stack.placement import Placement

VALKEY = "valkey"
MODEL = "model"
PROFILE = "profile"
SCHEDULER = "scheduler"
GATEWAY = "gateway"
TRAINER = "trainer"
TEACHER = "teacher"
DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: `python <arguments>` with these variables added to the launcher's.

    needs: names of the processes that must be ready (a job: done) before it begins; it calls await_peers.
    job: it ends by itself with exit code 0 before the run can continue.
    ends_with_run: exit code 0 is expected once the scheduler reports that the run is done.
    may_end_early: exit code 0 is expected at any time, for its work may be done before the run is.
    restartable: the ledger makes it safe to start it again after a crash.
    verdicts: exit codes that end the run and are no crash: it is not started again after those.
    stop_rank: processes are stopped rank by rank, lowest first.
    role: whose token it gets; "" none.
    calls_teacher: it gets the token of the served teacher.
    expendable: the run continues without it.
    nice: by how much its scheduling priority is lowered, 0 to 19.
    """

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    job: bool = False
    ends_with_run: bool = False
    may_end_early: bool = False
    restartable: bool = False
    verdicts: tuple[int, ...] = ()
    stop_rank: int = 0
    role: str = "worker"
    calls_teacher: bool = False
    expendable: bool = False
    nice: int = 0


@dataclass(frozen=True, slots=True)
class StackAddresses:
    """The addresses of the run's services (host:port, ports known) and where its Redis is.

    redis_url is empty until an embedded Valkey has reported its address.
    """

    scheduler: str
    gateway: str
    redis_url: str = ""

    def environment(self) -> dict[str, str]:
        """The variables that every service reads its peers' addresses from."""
        return {
            "EARL_SCHEDULER": self.scheduler,
            "EARL_GATEWAY": self.gateway,
            "EARL_REDIS_URL": self.redis_url,
        }


def placed(
    specs: Sequence[ProcessSpec], placement: Placement, visible: str | None = None
) -> list[ProcessSpec]:
    """The processes, each of which sees the GPUs that are its own. visible: as for Placement.environment.

    One that computes on GPUs keeps its priority: they would wait for it.
    """
    return [
        replace(
            spec,
            environment=spec.environment | placement.environment(spec.name, visible),
            nice=0 if spec.name in placement.on_gpus else spec.nice,
        )
        for spec in specs
    ]


def plan(config: RunConfig, run_json: Path) -> list[ProcessSpec]:
    """The processes of a run, each after those that it needs. run_json: the resolved run file."""
    run = ("--run", str(run_json))
    embedded = not config.bus.redis_url
    bus = (VALKEY,) if embedded else ()
    specs: list[ProcessSpec] = []
    if embedded:
        specs.append(ProcessSpec(VALKEY, ("-m", "earl.stack.valkey", *run), stop_rank=3, role=""))
    served = bool(config.teacher.url)
    model = ("-m", "earl.models", *run)
    specs.append(ProcessSpec(MODEL, model, job=True, role="", calls_teacher=served))
    if profiles(config):
        module = "services.scheduler.profiler"
        specs.append(ProcessSpec(PROFILE, ("-m", module, *run), needs=(MODEL,), job=True, role=""))
    # Everything that it knows is in Redis; who calls it waits for its successor.
    specs.append(
        ProcessSpec(
            SCHEDULER,
            ("-m", "services.scheduler", *run),
            needs=bus,
            restartable=True,
            verdicts=(EpisodesFailing.exit_code,),
            stop_rank=2,
        )
    )
    specs.append(
        ProcessSpec(GATEWAY, ("-m", "services.env_gateway", *run), needs=bus, restartable=True, stop_rank=1)
    )
    targets = [plan.serve for plan in host_plans(config.mixture) for _ in range(plan.hosts)]
    specs += [
        ProcessSpec(
            f"env-{index}",
            ("-m", "earl.env.host", *run, "--name", f"env-{index}", "--serve", target),
            needs=(GATEWAY,),
            restartable=True,
            role="environment",
        )
        for index, target in enumerate(targets)
    ]
    # Workers would disturb the measurement.
    made = (PROFILE if profiles(config) else MODEL,)
    workers = (*made, SCHEDULER, GATEWAY, *bus)
    # The trainer first: it publishes the weights that the engines wait for.
    nice = config.stack.nice
    specs.append(_worker(TRAINER, "services.trainer", run, workers, config.trainer.threads, nice))
    for role, stage in config.frozen_stages.items():
        needs = (*made, SCHEDULER, *bus)
        spec = _worker(role, f"services.trainer.{role}", run, needs, stage.threads, nice)
        taught = role == TEACHER
        specs.append(replace(spec, may_end_early=taught, calls_teacher=taught and served))
    specs += [
        _worker(f"rollout-{index}", "services.rollout", run, workers, config.rollout.threads, nice)
        for index in range(config.rollout.workers)
    ]
    return [*specs, *_observers(config, run)]


def profiles(config: RunConfig) -> bool:
    """Tells if a launch asks for a short profile: the selector decides, has no profile, and some stage has
    several devices."""
    scheduler, rollout = config.scheduler, config.rollout
    devices = max(
        rollout.engines * rollout.tp,
        config.trainer.ranks,
        config.reference.dp * config.reference.tp if config.trainer.uses_reference else 1,
    )
    # A division of a pool is decided by what the run itself measures.
    decides = scheduler.selector != "static" and not config.stack.pool_devices
    return decides and not scheduler.profile and scheduler.profile_s > 0 and devices > 1


def _observers(config: RunConfig, run: tuple[str, ...]) -> list[ProcessSpec]:
    """The processes that show a run to others and that it does without: sinks and the dashboard.

    They come after the scheduler, which writes what they read.
    """
    specs = [
        ProcessSpec(
            f"sink-{name}",
            ("-m", "earl.stack.sink", *run, "--to", name),
            restartable=True,
            stop_rank=3,
            role="",
            expendable=True,
        )
        for name in config.obs.sinks
    ]
    if config.dashboard.bind:
        specs.append(
            ProcessSpec(
                DASHBOARD,
                ("-m", "earl.dashboard", *run),
                needs=(SCHEDULER, GATEWAY),
                restartable=True,
                expendable=True,
                role="viewer",
            )
        )
    return specs


def _worker(
    name: str, module: str, run: tuple[str, ...], needs: tuple[str, ...], threads: int, nice: int
) -> ProcessSpec:
    """A worker of a stage, which ends with the run."""
    return ProcessSpec(
        name,
        ("-m", module, *run, "--name", name),
        needs=needs,
        environment={"OMP_NUM_THREADS": str(threads or 1)},
        ends_with_run=True,
        restartable=True,
        verdicts=(UnknownEnvironment.exit_code, FragmentError.exit_code),
        nice=nice,
    )
