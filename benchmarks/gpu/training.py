"""The trainer's step on the device: the processor's numbers, its speed, and what running out of memory costs.

the same model, batches and settings ─► device, float32 ─┬─► update, losses, log-probs compared
                                    └─► processor ───────┘    (bfloat16 beside it, more loosely)
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.gpu.facts import synchronise
from benchmarks.gpu.models import billion_config, tiny_config, write_checkpoint
from benchmarks.trainer_memory import data_bytes
from earl.config.run import RunConfig
from earl.errors import EarlError, EngineOutOfMemory, OutOfMemory
from earl.models.return_pages import return_pages
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.scheduler.memory import predict
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.probe import ProbedTrainer
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.ranks.runtime import settle
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, TrainingPlan
from services.trainer.step.step import Stepper

GIB = 1 << 30
SEQUENCES, LONGEST = 8, 64
# Adam divides gradients by their size: where one is nearly zero its rounding decides the sign of an update.
TOLERANCE = {
    "float32": {"loss": 1e-3, "logprob_max": 1e-3, "update_cosine_min": 0.999},
    "bfloat16": {"loss": 0.05, "logprob_median": 0.05, "update_cosine_min": 0.9},
}
# Dense bfloat16 operations a second, by a part of the card's name: for the share of them that a step uses.
PEAK_OPERATIONS = {"H100": 989e12, "H200": 989e12, "GH200": 989e12, "A100": 312e12, "B200": 2250e12}
# Part of what a step is predicted to add to a model that may be taken where it must run out of memory.
TOO_LITTLE = 0.5
# An engine's memory for a step, beside weights and KV: enough for a short sequence; at the end of a long
# one's prefill, which tokens see which takes more.
ENGINE_TOKENS, ENGINE_STEP_BYTES = 64, 300 << 20


def run_config(settings: CheckSettings, **trainer: Any) -> RunConfig:
    """The configuration of a run with one trainer. trainer: keys of its section."""
    section = {"device": settings.device, "threads": 2, "lr": 1e-4, **trainer}
    return RunConfig.model_validate({"name": "gpu", "environment": {"name": "gpu"}, "trainer": section})


@dataclass(frozen=True, slots=True)
class TrainedSteps:
    """Losses of the steps, log-probs of the last batch after them, and all parameters' update as a vector."""

    losses: list[float]
    logprobs: np.ndarray
    update: torch.Tensor

    def differences(self, other: TrainedSteps) -> dict[str, float]:
        loss = max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))
        apart = np.abs(self.logprobs - other.logprobs)
        cosine = torch.nn.functional.cosine_similarity(self.update.double(), other.update.double(), 0)
        return {
            "loss": float(f"{loss:.3g}"),
            "logprob_max": float(f"{apart.max():.3g}"),
            "logprob_median": float(f"{np.median(apart):.3g}"),
            "update_cosine": round(float(cosine), 6),
        }


def batch_of(
    stepper: Stepper, version: int, sequences: int = SEQUENCES, longest: int = LONGEST
) -> tuple[TrainingPlan, Columns]:
    """Random sequences of ragged lengths, half of whose tokens are trained; this rank's columns."""
    random = np.random.default_rng(version)
    lengths = [longest - number % 4 * (longest // 8) for number in range(sequences)]
    tokens = [random.integers(0, stepper.policy.spec.vocab, length).astype(np.int32) for length in lengths]
    items = [
        ReplicaSequence(number, 1, str(number), 1.0 - 2.0 * (number % 2), length, position=number)
        for number, length in enumerate(lengths)
    ]
    dp, replica = stepper.mesh.data_ranks, stepper.mesh.replica
    ranks = tuple(tuple(items[rank::dp]) for rank in range(dp))
    columns = Columns()
    columns.take(ranks[replica])
    for index, item in enumerate(ranks[replica]):
        into, mask = columns.of(index), np.arange(item.total_tokens) % 2
        into["tokens"][:], into["loss_mask"][:] = tokens[item.position], mask
        into["logprobs"][:] = -np.log(stepper.policy.spec.vocab) * mask
    return TrainingPlan(version, version, "policy_gradient", ranks, False, False, 0.0, False), columns


def trained_steps(
    group: Group, model: Path, config: RunConfig, parallelism: Parallelism, steps: int
) -> TrainedSteps:
    """Trains some batches in a parallelism, whose devices are the group's. A collective."""
    spec = load_spec(model)
    policy = ShardedPolicy.of(spec, RankMesh(group, parallelism, spec), config)
    policy.fill(model, config.seed)
    before = {name: tensor.float().cpu().clone() for name, tensor in policy.gathered()}
    stepper = Stepper(policy, config)
    losses, logprobs = [], np.zeros(0, np.float32)
    for version in range(1, steps + 1):
        plan, columns = batch_of(stepper, version)
        losses.append(stepper.train(plan, columns)["loss"])
        logprobs = gathered_logprobs(stepper, plan, columns)
    update = [(tensor.float().cpu() - before[name]).flatten() for name, tensor in policy.gathered()]
    stepper.mesh.close()
    return TrainedSteps(losses, logprobs, torch.cat(update))


def gathered_logprobs(stepper: Stepper, plan: TrainingPlan, columns: Columns) -> np.ndarray:
    """float32: log-probs of every sequence under the policy as it is, by position. A collective."""
    mine = stepper.logprobs(columns, 1.0)
    items = sorted((item for items in plan.ranks for item in items), key=lambda item: item.position)
    ends = np.cumsum([item.total_tokens for item in items])
    whole = np.zeros(ends[-1], np.float32)
    # Ranks of one replica have the same.
    if stepper.mesh.counts:
        for index, item in enumerate(columns.items):
            span = slice(ends[item.position] - item.total_tokens, ends[item.position])
            whole[span] = mine[columns.offsets[index] : columns.offsets[index + 1]]
    stepper.group.sum(torch.from_numpy(whole))
    return whole


def numbers(settings: CheckSettings) -> CheckFigures:
    """Steps in float32 and bfloat16 on the device against float32 on the processor, recomputing or not."""
    model, steps = settings.directory / "model", settings.pick(10, 4, 1)
    write_checkpoint(model, tiny_config("qwen3", settings.pick(2, 2, 1)))

    def trained(device: str, dtype: str, checkpointed: bool = False) -> TrainedSteps:
        trainer = {"device": device, "dtype": dtype, "activation_checkpointing": checkpointed}
        config = run_config(settings, **trainer)
        group = Group(device)
        try:
            return trained_steps(group, model, config, Parallelism(1), steps)
        finally:
            group.close()

    settle(run_config(settings))
    expected = trained("cpu", "float32")
    figures: dict[str, Any] = {"steps": steps}
    faults: dict[str, bool] = {}
    for dtype, checkpointed in (("float32", False), ("float32", True), ("bfloat16", False)):
        name = f"{dtype}, recomputed" if checkpointed else dtype
        row = figures[name] = trained(settings.device, dtype, checkpointed).differences(expected)
        for key, bound in TOLERANCE[dtype].items():
            value = row[key.removesuffix("_min")]
            right = value >= bound if key.endswith("_min") else value <= bound
            faults[f"{name}: {key} is {value}, the bound {bound}"] = not right
    return judged(figures, TOLERANCE, faults)


def speed(settings: CheckSettings) -> CheckFigures:
    """Tokens a second of a step, with and without recomputing activations, of a model and of adapters."""
    model = settings.directory / "model"
    config = settings.pick(billion_config(), tiny_config(), tiny_config(layers=1))
    spec = write_checkpoint(model, config, "bfloat16", settings.device)
    short, long = settings.pick(4096, 128, 32), settings.pick(16_384, 256, 64)
    dtype = settings.pick("bfloat16", "float32")
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        f"{short}": (short, {}),
        f"{short} recomputed": (short, {"activation_checkpointing": True}),
        f"{long} recomputed": (long, {"activation_checkpointing": True}),
        f"{short} adapters": (short, {"lora_rank": 16}),
    }
    group = Group(settings.device)
    settle(run_config(settings))
    figures: dict[str, Any] = {"parameters": spec.parameters, "dtype": dtype}
    try:
        for name, (length, trainer) in cases.items():
            made = run_config(settings, dtype=dtype, lr=1e-6, kl_limit=0.0, microbatch_tokens=long, **trainer)
            figures[name] = _speed(settings, group, spec, made, length, max(1, long // length))
    finally:
        group.close()
    plain, again = (figures[name].get("peak_gib") for name in (f"{short}", f"{short} recomputed"))
    return judged(
        figures,
        {},
        {f"recomputing takes {again} GiB, and not recomputing {plain}": bool(plain and again > plain)},
    )


def _speed(
    settings: CheckSettings, group: Group, spec: ModelSpec, config: RunConfig, length: int, count: int
) -> dict[str, Any]:
    """The figures of a step of `count` sequences of `length` tokens; oom where it does not fit."""
    if settings.on_card:
        torch.cuda.reset_peak_memory_stats()
    steps, tokens = (
        settings.pick(3, 1),
        np.random.default_rng(0).integers(0, spec.vocab, (count, length), np.int32),
    )
    trainer = ProbedTrainer(spec, RankMesh(group, Parallelism(1), spec), config)
    step = trainer.batch(tokens)
    try:
        step()
        synchronise(settings.device)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise(settings.device)
    except OutOfMemory:
        return {"oom": True}
    finally:
        del trainer, step
        return_pages()
    step_s = (time.perf_counter() - started) / steps
    operations = 6 * spec.parameters + 6 * spec.layers * spec.heads * spec.head_dim * length
    row = {"tokens_per_s": round(count * length / step_s, 1), "step_s": round(step_s, 4)}
    if settings.on_card:
        row["peak_gib"] = round(torch.cuda.max_memory_reserved() / GIB, 2)
        name = torch.cuda.get_device_name()
        peak = next((value for part, value in PEAK_OPERATIONS.items() if part in name), None)
        if peak is not None and not config.trainer.lora_rank:
            row["operations_share"] = round(operations * count * length / step_s / peak, 3)
    return row


@contextmanager
def memory_bound(settings: CheckSettings, more_bytes: int) -> Iterator[None]:
    """Lets this process take so many bytes more than it has, of the device that it computes on."""
    if settings.on_card:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + more_bytes) / whole)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def out_of_memory(settings: CheckSettings) -> CheckFigures:
    """A step that is predicted not to fit is an error of a known kind, and the next step is trained."""
    model = settings.directory / "model"
    spec = write_checkpoint(model, tiny_config(layers=2, positions=32_768))
    long = settings.pick(32_768, 8192, 2048)
    config = run_config(settings, dtype="float32", kl_limit=0.0, lr=1e-6, microbatch_tokens=long)
    device = "cuda" if settings.on_card else "cpu"
    predicted = predict("trainer", config, spec, Parallelism(1), long, 1, device=device)
    moving = predicted.gradients + predicted.activations + predicted.logits + predicted.margin
    group, random = Group(settings.device), np.random.default_rng(0)
    trainer = ProbedTrainer(spec, RankMesh(group, Parallelism(1), spec), config)
    small, large = (
        trainer.batch(random.integers(0, spec.vocab, (1, length), np.int32)) for length in (64, long)
    )
    small()
    raised = ""
    return_pages()
    with memory_bound(settings, int(TOO_LITTLE * moving)):
        try:
            large()
        except (OutOfMemory, MemoryError, OSError, RuntimeError) as error:
            raised = OutOfMemory.__name__ if isinstance(error, OutOfMemory) else f"another error: {error}"
    return_pages()
    after = trainer.batch(random.integers(0, spec.vocab, (1, 64), np.int32))()
    loss = after["loss"] if isinstance(after, dict) else math.nan
    group.close()
    figures = {
        "context_tokens": long,
        "predicted_mib": round(moving / (1 << 20)),
        "allowed_mib": round(TOO_LITTLE * moving / (1 << 20)),
        "raised": raised,
        "loss_after": loss,
        "engine": "not tried",
        "engine_step": "not tried",
    }
    if settings.on_card:
        figures["engine"] = asyncio.run(_engine_too_large(settings, model, spec))
        figures["engine_step"] = asyncio.run(_engine_step_too_large(settings, model, spec))
    return judged(
        figures,
        {},
        {
            "a step with half of the memory that it needs was trained": not raised,
            raised: raised.startswith("another error"),
            f"the loss of the next step is {loss}": not math.isfinite(loss),
            f"an engine with too large a cache: {figures['engine']}": settings.on_card
            and figures["engine"] not in (EngineOutOfMemory.__name__, OutOfMemory.__name__),
            f"a sequence for which an engine has no memory: {figures['engine_step']}": settings.on_card
            and figures["engine_step"] != OutOfMemory.__name__,
        },
    )


async def _engine_too_large(settings: CheckSettings, model: Path, spec: ModelSpec) -> str:
    """The error with which an engine ends whose KV cache is twice what is free."""
    token_bytes = 2 * 2 * spec.layers * spec.kv_heads * spec.head_dim
    slots = 2 * torch.cuda.mem_get_info()[0] // (token_bytes * spec.max_positions)
    engine = EngineProcess(
        EngineSpec(
            name="too-large", model_dir=str(model), device=settings.device, dtype="bfloat16",
            max_sequences=int(slots), max_context_tokens=spec.max_positions, start_s=120.0,
        )
    )  # fmt: skip
    try:
        await engine.start()
    except EarlError as error:
        return type(error).__name__
    finally:
        await engine.stop()
    return "it has started"


async def _engine_step_too_large(settings: CheckSettings, model: Path, spec: ModelSpec) -> str:
    """The error of a request whose prefill finds no memory, if the engine serves the next one."""
    length = spec.max_positions - ENGINE_TOKENS
    token_bytes = 2 * 2 * spec.layers * spec.kv_heads * spec.head_dim
    allowed_bytes = spec.size_bytes("bfloat16") + token_bytes * spec.max_positions + ENGINE_STEP_BYTES
    share = allowed_bytes / torch.cuda.get_device_properties(0).total_memory
    engine = EngineProcess(
        EngineSpec(
            name="step-too-large", model_dir=str(model), device=settings.device, dtype="bfloat16",
            max_sequences=1, max_context_tokens=spec.max_positions, start_s=120.0,
        )
    )  # fmt: skip
    with _environment(
        "PYTORCH_ALLOC_CONF", f"expandable_segments:True,per_process_memory_fraction:{share:.8f}"
    ):
        await engine.start()
    raised = "no error"
    try:
        for number, tokens in enumerate((ENGINE_TOKENS, length, ENGINE_TOKENS)):
            ids = np.random.default_rng(number).integers(0, spec.vocab, tokens).tolist()
            request = GenerateRequest(request_id=f"r{number}", ids=ids, max_new_tokens=2)
            try:
                await engine.generate_all(request)
            except OutOfMemory as error:
                raised = type(error).__name__ if tokens == length else f"also one of {tokens} tokens"
    except EarlError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        await engine.stop()
    return raised


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Gives processes that are started meanwhile an environment variable."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
