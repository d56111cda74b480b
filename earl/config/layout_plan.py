"""The plan of a run's switches of parallelism: a stage's layout as a function of the version alone. Pure.

With switch.plan = ["5 rollout tp=2", "8 trainer tp=2,cp=2"], and version 3 as the first that is trained:

    step      1   2   3   4   5   6   7   8   9
    version   3   4   5   6   7   8   9  10  11
    rollout   of the run file  tp2 ····················  engines sample this version so
    trainer   of the run file ··············  tp2·cp2 ·  ranks train this version so
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import ROLLOUT, TRAINER, Parallelism

KEY = "switch.plan"
EXAMPLE = "5 rollout tp=2"
PLANNED_STAGES = (ROLLOUT, TRAINER)
_SWITCH = re.compile(r"^\s*(\d{1,9})\s+([a-z]+)\s+(\S.*?)\s*$")


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The stage has this layout from the version on that the step begins with; the first step is 1."""

    step: int
    stage: str
    layout: Parallelism

    @classmethod
    def parse(cls, text: str, initial: Mapping[str, Parallelism]) -> Self:
        """From "5 rollout tp=2". initial: the layout that each stage begins with; devices stay as many.

        Raises ConfigError, and IllegalParallelism for a layout that does not fit the stage's devices.
        """
        match = _SWITCH.match(text)
        if match is None:
            raise ConfigError(
                f"{KEY} has {text!r}", f'write the step, the stage and its degrees: "{EXAMPLE}"'
            )
        step, stage = int(match[1]), match[2]
        if stage not in PLANNED_STAGES:
            raise ConfigError(
                f"{KEY} has {text!r}: only rollout and trainer change their layout by a plan",
                f'name one of them: "{EXAMPLE}"',
            )
        if not step:
            raise ConfigError(f"{KEY} has {text!r}: the first step of training is 1", "give 1 or more")
        devices, given = initial[stage].devices, Parallelism.parse(match[3])
        layout = given.over(devices)
        more = (given.cp, given.pp) != (1, 1) if stage == ROLLOUT else given.pp != 1
        if layout is None or more or ("dp" in match[3] and given.dp != layout.dp):
            key, degrees = "trainer.ranks", "dp x tp x cp"
            if stage == ROLLOUT:
                key, degrees = "rollout.engines x tp", "dp x tp"
            raise IllegalParallelism(
                f"{KEY} has {text!r}: {given} does not fit {devices} devices ({key})",
                f"give degrees with {degrees} = {devices}; dp may be left out",
            )
        return cls(step, stage, layout)


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """The switches of a run. first: the version that training begins with, after the warm-up. initial: the
    layout of each planned stage by the run file, of rollout that of each worker."""

    first: int
    initial: Mapping[str, Parallelism]
    changes: Sequence[LayoutChange] = field(default=())

    @classmethod
    def of(cls, texts: Sequence[str], first: int, initial: Mapping[str, Parallelism]) -> Self:
        """Raises as LayoutChange.parse."""
        return cls(first, initial, tuple(LayoutChange.parse(text, initial) for text in texts))

    def layout_at(self, stage: str, version: int) -> Parallelism:
        """The layout in which engines sample a version, or ranks train it."""
        step = version - self.first + 1
        layout = self.initial[stage]
        for change in self.changes:
            if change.stage == stage and change.step <= step:
                layout = change.layout
        return layout

    def layouts(self, stage: str) -> list[Parallelism]:
        """All that a stage has in the run, that of the run file first."""
        return [self.initial[stage], *(change.layout for change in self.changes if change.stage == stage)]

    def reason(self, stage: str, version: int) -> str:
        """The reason for a switch to the layout of a version, in words."""
        step = version - self.first + 1
        due = [change.step for change in self.changes if change.stage == stage and change.step <= step]
        if not due:
            return f"{KEY}: version {version} comes before the first switch of the plan"
        return f"{KEY}: from step {due[-1]} on, and version {version} begins step {step}"
