"""A trainer's ranks change parallelism between steps: how long training waits, and the memory it takes.

    here ─ a process a rank ─► step ─► switch ─► step ─► switch …   rank 0 prints each outcome

All that a run does at a switch is done: parameters and moments move, canaries are computed before and after,
published versions stay readable, and the next version is published in the new layout.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import outputs_of
from benchmarks.record.checkout import ROOT
from benchmarks.reparallelize.model import RUN
from earl.config.scheduler import SwitchDeadlines
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand

CALL_S, MEASURE_S = 60.0, 1800.0
DEADLINES = SwitchDeadlines(prepare_s=300.0, quiesce_s=300.0, switch_s=300.0, verify_s=300.0)
SEQUENCES, TOKENS = 8, 64
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """The work of each rank. parallelisms: in turn; the ranks begin in the last."""

    model: str
    redis_url: str
    arenas: str
    parallelisms: tuple[str, ...]
    threads: int
    device: str = "cpu"

    @property
    def ranks(self) -> int:
        return Parallelism.parse(self.parallelisms[-1]).devices


def measure(job: Job) -> dict[str, Any]:
    """The figures of all switches."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(job.ranks)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(job))],
            cwd=ROOT,
            env=os.environ
            | where
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(job.ranks)
    ]
    outputs = outputs_of(ranks, "the trainer ranks", MEASURE_S)
    return figures([json.loads(line) for line in outputs[0].splitlines()])


def figures(switches: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of switches from their outcomes, in order."""
    stalls_ms = [1e3 * outcome["stall_s"] for outcome in switches]
    phases = dict.fromkeys(name for outcome in switches for name in outcome["phases_s"])
    return {
        "trainer_ms_p50": round(statistics.median(stalls_ms), 1),
        "trainer_ms_worst": round(max(stalls_ms), 1),
        "trainer_peak_extra_bytes": max(outcome["peak_extra_bytes"] for outcome in switches),
        "trainer_max_logprob_diff": max(outcome["max_logprob_difference"] for outcome in switches),
        "trainer_phase_ms_p50": {
            name: round(
                1e3 * statistics.median(outcome["phases_s"].get(name, 0.0) for outcome in switches), 1
            )
            for name in phases
        },
        "trainer_cpu_ms_p50": round(1e3 * statistics.median(outcome["cpu_s"] for outcome in switches), 1),
        "trainer_rolled_back": sum(outcome["rolled_back"] for outcome in switches),
        "trainer_switches": switches,
    }


def _rank(job: Job) -> None:
    import secrets

    import torch

    from earl.bus import Bus
    from earl.config.data_plane import DataPlaneConfig
    from earl.config.run import RunConfig
    from earl.dispatch.publish.tensor_store import TensorStore
    from earl.dispatch.registry.registry import Registry
    from earl.models.spec import load_spec
    from services.trainer.model.sharded_policy import ShardedPolicy
    from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, largest_slot_bytes
    from services.trainer.ranks.io_thread import IoThread
    from services.trainer.ranks.process_group import Group, leave
    from services.trainer.ranks.rank_mesh import RankMesh
    from services.trainer.ranks.runtime import settle
    from services.trainer.reshard.switch import switch
    from services.trainer.reshard.trainer_state import TrainerChange
    from services.trainer.step.step import Stepper

    trainer = {"ranks": job.ranks, "device": job.device, "threads": job.threads, "lr": 1e-5}
    config = RunConfig.model_validate(
        {"name": RUN, "environment": {"name": "none"}, "model": {"dtype": "float32"}, "trainer": trainer}
    )
    settle(config)
    spec = load_spec(Path(job.model))
    side, group = IoThread(), Group(config.trainer.device)
    policy = ShardedPolicy.of(spec, RankMesh(group, Parallelism.parse(job.parallelisms[-1]), spec), config)
    policy.fill(Path(job.model))
    stepper = Stepper(policy, config)
    bus = side.run(Bus.connect(job.redis_url, RUN), CALL_S)
    registry = Registry(bus.redis, bus.prefix, CALL_S)

    async def open_store(size_bytes: int) -> TensorStore:
        return await TensorStore.open(
            registry,
            DataPlaneConfig(arena_dir=job.arenas),
            Path(job.arenas),
            f"switched-{group.rank}",
            incarnation=secrets.randbits(64),
            size_bytes=size_bytes,
        )

    capacity_bytes = largest_slot_bytes(spec, group.rank, group.size, "float32")
    store = side.run(open_store(arena_bytes(capacity_bytes)), CALL_S)
    slots = WeightSlots(
        side, store, registry, bus, group, policy, name="switched", dtype="float32", lease_s=5.0,
        capacity_bytes=capacity_bytes,
    )  # fmt: skip
    version = 1
    for epoch, parallelism in enumerate(job.parallelisms, 1):
        stepper.train(*_batch(stepper, version))
        version += 1
        slots.publish(version)
        command = SwitchCommand(
            epoch, Parallelism.parse(parallelism), DEADLINES, TOLERANCE, requested_s=time.monotonic()
        )
        change = TrainerChange(stepper, slots)
        cpu_began_s = time.process_time()
        outcome = switch(command, change)
        cpu_s = group.sum(torch.tensor([time.process_time() - cpu_began_s], dtype=torch.float64))
        stepper = change.stepper
        if group.leads:
            line = asdict(outcome) | {"parallelism": parallelism, "cpu_s": float(cpu_s[0])}
            print(json.dumps(line), flush=True)
    slots.close()
    side.run(bus.close(), CALL_S)
    side.close()
    group.barrier()
    group.close()
    leave(0)


def _batch(stepper: Any, version: int) -> tuple[Any, Any]:
    """(plan, this rank's columns) of SEQUENCES random sequences of TOKENS tokens."""
    from services.trainer.step.batch import Columns
    from services.trainer.step.plan import ReplicaSequence, TrainingPlan

    rng = np.random.default_rng(version)
    tokens = rng.integers(0, stepper.policy.spec.vocab, (SEQUENCES, TOKENS)).astype(np.int32)
    items = [ReplicaSequence(n, 1, str(n), 1.0 - 2.0 * (n % 2), TOKENS, position=n) for n in range(SEQUENCES)]
    dp, replica = stepper.mesh.data_ranks, stepper.mesh.replica
    ranks = tuple(tuple(items[rank::dp]) for rank in range(dp))
    columns = Columns()
    columns.take(ranks[replica])
    mask = np.tile(np.arange(TOKENS) % 2, len(columns.items))
    columns.sampled["tokens"][:] = tokens[replica::dp].ravel()
    columns.sampled["loss_mask"][:] = mask
    columns.sampled["logprobs"][:] = -np.log(stepper.policy.spec.vocab) * mask
    return TrainingPlan(version, version, "policy_gradient", ranks, True, False, 0.0, False), columns


if __name__ == "__main__":
    _arguments = json.loads(sys.argv[1])
    _rank(Job(**(_arguments | {"parallelisms": tuple(_arguments["parallelisms"])})))
