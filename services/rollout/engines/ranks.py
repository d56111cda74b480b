"""Rank 0 and its followers: what they say to each other, and a follower's whole life.

    rank 0 ── Step (batch bytes) · LoadShard · ApplyShard · DropShard ──► follower
           ◄── Loaded · Applied ──                                        (+ gloo or NCCL: activations)

Frames arrive in order, so every rank runs the same steps with the same weights. A follower ends when
its socket does: with rank 0, and so with the service.
"""

from __future__ import annotations

import select
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist

from earl.errors import EarlError, EngineError
from earl.models.parallel import TensorParallel
from earl.models.spec import load_spec
from services.rollout.engines import wire
from services.rollout.engines.base import EngineSpec, LoadReport, Transfer
from services.rollout.engines.batch import Batch
from services.rollout.engines.cache import room_within
from services.rollout.engines.runner import Runner
from services.rollout.engines.staging import Stager

# Bound of one collective: a rank that is slower than this is stuck.
COLLECTIVE_S = 60.0


class Step(msgspec.Struct, tag=True, array_like=True):
    batch: bytes


class LoadShard(msgspec.Struct, tag=True, array_like=True):
    call: int
    version: int
    keys: list[str]
    deadline_s: float


class ApplyShard(msgspec.Struct, tag=True, array_like=True):
    version: int


class DropShard(msgspec.Struct, tag=True, array_like=True):
    pass


class Loaded(msgspec.Struct, tag=True, array_like=True):
    call: int
    error: wire.WireError | None
    report: LoadReport | None
    transfers: list[Transfer]


class Applied(msgspec.Struct, tag=True, array_like=True):
    error: wire.WireError | None


order_decoder = msgspec.msgpack.Decoder(Step | LoadShard | ApplyShard | DropShard)
report_decoder = msgspec.msgpack.Decoder(Loaded | Applied)


class Rank:
    """What every rank has: its slice of the model, its cache and its stager."""

    def __init__(self, start: wire.Start) -> None:
        spec = start.spec
        torch.set_num_threads(spec.threads)
        model = load_spec(spec.model_dir)
        device = device_of(spec, start.rank)
        slots, context = room_within(spec.kv_tokens, spec.max_sequences, spec.max_context_tokens, device)
        self.runner = Runner(
            model,
            join_group(start, device),
            slots=slots,
            context=context,
            dtype=getattr(torch, spec.dtype),
            device=device,
            deterministic=spec.deterministic,
        )
        if spec.load_initial:
            self.runner.load(spec.model_dir)
        self.stager = Stager(spec, self.runner.own, model.shapes())

    def apply(self, version: int) -> None:
        """Put the staged version to use: all of it, or an error that leaves the weights unusable."""
        tensors = self.stager.tensors(version)
        with torch.inference_mode():
            for name, (array, dtype) in tensors.items():
                tensor = torch.from_numpy(array)
                self.runner.weights[name].copy_(tensor.view(getattr(torch, dtype)))
        self.runner.seal()
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)


def device_of(spec: EngineSpec, rank: int) -> torch.device:
    """The rank's device. Raises EngineError if it is not there."""
    name = spec.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    index = (device.index or 0) + rank
    if index >= torch.cuda.device_count():
        raise EngineError(
            f"engine {spec.name} rank {rank} needs cuda:{index} of {torch.cuda.device_count()} devices",
            'set rollout.device = "cpu" or fewer engines x tp',
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join_group(start: wire.Start, device: torch.device) -> TensorParallel:
    """The process group of this epoch, under its own prefix of the store."""
    size = start.spec.tp
    if size == 1:
        return TensorParallel()
    store = dist.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
        f"epoch{start.epoch}",
        dist.FileStore(start.store, size),  # pyright: ignore[reportPrivateImportUsage]
    )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=start.rank,
        world_size=size,
        timeout=timedelta(seconds=COLLECTIVE_S),
    )
    return TensorParallel(start.rank, size, dist.group.WORLD)


def follow(channel: wire.Channel, start: wire.Start) -> None:
    """A follower's life; returns when rank 0 is gone."""
    try:
        rank = Rank(start)
    except EarlError as error:
        channel.send(wire.encoder.encode(Applied(wire.WireError.of(error))))
        return
    channel.send(wire.encoder.encode(Applied(None)))
    try:
        while True:
            readable, _, _ = select.select([channel, rank.stager.wake], [], [])
            if rank.stager.wake in readable:
                for call, outcome in rank.stager.take():
                    channel.send(wire.encoder.encode(loaded(rank.stager, call, outcome)))
            if channel in readable:
                for body in channel.receive():
                    _obey(rank, channel, order_decoder.decode(body))
    except wire.ChannelClosed:
        pass
    finally:
        rank.stager.close()


def loaded(stager: Stager, call: int, outcome: LoadReport | EarlError) -> Loaded:
    """How a rank's load ended."""
    if isinstance(outcome, EarlError):
        return Loaded(call, wire.WireError.of(outcome), None, stager.transfers)
    return Loaded(call, None, outcome, stager.transfers)


def _obey(rank: Rank, channel: wire.Channel, order: object) -> None:
    match order:
        case Step(batch):
            rank.runner.forward(Batch.from_bytes(batch))
        case LoadShard(call, version, keys, deadline_s):
            rank.stager.begin(call, version, keys, deadline_s)
        case DropShard():
            rank.stager.drop()
        case ApplyShard(version):
            try:
                rank.apply(version)
                channel.send(wire.encoder.encode(Applied(None)))
            except (EarlError, RuntimeError) as error:
                channel.send(wire.encoder.encode(Applied(wire.WireError.of(error))))


class Followers:
    """Rank 0's side. Every method writes one frame to each follower."""

    def __init__(self, channels: list[wire.Channel]) -> None:
        self.channels = channels

    def send(self, message: object) -> None:
        if self.channels:
            body = wire.encoder.encode(message)
            for channel in self.channels:
                channel.send(body)

    def await_applied(self) -> list[tuple[int, Loaded]]:
        """Wait for each follower's Applied; returns what else they said meanwhile, by rank.

        Raises the first error among them, ChannelClosed if one is gone or silent.
        """
        others: list[tuple[int, Loaded]] = []
        errors: list[wire.WireError] = []
        for rank, channel in enumerate(self.channels, start=1):
            while isinstance(report := report_decoder.decode(channel.receive_one(COLLECTIVE_S)), Loaded):
                others.append((rank, report))
            if report.error is not None:
                errors.append(report.error)
        if errors:
            raise errors[0].rebuild()
        return others
