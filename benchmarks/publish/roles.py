"""The processes of `earl bench publish`: a trainer's rank, and a rollout worker with its engines.

A role reads its work as JSON lines on stdin and answers each on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvloop

from benchmarks.publish.memory import file_bytes, private_bytes
from benchmarks.publish.model import DTYPE
from benchmarks.role import answer_commands
from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.config.run import RunConfig
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.errors import VersionGone
from earl.models.spec import load_spec
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.host_copy import HostCopy
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import Publication
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import SLOTS, WeightSlots, published_classes, slot_bytes
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh

RUN = "bench"
LEASE_S = 3600.0
CALL_S = 120.0
MARGIN_BYTES = 1 << 20


class PublishingTrainer:
    """A trainer of one rank, with a third slot for the plain copy."""

    def __init__(self, role: dict[str, Any]) -> None:
        torch.set_num_threads(role["threads"])
        self.io, self.group = IoThread(), Group("cpu")
        self.plane = DataPlaneConfig.model_validate_json(role["data_plane"])
        config = RunConfig.model_validate(
            {
                "name": RUN,
                "environment": {"name": "e"},
                "model": {"dtype": DTYPE},
                "trainer": {"device": "cpu"},
            }
        )
        spec = load_spec(role["model"])
        mesh = RankMesh(self.group, Parallelism(1), spec)
        self.policy = ShardedPolicy.of(spec, mesh, config)
        self.policy.fill(Path(role["model"]), 0)
        self.bus = self.io.run(Bus.connect(role["redis"], RUN), CALL_S)
        self.registry = Registry(self.bus.redis, self.bus.prefix, LEASE_S)
        version_bytes = slot_bytes(self.policy.model_shards, DTYPE)
        self.arenas = Path(role["arenas"])
        opening = TensorStore.open(
            self.registry, self.plane, self.arenas, "trainer-0", incarnation=1,
            size_bytes=(SLOTS + 1) * occupied(version_bytes) + MARGIN_BYTES,
        )  # fmt: skip
        self.store = self.io.run(opening, CALL_S)
        self.slots = WeightSlots(
            self.io, self.store, self.registry, self.bus, self.group, self.policy,
            name="trainer", dtype=DTYPE, lease_s=60.0,
        )  # fmt: skip
        self.plain = self.io.run(self._third_slot(), CALL_S)
        self.version = 0
        self.matrix = torch.ones(512, 512)

    async def _third_slot(self) -> dict[str, np.ndarray]:
        return self.store.reserve_classes("plain", published_classes(self.policy.model_shards, DTYPE))

    def start(self) -> dict[str, Any]:
        return {
            "path": self.store.arena.ref.path,
            "version_bytes": slot_bytes(self.policy.model_shards, DTYPE),
            "parameters": self.policy.spec.parameters,
        }

    def publish(self, work: dict[str, Any]) -> dict[str, Any]:
        """Publishes the next version; the seconds that training stands for it."""
        self.version += 1
        started = time.perf_counter()
        self.slots.retire_early()
        stood_s = time.perf_counter() - started
        self._train(work)
        started = time.perf_counter()
        self.slots.publish(self.version)
        stood_s += time.perf_counter() - started
        # What is left is done while the next step computes.
        self.slots.settle()
        return {"version": self.version, "keys": [self.slots.key(self.version, 0)], "seconds": stood_s}

    @torch.no_grad()
    def copy(self, work: dict[str, Any]) -> dict[str, Any]:
        """Copies the same tensors with the same cast into a slot that is not published."""
        self._train(work)
        started = time.perf_counter()
        for shard, values in self.policy.weights():
            target = torch.from_numpy(self.plain[shard.name]).view(getattr(torch, DTYPE))
            target.copy_(values if values.device == target.device else values.to(target.dtype))
        return {"seconds": time.perf_counter() - started}

    def _train(self, work: dict[str, Any]) -> None:
        """Computes for a while, as the step does that a version ends: caches hold other things after it."""
        until_s = time.perf_counter() + work.get("training_s", 0.0)
        while time.perf_counter() < until_s:
            torch.mm(self.matrix, self.matrix)

    def close(self) -> None:
        self.slots.close()
        self.io.run(self.bus.close(), CALL_S)


class ApplyingWorker:
    """A rollout worker's pool of engines, which had all their weights before the first version came."""

    def __init__(self, role: dict[str, Any]) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.arenas, self.trainers = Path(role["arenas"]), [Path(role["trainer_arena"])]
        base = EngineSpec(
            name="rollout-0",
            model_dir=role["model"],
            device="cpu",
            dtype=DTYPE,
            max_sequences=1,
            max_context_tokens=64,
            redis_url=role["redis"],
            run=RUN,
            data_plane=role["data_plane"],
            arena_dir=role["arenas"],
            start_s=CALL_S,
        )
        devices = PoolDevices(base, role["engines"], load_spec(role["model"]))
        self.pool = EnginePool(devices, EngineProcess, restarts=0, load_s=CALL_S, copy=HostCopy(base))
        self.loaded = 0

    def start(self) -> dict[str, Any]:
        self.runner.run(self._start())
        self.before = self.held_bytes()
        return {}

    async def _start(self) -> None:
        await self.pool.start()
        # What reads versions is there from the first attempt on, and no part of any of them.
        for engine in self.engines:
            with contextlib.suppress(VersionGone):
                await engine.load_weights(1, ["weights/1/nobody"], CALL_S)
        with contextlib.suppress(VersionGone):
            await self.pool.load(Publication(0, 1, ("weights/1/nobody",)))

    @property
    def engines(self) -> list[EngineProcess]:
        return [engine for engine in self.pool.router.replicas.engines if isinstance(engine, EngineProcess)]

    def held_bytes(self) -> int:
        """Memory of the worker and its engines, without what they map of the trainer's."""
        pids = [os.getpid(), *(pid for engine in self.engines for pid in engine.pids)]
        return private_bytes(pids) + file_bytes(self.arenas, self.trainers)

    def load(self, work: dict[str, Any]) -> dict[str, Any]:
        """Loads a version into all engines; what worker and engines hold more than without any version."""
        return self.runner.run(self._load(work))

    async def _load(self, work: dict[str, Any]) -> dict[str, Any]:
        self.loaded += 1
        started = time.perf_counter()
        await self.pool.load(Publication(self.loaded, work["version"], tuple(work["keys"])))
        seconds = time.perf_counter() - started
        held = self.held_bytes() - self.before
        paths = {t.path for stats in await self.pool.stats() if stats is not None for t in stats.transfers}
        paths |= {transfer.path for transfer in self.pool.transfers}
        return {"held_bytes": held, "seconds": seconds, "paths": sorted(paths)}

    def sample(self, work: dict[str, Any]) -> dict[str, Any]:
        """A few greedy tokens and their log-probs of each engine."""
        return {"answers": self.runner.run(self._sample())}

    async def _sample(self) -> list[list[Any]]:
        request = GenerateRequest(request_id="s", ids=[1, 2, 3], max_new_tokens=4, temperature=0.0)
        generations = [await engine.generate_all(request) for engine in self.engines]
        return [[made.ids, made.logprobs, made.versions] for made in generations]

    def close(self) -> None:
        self.runner.run(self.pool.stop())


def main() -> None:
    answer_commands({"trainer": PublishingTrainer, "worker": ApplyingWorker})
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit


if __name__ == "__main__":
    main()
