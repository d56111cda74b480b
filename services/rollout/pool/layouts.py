"""The ways in which a pool's devices can be cut into engines. Pure.

Whatever the cut, the pool holds as many sequences and as many bytes of KV on each device: an engine's
max_sequences grows with its devices, its kv_tokens with the heads that a device no longer holds. Each engine
has a place more, for the canaries of a switch: they are to wait for no sequence's end.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp, legal_tp, rank_heads
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineSpec

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of a pool that begins with `engines` engines like `base`, whose name is the pool's.

    Of base.device "cuda" or "auto", engine i of tp devices takes those from i x tp on.
    Example: Cuts(EngineSpec(name="rollout-0", model_dir="...", tp=2), 2, load_spec("...")).
    """

    base: EngineSpec
    engines: int
    model: ModelSpec

    @property
    def first(self) -> Parallelism:
        """The cut of the configuration."""
        return Parallelism(self.engines, self.base.tp)

    @property
    def legal(self) -> list[Parallelism]:
        """All cuts, by ascending tp."""
        devices = self.first.devices
        return [Parallelism(devices // tp, tp) for tp in legal_tp(self.model) if devices % tp == 0]

    @property
    def weight_bytes(self) -> int:
        """Of one engine's weights, over all of its devices."""
        return self.model.parameters * _ITEM_BYTES[self.base.dtype]

    def check(self, cut: Parallelism) -> None:
        """Raises IllegalParallelism, naming devices or heads."""
        devices = self.first.devices
        if cut.cp != 1 or cut.pp != 1 or cut.dp * cut.tp != devices:
            legal = " or ".join(map(str, self.legal))
            raise IllegalParallelism(
                f"{cut.as_dict()} does not cut the {devices} devices of {self.base.name} into engines",
                f"dp x tp is {devices}, cp and pp are 1: {legal}",
            )
        check_tp(self.model, cut.tp)

    def specs(self, cut: Parallelism, epoch: int = 0) -> list[EngineSpec]:
        """One for each engine of the cut; names differ between epochs, since two may live at once."""
        base = self.base
        return [
            msgspec.structs.replace(
                base,
                name=f"{base.name}/engine-{number}" + (f"-epoch-{epoch}" if epoch else ""),
                tp=cut.tp,
                device=f"{base.device}:{number * cut.tp}" if base.device in ("cuda", "auto") else base.device,
                max_sequences=self.sequences(cut.tp) + 1,
                kv_tokens=self.kv_tokens(cut.tp),
            )
            for number in range(cut.dp)
        ]

    def sequences(self, tp: int) -> int:
        """What an engine of `tp` devices holds at once, beside a canary."""
        return -(-self.base.max_sequences * tp // self.base.tp)

    def kv_tokens(self, tp: int) -> int:
        """What the KV cache of an engine of `tp` devices holds in the bytes that the configuration gives
        each device; 0: as much as its sequences need."""
        bound, own = self.base.kv_tokens, rank_heads(self.model, self.base.tp)[1]
        return bound * own // rank_heads(self.model, tp)[1]

    def longest(self, tp: int) -> int:
        """Tokens of the longest context that an engine of `tp` devices could ever hold."""
        most = self.base.max_context_tokens
        return min(most, self.kv_tokens(tp) or most)

    def holds(self, tp: int, tokens: int) -> bool:
        return tokens <= self.longest(tp)

    def wider(self, tp: int, tokens: int) -> list[Parallelism]:
        """Cuts whose engines hold more than those of `tp` devices, and a sequence of so many tokens."""
        bound = self.kv_tokens(tp)
        return [cut for cut in self.legal if self.kv_tokens(cut.tp) > bound and self.holds(cut.tp, tokens)]
