"""What a stage can be cut into, and how long a sequence its engines hold. Pure, but for the model's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EarlError, IllegalParallelism
from earl.models.spec import ModelSpec, load_spec
from earl.models.tp import legal_cp, legal_tp, rank_heads
from earl.parallelism import Parallelism
from services.scheduler.profile.stages import fed

# The longest sequence in tokens that a layout's engines hold; None where nothing bounds it.
Holds = Callable[[Parallelism], float | None]


class Layouts:
    """Of one run. Before the run has its model, only the devices say what is legal."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self._config = config
        self._model = directory / "model"
        self._spec = lru_cache(maxsize=1)(lambda: load_spec(self._model))

    @property
    def longest(self) -> float:
        """Tokens that a sequence of the run can have at all."""
        return float(self._config.longest_sequence)

    def legal(self, stage: str, devices: Sequence[int]) -> list[Parallelism]:
        """Of a stage whose workers have so many devices, the least cut first; dp: of all of them together."""
        found = []
        for tp, cp in self._degrees(stage, max(devices, default=0)):
            one = Parallelism(1, tp, cp)
            if devices and all(one.over(count) is not None for count in devices):
                cut = one.over(sum(devices))
                assert cut is not None
                if stage != "trainer" or fed(self._config, cut):
                    found.append(cut)
        return sorted(found, key=lambda cut: (cut.tp * cut.cp, cut.cp))

    def check(self, stage: str, devices: Sequence[int], dp: int, replica: Parallelism) -> None:
        """Raises IllegalParallelism naming what is legal. dp: 0 if it was left open."""
        legal = self.legal(stage, devices)
        of = f"{sum(devices)} device{'s' * (sum(devices) != 1)}"
        for one in legal:
            if one.replica == replica.replica and dp in (0, one.dp):
                return
        asked = Parallelism(dp or 1, *replica.replica)
        raise IllegalParallelism(
            f"{stage} cannot be cut into {asked}: it has {of}"
            + (f" on {len(devices)} workers" if len(devices) > 1 else ""),
            f"use {' or '.join(map(str, legal))}" if legal else "its devices allow nothing else",
        )

    def holds(self, stage: str) -> Holds:
        """rollout.kv_tokens, which is of an engine of rollout.tp, bounds the bytes of each of its devices;
        trainer.microbatch_tokens is what each of cp ranks takes of a sequence at once."""
        if stage == "trainer":
            return lambda one: self._config.trainer.microbatch_tokens * one.cp
        rollout = self._config.rollout
        if stage != "rollout" or not rollout.kv_tokens:
            return lambda one: None

        def most(one: Parallelism) -> float | None:
            spec = self._known()
            if spec is None:
                return None
            try:
                of_one, of_other = rank_heads(spec, rollout.tp)[1], rank_heads(spec, one.tp)[1]
            except IllegalParallelism:
                return 0.0
            return of_one / of_other * rollout.kv_tokens

        return most

    def _degrees(self, stage: str, devices: int) -> list[tuple[int, int]]:
        """(tp, cp) that the model allows, of so many devices at most."""
        spec = self._known()
        found = []
        for tp in legal_tp(spec) if spec is not None else range(1, devices + 1):
            cps = legal_cp(*rank_heads(spec, tp)) if spec is not None and stage == "trainer" else [1]
            found += [(tp, cp) for cp in cps if tp * cp <= devices]
        return found

    def _known(self) -> ModelSpec | None:
        """None before the run has its model."""
        if not self._model.is_dir():
            return None
        try:
            return self._spec()
        except EarlError:
            return None
