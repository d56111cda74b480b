"""The parallelism that a stage can have, and how long a sequence its engines hold. Pure, but for the model's
file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EarlError, IllegalParallelism
from earl.models.spec import ModelSpec, load_spec
from earl.models.tp import legal_cp, legal_tp, rank_heads
from earl.parallelism import TRAINER, Parallelism
from services.scheduler.profile.stages import feeds_every_replica, held_tokens

# The longest sequence in tokens that the engines of a parallelism hold; None where nothing bounds it.
Holds = Callable[[Parallelism], float | None]


class LegalLayouts:
    """The parallelism that each stage of a run can have. Before the run has its model, only the number of
    devices bounds it."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self._config = config
        self._model = directory / "model"
        self._spec = lru_cache(maxsize=1)(lambda: load_spec(self._model))

    @property
    def longest(self) -> float:
        """Tokens that a sequence may grow to, if somebody bounded it; inf where only the machine does.

        A run begins with what holds its bound. What the machine holds is no such bound: a run that nobody
        bounded would begin with the layout for the longest context of all, and pay for it in every step.
        """
        bound, longest = self._config.context_bound, self._config.longest_sequence
        is_free = bound.source == "rollout.held_context_tokens" and longest == bound.tokens
        return math.inf if is_free else float(longest)

    def legal(self, stage: str, devices: Sequence[int]) -> list[Parallelism]:
        """All that a stage can have, over all its workers together; smallest replicas first.

        devices: the number of each worker's.
        """
        legal, pace = [], self._config.pace
        for tp, cp in self._degrees(stage, max(devices, default=0)):
            replica = Parallelism(1, tp, cp)
            if devices and all(replica.over(count) is not None for count in devices):
                parallelism = replica.over(sum(devices))
                assert parallelism is not None
                feeds = stage != "trainer" or feeds_every_replica(self._config, parallelism)
                if feeds and (pace is None or pace.has(stage, replica.replica)):
                    legal.append(parallelism)
        return sorted(legal, key=lambda parallelism: (parallelism.tp * parallelism.cp, parallelism.cp))

    def check(self, stage: str, devices: Sequence[int], dp: int, replica: Parallelism) -> None:
        """Raises IllegalParallelism, naming what is legal, for what is not. dp: 0 if it was left open."""
        if self._config.alternates and stage == TRAINER:
            raise IllegalParallelism(
                'the trainer cannot change its parallelism in a run with stack.share = "alternate": its '
                "state is not on the devices while engines sample",
                "start the run with other trainer.ranks and parallelism",
            )
        legal = self.legal(stage, devices)
        if any(parallelism.replica == replica.replica and dp in (0, parallelism.dp) for parallelism in legal):
            return
        requested = Parallelism(dp or 1, *replica.replica)
        count = f"{sum(devices)} device{'s' * (sum(devices) != 1)}"
        raise IllegalParallelism(
            f"{stage} cannot have {requested} on {count}"
            + (f" of {len(devices)} workers" if len(devices) > 1 else ""),
            f"use {' or '.join(map(str, legal))}" if legal else "its devices allow nothing else",
        )

    def holds(self, stage: str) -> Holds:
        """Returns how many tokens of one sequence a parallelism of the stage holds: paced devices those that
        their table has in memory."""
        pace = self._config.pace

        def tokens(parallelism: Parallelism) -> float | None:
            try:
                held = held_tokens(stage, self._config, self._known(), parallelism)
            except IllegalParallelism:
                return 0.0
            if pace is None or math.isinf(paced := pace.held_tokens(stage, parallelism.replica)):
                return held
            return paced if held is None else min(held, paced)

        return tokens

    def _degrees(self, stage: str, devices: int) -> list[tuple[int, int]]:
        """(tp, cp) that the model allows, of at most so many devices."""
        spec = self._known()
        degrees = []
        for tp in legal_tp(spec) if spec is not None else range(1, devices + 1):
            cps = legal_cp(*rank_heads(spec, tp)) if spec is not None and stage == "trainer" else [1]
            degrees += [(tp, cp) for cp in cps if tp * cp <= devices]
        return degrees

    def _known(self) -> ModelSpec | None:
        """The run's model; None before the run has one."""
        if not self._model.is_dir():
            return None
        try:
            return self._spec()
        except EarlError:
            return None
