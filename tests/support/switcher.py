"""Ranks that train, change their cut, and say what differs from ranks that never did; in torch's environment.

Run by tests.support.processes.
"""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.config.scheduler import SwitchDeadlines
from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import TrainerError
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, largest_slot_bytes
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group, leave
from services.trainer.reshard import reshard
from services.trainer.reshard import switch as switch_module
from services.trainer.reshard.moving_tensor import MovingTensor
from services.trainer.reshard.reshard import MoveReport
from services.trainer.reshard.switch import CANARIES, CANARY_TOKENS, switch
from services.trainer.reshard.trainer_state import TrainerChange
from services.trainer.step.step import Stepper
from tests.support.policy import ADAPTED_CONFIG, RANKS_CONFIG, configuration, gathered, stepper_for, train

CALL_S = 30.0
# Sequences of a batch.
COUNT = 7
TOLERANCE = 1e-4
LONG = dict.fromkeys(SwitchDeadlines.model_fields, 60.0)
# The cuts that a number of ranks goes through.
ROUNDS = {2: ("tp2", "cp2", "dp2"), 4: ("dp2·tp2", "tp2·cp2", "dp2·cp2", "dp4")}


class Scene:
    """One rank: a stepper, and slots that are read back through the data plane."""

    def __init__(self, role: dict[str, str]) -> None:
        self.group, self.side = Group("cpu"), IoThread()
        self.model = Path(role["model"])
        self.wrong: list[str] = []
        self.bus = self.side.run(Bus.connect(role["redis"], "switch"), CALL_S)
        self.registry = Registry(self.bus.redis, self.bus.prefix, 60.0)
        self._data_plane = DataPlaneConfig(arena_dir=role["arenas"])
        self._arenas = Path(role["arenas"])
        self._arena = 100 * self.group.rank
        self.dispatcher = self.side.run(Dispatcher.create(self.registry, self._data_plane), CALL_S)
        self.epoch = 0
        # Those of the first time that the ranks had a parallelism.
        self._groups: dict[str, tuple[object, ...]] = {}

    async def open_store(self, size_bytes: int) -> TensorStore:
        self._arena += 1
        return await TensorStore.open(
            self.registry,
            self._data_plane,
            self._arenas,
            f"trainer-{self.group.rank}",
            incarnation=self._arena + 1,
            size_bytes=size_bytes,
        )

    def slots(self, stepper: Stepper, name: str) -> WeightSlots:
        capacity_bytes = largest_slot_bytes(stepper.policy.spec, self.group.rank, self.group.size, "float32")
        return WeightSlots(
            self.side,
            self.side.run(self.open_store(arena_bytes(capacity_bytes)), CALL_S),
            self.registry,
            self.bus,
            self.group,
            stepper.policy,
            name=name,
            dtype="float32",
            lease_s=1.0,
            capacity_bytes=capacity_bytes,
        )

    def stepper(self, **trainer: object) -> Stepper:
        return stepper_for(self.group, self.model, configuration(**trainer))

    def switch(
        self,
        stepper: Stepper,
        slots: WeightSlots,
        parallelism: str,
        tolerance: float = TOLERANCE,
        **late: Any,
    ) -> tuple[Stepper, SwitchOutcome]:
        self.epoch += 1
        command = SwitchCommand(
            self.epoch,
            Parallelism.parse(parallelism),
            SwitchDeadlines(**LONG | late.get("deadlines", {})),
            tolerance,
            requested_s=late.get("requested_s", time.monotonic()),
        )
        change = TrainerChange(stepper, slots)
        outcome = switch(command, change)
        return change.stepper, outcome

    def expect(self, ok: bool, what: str) -> None:
        if not ok:
            self.wrong.append(what)

    def expect_kept_groups(self, stepper: Stepper) -> None:
        """The ranks compute with the groups that they had in this parallelism before."""
        mesh = stepper.mesh
        groups = (mesh.tensor.group, mesh.context.group, mesh.blocks)
        first = self._groups.setdefault(str(mesh.parallelism), groups)
        same = all(group is before for group, before in zip(groups, first, strict=True))
        self.expect(same, f"{mesh.parallelism}: other groups")

    def addresses(self, stepper: Stepper) -> dict[str, tuple[Box, list[int]]]:
        """The box of each of this rank's shards that is not padded, and where parameter and moments lie."""
        found = {}
        for shard in stepper.policy.shards:
            if shard.local.untyped_storage().nbytes() == 4 * shard.box.size > 0:
                held = [shard.local, *stepper.optimizer.moments[shard.name]]
                found[shard.name] = shard.box, [tensor.data_ptr() for tensor in held]
        return found

    def published(self, slots: WeightSlots, version: int, wanted: dict[str, torch.Tensor], when: str) -> None:
        """A version reads as it was published, whatever the cut was then."""
        keys = tuple(slots.key(version, rank) for rank in range(self.group.size))
        into = {name: np.zeros(tuple(tensor.shape), np.float32) for name, tensor in wanted.items()}
        reads = [Read(keys, name, Box.whole(array.shape), array) for name, array in into.items()]
        self.side.run(self.dispatcher.read(reads, CALL_S), CALL_S)
        for name, array in into.items():
            self.expect(bool((array == wanted[name].numpy()).all()), f"{when}: version {version}, {name}")

    def whole(self, stepper: Stepper) -> dict[str, torch.Tensor]:
        """Parameters and moments, whole, from every rank's boxes."""
        found: dict[str, torch.Tensor] = {}
        for shard in stepper.policy.shards:
            pair = stepper.optimizer.moments.get(shard.name, [])
            mine = torch.stack([shard.local, *pair]) if shard.box.size else torch.zeros(0)
            said = self.group.gather(mine.numpy().tobytes())
            boxes = self.group.gather(json.dumps([shard.box.start, shard.box.stop]).encode())
            values = torch.full((3, *shard.shape), torch.nan)
            for data, box in zip(said, map(json.loads, boxes), strict=True):
                of = Box(tuple(box[0]), tuple(box[1]))
                if of.size:
                    part = torch.frombuffer(bytearray(data), dtype=torch.float32)
                    values[(slice(None), *of.slices())] = part.view(3, *of.shape)
            found[shard.name] = values
        return found


def differs(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], exactly: bool) -> list[str]:
    if found.keys() != wanted.keys():
        return ["other tensors"]
    if exactly:
        return [name for name, one in wanted.items() if not torch.equal(found[name], one)]
    return [
        name for name, one in wanted.items() if not torch.allclose(found[name], one, atol=1e-5, rtol=1e-4)
    ]


def round_trip(scene: Scene) -> None:
    """Every step in another cut: bits stay, and training goes on as if nothing had changed."""
    layouts = ROUNDS[scene.group.size]
    never, one = scene.stepper(**RANKS_CONFIG), scene.stepper(**RANKS_CONFIG)
    slots = scene.slots(one, "round")
    for step, parallelism in enumerate(("", *layouts), 1):
        if parallelism:
            before, weights, places = scene.whole(one), gathered(one), scene.addresses(one)
            one, outcome = scene.switch(one, slots, parallelism)
            stayed = {
                name: (places[name][1], held)
                for name, (box, held) in scene.addresses(one).items()
                if name in places and places[name][0] == box
            }
            apart = [name for name, (was, now) in stayed.items() if was != now]
            scene.expect(bool(stayed) and not apart, f"{parallelism}: copied in place: {apart}")
            scene.expect(not outcome.rolled_back, f"{parallelism}: {outcome}")
            scene.expect_kept_groups(one)
            scene.expect(
                str(one.mesh.parallelism) == parallelism == str(outcome.parallelism),
                f"{parallelism}: {outcome}",
            )
            scene.expect(differs(scene.whole(one), before, exactly=True) == [], f"{parallelism}: other bits")
            scene.expect(0.0 <= outcome.max_logprob_difference <= TOLERANCE, f"{parallelism}: {outcome}")
            # The first token of a canary has no log-prob.
            scene.expect(
                outcome.logprobs_compared == CANARIES * (CANARY_TOKENS - 1), f"{parallelism}: {outcome}"
            )
            scene.expect(0.0 < outcome.stall_s <= outcome.seconds, f"{parallelism}: {outcome}")
            counted_s = sum(outcome.phases_s.values())
            scene.expect("moving" in outcome.phases_s and counted_s > 0.0, f"{parallelism}: {outcome}")
            scene.published(slots, step - 1, weights, f"after {parallelism}")
        wanted, metrics = train(never, step, COUNT), train(one, step, COUNT)
        for name in ("loss", "grad_norm", "entropy"):
            close = abs(wanted[name] - metrics[name]) <= 1e-5 + 1e-3 * abs(wanted[name])
            scene.expect(close, f"step {step}: {name} {metrics[name]} for {wanted[name]}")
        slots.publish(step)
        slots.settle()
        scene.published(slots, step, gathered(one), f"in {parallelism}")
    apart = differs(scene.whole(one), scene.whole(never), exactly=False)
    scene.expect(apart == [], f"trained apart: {apart}")
    slots.close()


def rolled_back(scene: Scene) -> None:
    """Whatever a stage finds wrong, everything is as before, and training goes on."""
    parallelism = ROUNDS[scene.group.size][0]
    never, one = scene.stepper(**RANKS_CONFIG), scene.stepper(**RANKS_CONFIG)
    slots = scene.slots(one, "back")
    for stepper in (never, one):
        train(stepper, 1, COUNT)
    slots.publish(1)
    slots.settle()
    before, weights = scene.whole(one), gathered(one)
    stages: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("parity", {"tolerance": -1.0}, "log-probs of canaries differ"),
        ("moving", {"deadlines": {"switch_s": 1e-9}}, "0 of"),
        ("boundary", {"requested_s": time.monotonic() - 100.0}, "no step boundary came within 60 s"),
        ("verifying", {"deadlines": {"verify_s": 1e-9}}, "it was not verified"),
    )
    for what, arguments, said in stages:
        same, outcome = scene.switch(one, slots, parallelism, **arguments)
        scene.expect(same is one, f"{what}: another stepper")
        scene.expect(outcome.rolled_back and said in outcome.message, f"{what}: {outcome}")
        scene.expect(outcome.parallelism == one.mesh.parallelism, f"{what}: {outcome}")
        scene.expect(differs(scene.whole(one), before, exactly=True) == [], f"{what}: other bits")
        scene.published(slots, 1, weights, what)
    for stepper in (never, one):
        train(stepper, 2, COUNT)
    scene.expect(differs(scene.whole(one), scene.whole(never), exactly=True) == [], "trained apart")
    slots.publish(2)
    slots.settle()
    slots.close()


def tampered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that come wrong are noticed, also where no canary is computed with them."""
    parallelism = ROUNDS[scene.group.size][0]
    one = scene.stepper(**RANKS_CONFIG)
    slots = scene.slots(one, "tampered")
    train(one, 1, COUNT)
    before = scene.whole(one)
    name = "second moment of model.layers.1.self_attn.o_proj.weight"

    def move_wrongly(tensors: list[MovingTensor], *arguments: Any, **named: Any) -> MoveReport:
        report = reshard.move(tensors, *arguments, **named)
        (tensor,) = (tensor for tensor in tensors if tensor.name == name)
        spoil(tensor.new.values)
        return report

    monkeypatch.setattr(switch_module, "move", move_wrongly)
    spoil = torch.Tensor.neg_
    # What is negated twice is back as it was.
    same, outcome = scene.switch(one, slots, parallelism)
    told = f"1 tensors have other values than before, such as {name}"
    scene.expect(same is one and outcome.rolled_back and outcome.message == told, f"tampered: {outcome}")
    scene.expect(differs(scene.whole(one), before, exactly=True) == [], "tampered: other bits")
    spoil = torch.Tensor.exp_
    try:
        scene.switch(one, slots, parallelism)
        scene.expect(False, "tampered: values that are lost were not noticed")
    except TrainerError as error:
        scene.expect("after everything moved back" in str(error), f"tampered: {error}")
    slots.close()


def adapted(scene: Scene) -> None:
    """Adapters and the frozen model below them move too."""
    one = scene.stepper(**ADAPTED_CONFIG)
    slots = scene.slots(one, "adapted")
    train(one, 1, COUNT)
    before, weights = scene.whole(one), gathered(one)
    for parallelism in ROUNDS[scene.group.size]:
        one, outcome = scene.switch(one, slots, parallelism)
        scene.expect(not outcome.rolled_back, f"adapted, {parallelism}: {outcome}")
        scene.expect_kept_groups(one)
        scene.expect(
            differs(scene.whole(one), before, exactly=True) == [], f"adapted, {parallelism}: other bits"
        )
        scene.expect(
            differs(gathered(one), weights, exactly=False) == [], f"adapted, {parallelism}: other weights"
        )
    train(one, 2, COUNT)
    slots.close()


def main(pipe: Connection, role: dict[str, str]) -> None:
    """Sends what is wrong, a list of sentences. role: redis, arenas and model, where they are."""
    torch.set_num_threads(1)
    scene = Scene(role)
    round_trip(scene)
    rolled_back(scene)
    with pytest.MonkeyPatch.context() as monkeypatch:
        tampered(scene, monkeypatch)
    adapted(scene)
    pipe.send(scene.wrong)
    scene.side.run(scene.dispatcher.close(), CALL_S)
    scene.side.run(scene.bus.close(), CALL_S)
    scene.side.close()
    scene.group.barrier()
    scene.group.close()
    leave(0)
