"""Which processes a run on this machine has, in which order, under which names: a pure function.

    valkey ──► scheduler ──┐
       └─────► gateway ────┼──► rollout-0 .. n      (an arrow: must be ready, or done, before)
               │           ├──► trainer, reference
               └► env-0..n │
    model ─────────────────┘           scheduler, gateway ──► dashboard

`model` is a job: it makes the run's model directory and ends. All others serve until they are
told to stop; trainer, reference stage and rollout workers also end by themselves when the run is over.
Ranks and engines are their services' own: the trainer calls torchrun, a rollout worker its engines.
The reference stage is there only where the loss wants the KL to it (trainer.kl_coefficient > 0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EpisodesFailing

VALKEY = "valkey"
MODEL = "model"
SCHEDULER = "scheduler"
GATEWAY = "gateway"
TRAINER = "trainer"
REFERENCE = "reference"
DASHBOARD = "dashboard"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: `python <arguments>` with these variables added to the launcher's.

    needs: names of the processes that must be ready (a job: done) before it begins; it calls await_peers.
    job: it ends by itself with exit code 0 before the run can go on.
    ends_with_run: exit code 0 is fine once the scheduler says that the run is done.
    restartable: the ledger makes it safe to start it again after a crash.
    verdicts: exit codes that judge the run and are no crash: it is not started again after those.
    stop_rank: processes are stopped rank by rank, lowest first.
    role: whose token it gets; "" none.
    expendable: the run goes on without it.
    """

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    job: bool = False
    ends_with_run: bool = False
    restartable: bool = False
    verdicts: tuple[int, ...] = ()
    stop_rank: int = 0
    role: str = "worker"
    expendable: bool = False


@dataclass(frozen=True, slots=True)
class StackAddresses:
    """Where the run's services listen (host:port, ports known) and where its Redis is.

    redis_url is empty until an embedded Valkey has said where it serves.
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


def plan(config: RunConfig, run_json: Path) -> list[ProcessSpec]:
    """The processes of a run, each after those that it needs. run_json: the resolved run file."""
    run = ("--run", str(run_json))
    embedded = not config.bus.redis_url
    bus = (VALKEY,) if embedded else ()
    specs: list[ProcessSpec] = []
    if embedded:
        specs.append(ProcessSpec(VALKEY, ("-m", "earl.stack.valkey", *run), stop_rank=3, role=""))
    specs.append(ProcessSpec(MODEL, ("-m", "earl.models", *run), job=True, role=""))
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
    if config.environment.serve:
        specs += [
            ProcessSpec(
                f"env-{index}",
                ("-m", "earl.env.host", *run, "--name", f"env-{index}"),
                needs=(GATEWAY,),
                restartable=True,
                role="environment",
            )
            for index in range(config.environment.hosts)
        ]
    workers = (MODEL, SCHEDULER, GATEWAY, *bus)
    # The trainer first: it publishes the weights that the engines wait for.
    specs.append(
        ProcessSpec(
            TRAINER,
            ("-m", "services.trainer", *run, "--name", TRAINER),
            needs=workers,
            environment={"OMP_NUM_THREADS": str(config.trainer.threads)},
            ends_with_run=True,
            restartable=True,
        )
    )
    if config.trainer.kl_coefficient > 0:
        specs.append(
            ProcessSpec(
                REFERENCE,
                ("-m", "services.trainer.reference", *run, "--name", REFERENCE),
                needs=(MODEL, SCHEDULER, *bus),
                environment={"OMP_NUM_THREADS": str(config.reference.threads)},
                ends_with_run=True,
                restartable=True,
            )
        )
    specs += [
        ProcessSpec(
            f"rollout-{index}",
            ("-m", "services.rollout", *run, "--name", f"rollout-{index}"),
            needs=workers,
            environment={"OMP_NUM_THREADS": str(config.rollout.threads)},
            ends_with_run=True,
            restartable=True,
        )
        for index in range(config.rollout.workers)
    ]
    # After the scheduler, which writes what they read.
    specs += [
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
