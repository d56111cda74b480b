"""Weights from a trainer's policy into two engines, as a run moves them.

policy on the device ─► slot in the arena ─► xxh3 of what a reader gets = xxh3 of the policy's own cast
                             ├─► engine ─┐
                             └─► engine ─┴─► greedy tokens and log-probs = those of an engine that was started
                                             with these weights as its checkpoint, bit for bit
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from benchmarks.children import REPORT, MeasurementWrong
from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.gpu.facts import gb_s, synchronise
from benchmarks.gpu.models import billion_config, tiny_config, write_checkpoint
from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.config.run import RunConfig
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import VersionGone
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import Engine, EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, slot_bytes
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh

RUN = "gpu"
CALL_S, LOAD_S, START_S = 60.0, 120.0, 180.0
ENGINES = 2
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 40, 12


class SingleRankTrainer:
    """A trainer of one rank that publishes its policy, without a run around it."""

    def __init__(self, settings: CheckSettings, model: Path, spec: ModelSpec, dtype: str) -> None:
        self.directory, self.dtype, self.spec = settings.arenas, dtype, spec
        self.side, self.group = IoThread(), Group(settings.device)
        sections = {"model": {"dtype": dtype}, "trainer": {"device": settings.device}}
        config = RunConfig.model_validate({"name": RUN, "environment": {"name": RUN}, **sections})
        self.policy = ShardedPolicy.of(spec, RankMesh(self.group, Parallelism(1), spec), config)
        self.policy.fill(model)
        self._valkey = EmbeddedValkey()
        self.side.run(self._valkey.start(settings.directory / "valkey"), CALL_S)
        self.url = self._valkey.url
        self.plane = DataPlaneConfig(arena_dir=str(settings.arenas))
        self._bus = self.side.run(Bus.connect(self.url, RUN), CALL_S)
        registry = Registry(self._bus.redis, self._bus.prefix, CALL_S)
        opening = TensorStore.open(
            registry, self.plane, settings.arenas, "trainer-0", incarnation=1,
            size_bytes=arena_bytes(slot_bytes(self.policy.model_shards, dtype)),
        )  # fmt: skip
        self._store = self.side.run(opening, LOAD_S)
        self.slots = WeightSlots(
            self.side, self._store, registry, self._bus, self.group, self.policy, name="trainer", dtype=dtype,
            lease_s=5.0,
        )  # fmt: skip
        self._reader = self.side.run(Dispatcher.create(registry, self.plane), CALL_S)

    def keys(self, version: int) -> list[str]:
        return [self.slots.key(version, 0)]

    @torch.no_grad()
    def change(self) -> None:
        """Makes the next version another one, as an optimizer's step would."""
        for shard in self.policy.model_shards:
            shard.local.mul_(1.01)

    def cast(self) -> dict[str, torch.Tensor]:
        """The policy as it is, in the published dtype, on the processor."""
        kind = getattr(torch, self.dtype)
        return {shard.name: values.to(kind).cpu().clone() for shard, values in self.policy.weights()}

    def read(self, version: int) -> dict[str, np.ndarray]:
        """Every tensor of a version as readers get it. Raises VersionGone."""
        kind = numpy_dtype(self.dtype)
        arrays = {shard.name: np.zeros(shard.shape, kind) for shard in self.policy.model_shards}
        reads = [Read(tuple(self.keys(version)), name, None, array) for name, array in arrays.items()]
        self.side.run(self._reader.read(reads, LOAD_S), LOAD_S)
        return arrays

    def close(self) -> None:
        self.side.run(self._reader.close(), CALL_S)
        self.slots.close()
        self.side.run(self._bus.close(), CALL_S)
        self.side.run(self._valkey.stop(), CALL_S)
        self.side.close()
        self.group.close()


@contextmanager
def publishing(
    settings: CheckSettings, model: Path, spec: ModelSpec, dtype: str
) -> Iterator[SingleRankTrainer]:
    trainer = SingleRankTrainer(settings, model, spec, dtype)
    try:
        yield trainer
    finally:
        trainer.close()


def digest_of(tensors: dict[str, np.ndarray]) -> str:
    """xxh3 over the tensors' bytes, in the order of their names."""
    digest = xxhash.xxh3_64()
    for name in sorted(tensors):
        digest.update(np.ascontiguousarray(tensors[name]).view(np.uint8).data)
    return digest.hexdigest()


def publish(settings: CheckSettings) -> CheckFigures:
    """Publishes three versions to two engines. Raises CheckFailed."""
    config = settings.pick(billion_config(4096), tiny_config(), tiny_config(layers=1))
    model = settings.directory / "model"
    spec = write_checkpoint(model, config, "bfloat16", settings.device)
    with publishing(settings, model, spec, "bfloat16") as trainer:
        return asyncio.run(_publish(settings, model, config, trainer))


async def _publish(
    settings: CheckSettings, model: Path, config: dict[str, Any], trainer: SingleRankTrainer
) -> CheckFigures:
    versions: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        engines = [
            await _started(stack, engine_spec(settings, model, trainer, f"engine-{number}"))
            for number in range(ENGINES)
        ]
        for version in range(1, settings.pick(4, 3, 2)):
            trainer.change()
            versions.append(await _version(settings, trainer, engines, version))
        last = versions[-1]["version"]
        expected = trainer.cast()
        outputs = [await _digest_of_output(engine, trainer.spec.vocab) for engine in engines]
        # A version that nobody published, or that is gone: refused, and nothing changes.
        refused = 0
        for engine in engines:
            try:
                await engine.load_weights(last + 1, trainer.keys(last + 1), LOAD_S)
            except VersionGone:
                refused += 1
        after = [await _digest_of_output(engine, trainer.spec.vocab) for engine in engines]
    started_with = settings.directory / "published"
    _write(started_with, config, expected)
    async with AsyncExitStack() as stack:
        spec = engine_spec(settings, started_with, trainer, "engine-checkpoint", load_initial=True)
        checkpoint = await _started(stack, spec)
        from_checkpoint = await _digest_of_output(checkpoint, trainer.spec.vocab)
    figures = {
        "parameters": trainer.spec.parameters,
        "versions": versions,
        "engine_outputs_xxh3": outputs,
        "checkpoint_output_xxh3": from_checkpoint,
        "unpublished_refused": refused,
    }
    return judged(
        figures,
        {"hashes": "equal"},
        {
            "what a reader gets is not the trainer's cast": any(
                row["read_xxh3"] != row["trainer_xxh3"] for row in versions
            ),
            "the engines do not compute what one with this checkpoint does": {*outputs} != {from_checkpoint},
            "a version that was not published was loaded": refused != len(engines),
            "a load that was refused changed what the engines compute": after != outputs,
        },
    )


async def _version(
    settings: CheckSettings, trainer: SingleRankTrainer, engines: Sequence[Engine], version: int
) -> dict[str, Any]:
    """Publishes one version and loads it into all engines at once."""
    synchronise(settings.device)
    started = time.perf_counter()
    trainer.slots.publish(version)
    published_s = time.perf_counter() - started
    started = time.perf_counter()
    expected = trainer.cast()
    cast_s = time.perf_counter() - started
    bits = {name: tensor.view(torch.uint16).numpy() for name, tensor in expected.items()}
    reports = await asyncio.gather(
        *(engine.load_weights(version, trainer.keys(version), LOAD_S) for engine in engines)
    )
    size_bytes = sum(array.nbytes for array in bits.values())
    for report in reports:
        if report.version != version or report.size_bytes < size_bytes:
            raise MeasurementWrong(f"{report} is of {size_bytes} bytes of version {version}", REPORT)
    return {
        "version": version,
        "size_mib": round(size_bytes / (1 << 20), 1),
        "publish_s": round(published_s, 4),
        "publish_gb_s": gb_s(size_bytes, published_s),
        # The same cast into fresh memory.
        "publish_vs_cast": round(published_s / cast_s, 2),
        "read_gb_s": [gb_s(report.size_bytes, report.read_s) for report in reports],
        "stall_s": [round(report.stall_s, 4) for report in reports],
        "trainer_xxh3": digest_of(bits),
        "read_xxh3": digest_of(trainer.read(version)),
    }


def engine_spec(
    settings: CheckSettings, model: Path, trainer: SingleRankTrainer, name: str, *, load_initial: bool = False
) -> EngineSpec:
    """An engine that loads what `trainer` publishes."""
    return EngineSpec(
        name=name,
        model_dir=str(model),
        device=settings.device,
        dtype="bfloat16",
        max_sequences=8,
        max_context_tokens=PROMPT_TOKENS + NEW_TOKENS + 8,
        load_initial=load_initial,
        redis_url=trainer.url,
        run=RUN,
        data_plane=trainer.plane.model_dump_json(),
        arena_dir=str(settings.arenas),
        start_s=START_S,
    )


async def _started(stack: AsyncExitStack, spec: EngineSpec) -> Engine:
    engine = EngineProcess(spec)
    stack.push_async_callback(engine.stop)
    await engine.start()
    return engine


async def _digest_of_output(engine: Engine, vocabulary: int) -> str:
    """xxh3 of what an engine generates greedily, tokens and log-probs, one prompt after the other."""
    generator, digest = np.random.default_rng(0), xxhash.xxh3_64()
    for number in range(PROMPTS):
        ids = generator.integers(0, vocabulary, PROMPT_TOKENS).tolist()
        request = GenerateRequest(
            request_id=f"p{number}", ids=ids, max_new_tokens=NEW_TOKENS, temperature=0.0
        )
        generation = await engine.generate_all(request)
        digest.update(np.array(generation.ids, np.int64).data)
        digest.update(np.array(generation.logprobs, np.float64).data)
    return digest.hexdigest()


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    directory.mkdir()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}), encoding="utf-8")
