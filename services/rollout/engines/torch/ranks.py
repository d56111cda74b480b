"""The resources of every rank of the torch engine, the messages between rank 0 and its followers, and their
loop.

    rank 0 ── RunStep (batch bytes) · LoadWeights · {Apply,Drop}Shard · {Offer,Take,Withdraw}Rows
              {Release,Take}Memory ──► follower                     (+ shared memory or NCCL: activations)
           ◄── ShardReport · Applied ──

Frames arrive in order, so every rank runs the same steps with the same weights. A follower ends when
its socket does: with rank 0, and so with the service.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from earl.errors import EarlError, EngineError
from earl.models.card_settings import settle_card
from earl.models.parallel import TensorParallel
from earl.models.spec import load_spec
from earl.worker_report import TransferTotals
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.shard_report import ShardReport
from services.rollout.engines.contract.weight_staging import WeightStager
from services.rollout.engines.torch import shm_allreduce
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.kv_cache import rows_within
from services.rollout.engines.torch.kv_handover import SlotRows
from services.rollout.engines.torch.kv_shards import KvShards
from services.rollout.engines.torch.linear import bound_products
from services.rollout.engines.torch.model_runner import AddUp, ModelRunner, alone
from services.rollout.engines.torch.shm_allreduce import SharedSum
from services.rollout.engines.torch.weight_copy import copy_staged

# Bound of one collective: a rank that is slower than this is stuck.
COLLECTIVE_S = 60.0


class RunStep(msgspec.Struct, tag=True, array_like=True):
    batch: bytes


class ApplyShard(msgspec.Struct, tag=True, array_like=True):
    version: int


class DropShard(msgspec.Struct, tag=True, array_like=True):
    pass


class ReleaseMemory(msgspec.Struct, tag=True, array_like=True):
    pass


class TakeMemory(msgspec.Struct, tag=True, array_like=True):
    pass


class OfferRows(wire.EngineCall):
    key: str
    rows: tuple[SlotRows, ...]
    version: int
    deadline_s: float


class TakeRows(wire.EngineCall):
    """moves: of rows of the cache, done before the read, as in StepBatch."""

    keys: list[str]
    rows: tuple[SlotRows, ...]
    moves: list[tuple[int, int, int, int]]
    deadline_s: float


class WithdrawRows(wire.EngineCall):
    key: str


class Applied(msgspec.Struct, tag=True, array_like=True):
    """transfers: the rank's totals by path, with what was applied."""

    error: wire.WireError | None
    transfers: list[TransferTotals] = []


Order = (
    RunStep
    | wire.LoadWeights
    | ApplyShard
    | DropShard
    | ReleaseMemory
    | TakeMemory
    | OfferRows
    | TakeRows
    | WithdrawRows
)
order_decoder = msgspec.msgpack.Decoder(Order)
report_decoder = msgspec.msgpack.Decoder(ShardReport | Applied)


class EngineRank:
    """One rank: its slice of the model and its cache, and what brings weights and KV."""

    def __init__(self, start: wire.Start) -> None:
        spec = start.spec
        torch.set_num_threads(spec.threads)
        settle_card()
        bound_products()
        model = load_spec(spec.model_dir)
        device = device_of(spec, start.rank)
        slots, context = rows_within(spec.kv_tokens, spec.max_sequences, spec.max_context_tokens, device)
        tp, add_up = join_group(start, device)
        self.runner = ModelRunner(
            model,
            tp,
            add_up=add_up,
            slots=slots,
            context=context,
            dtype=getattr(torch, spec.dtype),
            device=device,
            deterministic=spec.deterministic,
            asleep=spec.sleeps,
        )
        if spec.load_initial and not spec.sleeps:
            self.runner.load(spec.model_dir)
        self.data = DataThread(spec)
        self.stager = WeightStager(spec, self.data, self.runner.parameters, model.shapes())
        self.kv = KvShards(spec, self.data, self.runner)

    def take_kv(self, order: TakeRows) -> None:
        """Begins to read KV into rows that are held for it."""
        self.runner.move(np.array(order.moves, dtype=np.int64).reshape(-1, 4))
        self.kv.take(order.call, order.keys, order.rows, order.deadline_s)

    def release_memory(self) -> None:
        """Returns the memory of weights and KV to the system."""
        self.stager.drop()
        self.runner.release_memory()

    def apply(self, version: int) -> None:
        """Puts the whole staged version to use. Raises WeightsIncomplete if it is not staged, VersionGone if
        it is not there any more; another error leaves the weights unusable."""
        staged, started = self.stager.take(version), time.perf_counter()
        copy_staged(staged, self.runner.weights)
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)
        self.stager.applied(staged, time.perf_counter() - started)
        self.runner.use_weights()
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)


def device_of(spec: EngineSpec, rank: int) -> torch.device:
    """The device that a rank computes on. Raises EngineError if there is no such device."""
    kind = spec.device_kind
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind != "cuda":
        return torch.device(kind)
    index = spec.first_device + rank
    if index >= torch.cuda.device_count():
        raise EngineError(
            f"engine {spec.name} rank {rank} needs cuda:{index} of {torch.cuda.device_count()} devices",
            'set rollout.device = "cpu" or fewer engines x tp',
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join_group(start: wire.Start, device: torch.device) -> tuple[TensorParallel, AddUp]:
    """A rank's place in its tensor parallel group, and the function that sums a tensor over the group: in
    shared memory on CPUs, else by a process group."""
    size, rank = start.spec.tp, start.rank
    if size == 1:
        return TensorParallel(), alone
    if device.type == "cpu" and start.sums >= 0 and shm_allreduce.available():
        return TensorParallel(rank, size), SharedSum(start.sums, rank, size, COLLECTIVE_S).add_up
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(start.store, size),  # pyright: ignore[reportPrivateImportUsage]
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=COLLECTIVE_S),
    )
    return TensorParallel(rank, size), dist.all_reduce


def follow(channel: wire.EngineChannel, start: wire.Start) -> None:
    """Runs a follower; returns when rank 0 has ended."""
    try:
        rank = EngineRank(start)
    except EarlError as error:
        channel.send(wire.encoder.encode(Applied(wire.WireError.of(error))))
        return
    channel.send(wire.encoder.encode(Applied(None)))
    try:
        while True:
            readable, _, _ = select.select([channel, rank.data.wake], [], [])
            if rank.data.wake in readable:
                for call, outcome in rank.data.take():
                    channel.send(wire.encoder.encode(ShardReport.of(call, outcome, rank.data.transfers)))
            if channel in readable:
                for body in channel.receive():
                    _obey(rank, channel, order_decoder.decode(body))
    except wire.ChannelClosed:
        pass
    finally:
        rank.data.close()


def _obey(rank: EngineRank, channel: wire.EngineChannel, order: Order) -> None:
    match order:
        case RunStep(batch):
            rank.runner.forward(StepBatch.from_bytes(batch))
        case wire.LoadWeights(call, version, keys, deadline_s):
            rank.stager.begin(call, version, keys, deadline_s)
        case DropShard():
            rank.stager.drop()
        case OfferRows(call, key, rows, version, deadline_s):
            rank.kv.offer(call, f"{key}/{rank.runner.tp.rank}", rows, version, deadline_s)
        case TakeRows():
            rank.take_kv(order)
        case WithdrawRows(call, key):
            rank.kv.withdraw(call, f"{key}/{rank.runner.tp.rank}")
        case ApplyShard(version):
            _report(channel, rank, lambda: rank.apply(version))
        case ReleaseMemory():
            _report(channel, rank, rank.release_memory)
        case TakeMemory():
            _report(channel, rank, rank.runner.take_memory)


def _report(channel: wire.EngineChannel, rank: EngineRank, work: Callable[[], None]) -> None:
    """Does work that rank 0 waits for."""
    try:
        work()
        channel.send(wire.encoder.encode(Applied(None, rank.data.transfers)))
    except (EarlError, RuntimeError) as error:
        channel.send(wire.encoder.encode(Applied(wire.WireError.of(error))))


class Followers:
    """Rank 0's connections to its followers."""

    def __init__(self, channels: list[wire.EngineChannel]) -> None:
        self.channels = channels

    def send(self, message: object) -> None:
        """Writes one frame to each follower."""
        if self.channels:
            body = wire.encoder.encode(message)
            for channel in self.channels:
                channel.send(body)

    def await_applied(self) -> list[tuple[int, ShardReport]]:
        """Waits for each follower's Applied; returns the reports that came meanwhile, by rank, and of each
        rank one of call 0 with its transfers.

        Raises the first error among them, ChannelClosed for a follower that has ended or sends nothing.
        """
        others: list[tuple[int, ShardReport]] = []
        errors: list[wire.WireError] = []
        for rank, channel in enumerate(self.channels, start=1):
            while isinstance(report := report_decoder.decode(channel.receive_one(COLLECTIVE_S)), ShardReport):
                others.append((rank, report))
            if report.error is not None:
                errors.append(report.error)
            others.append((rank, ShardReport(0, None, None, report.transfers)))
        if errors:
            raise errors[0].rebuild()
        return others
