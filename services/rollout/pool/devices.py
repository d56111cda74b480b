"""The devices of a pool: the parallelisms that they allow, dp engines of tp devices each. Pure.

Whatever the parallelism, the pool holds as many sequences and as many bytes of KV on each device: an engine's
max_sequences grows with its devices, its kv_tokens with the heads that a device no longer holds. Each engine
has one place more, for the canaries of a switch, which wait for no sequence's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp, legal_tp, rank_heads
from earl.parallelism import ROLLOUT, Parallelism
from services.rollout.engines.contract.engine import EngineSpec


def engine_device(device: str, number: int, tp: int, gpus: int = 0) -> str:
    """The device of engine `number` of a pool on `device` ("cpu", "cuda" or "auto"), whose engines have tp
    devices each: on GPUs, engine i takes those from i x tp on.

    gpus: of a pool whose engines share so many GPUs, at least tp: the engines take them in turns. 0: each
    engine has its own.
    """
    if device not in ("cuda", "auto"):
        return device
    turns = gpus // tp if gpus else number + 1
    return f"{device}:{number % turns * tp}"


@dataclass(frozen=True, slots=True)
class PoolDevices:
    """The devices of a pool that begins with `engines` engines like `base`; base.name is the pool's name.

    Which devices an engine takes: `engine_device`, with shared_gpus. most: devices that the pool may ever
    have, where some come from the trainer or go there; 0: it keeps its own. moved: devices that came since
    the beginning, less those that went. begins: the parallelism that it begins with, where a former worker
    had another one than the configuration has.
    Example: PoolDevices(EngineSpec(name="rollout-0", model_dir="...", tp=2), 2, load_spec("...")).
    """

    base: EngineSpec
    engines: int
    model: ModelSpec
    shared_gpus: int = 0
    most: int = 0
    moved: int = 0
    begins: Parallelism | None = None

    @property
    def initial(self) -> Parallelism:
        """The parallelism that the pool begins with."""
        return self.begins or Parallelism(self.engines, self.base.tp)

    @property
    def count(self) -> int:
        """The number of devices now."""
        return self.initial.devices + self.moved

    def resized(self, parallelism: Parallelism) -> PoolDevices:
        """The pool with as many devices as another parallelism has, where devices come and go. Raises
        IllegalParallelism for more devices than there are."""
        if not self.most:
            return self
        if parallelism.devices > self.most:
            raise IllegalParallelism(
                f"{parallelism} needs more than the {self.most} devices that {self.base.name} may have",
                "the trainer keeps the devices of one replica at least",
            )
        return replace(self, moved=parallelism.devices - self.initial.devices)

    @property
    def legal(self) -> list[Parallelism]:
        """All parallelisms that devices and heads allow, by ascending tp."""
        devices, pace = self.count, self.base.pace
        return [
            Parallelism(devices // tp, tp)
            for tp in legal_tp(self.model)
            if devices % tp == 0 and (pace is None or pace.has(ROLLOUT, (tp, 1, 1)))
        ]

    @property
    def weight_bytes(self) -> int:
        """Bytes of one engine's weights, over all of its devices."""
        return self.model.size_bytes(self.base.dtype)

    def check(self, parallelism: Parallelism) -> None:
        """Raises IllegalParallelism, naming devices or heads."""
        devices, pace = self.count, self.base.pace
        if parallelism.cp != 1 or parallelism.pp != 1 or parallelism.dp * parallelism.tp != devices:
            legal = " or ".join(map(str, self.legal))
            raise IllegalParallelism(
                f"{parallelism.as_dict()} does not fit the {devices} devices of {self.base.name}",
                f"dp x tp is {devices}, cp and pp are 1: {legal}",
            )
        check_tp(self.model, parallelism.tp)
        if pace is not None and pace.paces(ROLLOUT):
            pace.table.check(ROLLOUT, parallelism.replica)

    def specs(self, parallelism: Parallelism, epoch: int = 0) -> list[EngineSpec]:
        """One spec for each engine. Names differ between epochs, since engines of two may run at once."""
        base, tp = self.base, parallelism.tp
        return [
            msgspec.structs.replace(
                base,
                name=f"{base.name}/engine-{number}" + (f"-epoch-{epoch}" if epoch else ""),
                tp=tp,
                device=engine_device(base.device, number, tp, self.shared_gpus),
                max_sequences=self.sequences(tp) + 1,
                kv_tokens=self.kv_tokens(tp),
                # vLLM and SGLang reserve a whole context, whatever their KV.
                max_context_tokens=base.max_context_tokens
                if base.engine == "torch"
                else self.longest_context(tp),
            )
            for number in range(parallelism.dp)
        ]

    def sequences(self, tp: int) -> int:
        """Returns how many sequences an engine of `tp` devices holds at once, in addition to a canary."""
        return -(-self.base.max_sequences * tp // self.base.tp)

    def kv_tokens(self, tp: int) -> int:
        """Returns the tokens that the KV cache of an engine of `tp` devices holds in the bytes that the
        configuration gives each device; 0: as many as its sequences need."""
        initial_heads = rank_heads(self.model, self.base.tp)[1]
        return self.base.kv_tokens * initial_heads // rank_heads(self.model, tp)[1]

    def longest_context(self, tp: int) -> int:
        """Tokens of the longest context that an engine of `tp` devices could ever hold."""
        most, pace = self.base.max_context_tokens, self.base.pace
        paced = most if pace is None else min(most, pace.held_tokens(ROLLOUT, (tp, 1, 1)))
        return int(min(paced, self.kv_tokens(tp) or most))

    def holds(self, tp: int, tokens: int) -> bool:
        """Returns whether an engine of `tp` devices could hold a context of so many tokens."""
        return tokens <= self.longest_context(tp)

    def wider(self, tp: int, tokens: int) -> list[int]:
        """The devices of engines that hold longer contexts than those of `tp` devices, and one of so many
        tokens: engines that the pool may have now, or once devices have come to it."""
        bound, pace = self.longest_context(tp), self.base.pace
        possible = [parallelism.tp for parallelism in self.legal]
        if self.most:
            possible = [
                more
                for more in legal_tp(self.model)
                if more <= self.most and (pace is None or pace.has(ROLLOUT, (more, 1, 1)))
            ]
        return [more for more in possible if self.longest_context(more) > bound and self.holds(more, tokens)]
