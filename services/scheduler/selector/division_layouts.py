"""The layout that each stage of a pool would have on any number of its devices. Pure.

    a stage's policy weighs every layout on every number of devices, for the same headroom
        ─► on each number the quickest of those that fit, and how many device-seconds it needs for a batch,
           over those that the layout in use needs

A division is possible if each stage has a layout that fits. Only ratios of the profile count, between layouts
of one stage at one load: they scale the device-seconds that the run has measured.

A move changes the layout of giver and taker. A stage that keeps its devices keeps its layout too: what it
would gain on them is decided by its own policy.

For a sequence that waits because no layout of rollout's devices holds it, the options are those that hold it:
the longest sequence that any division of the pool holds is longer than what the present devices hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from earl.parallelism import POOLED, Division, Parallelism
from services.scheduler.selector.candidate_scores import best
from services.scheduler.selector.decision import LayoutCandidate

# By number of devices, the layouts of a stage as its policy has weighed them.
Weighed = Mapping[int, Sequence[LayoutCandidate]]
# Whether a layout holds a sequence that waits.
Holding = Callable[[Parallelism], bool]


@dataclass(frozen=True, slots=True)
class StageOption:
    """A stage on a number of devices. relative: device-seconds of a batch over those in the layout in use.

    fits: whether it holds all that is expected; of the layout in use, whether any layout of its devices does.
    holds: likewise, whether it holds one sequence that waits.
    """

    layout: Parallelism
    relative: float = 1.0
    fits: bool = True
    holds: bool = True


@dataclass(frozen=True, slots=True)
class StageOptions:
    """A stage's options by number of devices; running: the layout in use, which is the option on its devices.

    rates: tokens that a device of each layout does a second; empty without a profile.
    """

    running: Parallelism
    options: Mapping[int, StageOption]
    rates: Mapping[Parallelism, float] = field(default_factory=dict)

    @classmethod
    def kept(
        cls, running: Parallelism, counts: Sequence[int], holds: Holding = lambda layout: True
    ) -> StageOptions:
        """A stage without a profile: it keeps its replicas, and a device does as much among few as among
        many. holds: whether a layout holds a sequence that waits."""
        layouts = {count: running.over(count) for count in (*counts, running.devices)}
        return cls(
            running,
            {
                count: StageOption(layout, holds=holds(layout))
                for count, layout in layouts.items()
                if layout is not None
            },
        )

    @classmethod
    def of(
        cls, running: Parallelism, weighed: Weighed, holds: Holding = lambda layout: True
    ) -> StageOptions | None:
        """A stage with a profile; None where it knows nothing of the layout in use.

        weighed: for the same headroom on every number of devices, the present one among them. holds: whether
        a layout holds a sequence that waits; one that does is preferred.
        """
        present = weighed.get(running.devices, ())
        rates = {
            each.parallelism: each.tokens_per_device_s
            for candidates in weighed.values()
            for each in candidates
            if isinstance(each.parallelism, Parallelism)
        }
        now = rates.get(running, 0.0)
        if now <= 0:
            return None
        options: dict[int, StageOption] = {}
        for count, candidates in weighed.items():
            holding = _holding(candidates, holds)
            lead = best(holding or candidates)
            if lead.tokens_per_device_s > 0 and isinstance(lead.parallelism, Parallelism):
                relative = now / lead.tokens_per_device_s
                options[count] = StageOption(lead.parallelism, relative, lead.fits, bool(holding))
        fits = any(each.fits for each in present)
        options[running.devices] = StageOption(running, 1.0, fits, bool(_holding(present, holds)))
        return cls(running, options, rates)

    def scaled(self, former: Parallelism) -> float:
        """Returns the factor from device-seconds in a former layout to those in the layout in use, at the
        present load; 1 where the profile does not tell."""
        before, now = self.rates.get(former, 0.0), self.rates.get(self.running, 0.0)
        return before / now if before > 0 and now > 0 else 1.0


@dataclass(frozen=True, slots=True)
class DivisionLayouts:
    """The options of all stages of a pool of so many devices, in the order of POOLED."""

    stages: tuple[StageOptions, ...]
    pool: int

    @property
    def running(self) -> tuple[Parallelism, ...]:
        """The layouts in use."""
        return tuple(stage.running for stage in self.stages)

    @property
    def here(self) -> Division:
        """The division in use."""
        return tuple(stage.running.devices for stage in self.stages)

    def divisions(self) -> list[Division]:
        """The divisions of the whole pool of which no stage is worse off in memory: all that is expected fits
        into its devices. A stage for which that is not so now may keep its devices, or get more."""
        possible = [
            [
                count
                for count, option in stage.options.items()
                if option.fits or (not self._fits(stage) and count >= stage.running.devices)
            ]
            for stage in self.stages
        ]
        return [division for division in product(*possible) if sum(division) == self.pool]

    def holding(self) -> tuple[list[Division], list[Division]]:
        """(the other divisions of the whole pool of which every stage holds the sequence that waits in
        rollout, and those that lead there: every stage but rollout holds it)."""
        others = [
            [count for count, option in stage.options.items() if option.holds] for stage in self.stages[1:]
        ]
        rollout = self.stages[0].options
        passable = [division for division in product(rollout, *others) if sum(division) == self.pool]
        # No layout of rollout's present devices holds it: else it would not wait.
        held = [
            division
            for division in passable
            if rollout[division[0]].holds and division[0] != self.stages[0].running.devices
        ]
        return held, passable

    def fits(self, division: Division) -> bool:
        """Returns whether all that is expected fits into the devices of each stage."""
        return all(option.fits for option in self._chosen(division))

    def layouts(self, division: Division) -> tuple[Parallelism, ...]:
        """The layout of each stage in a division."""
        return tuple(option.layout for option in self._chosen(division))

    def relative(self, division: Division) -> tuple[float, ...]:
        """The factor for the device-seconds of each stage in a division."""
        return tuple(option.relative for option in self._chosen(division))

    def by_stage(self, division: Division) -> dict[str, Parallelism]:
        """The layout of each stage in a division, by its name."""
        return dict(zip(POOLED, self.layouts(division), strict=False))

    def _chosen(self, division: Division) -> list[StageOption]:
        pairs = zip(self.stages, division, strict=True)
        return [stage.options[count] for stage, count in pairs]

    @staticmethod
    def _fits(stage: StageOptions) -> bool:
        return stage.options[stage.running.devices].fits


def _holding(candidates: Sequence[LayoutCandidate], holds: Holding) -> list[LayoutCandidate]:
    """Returns the candidates that hold the sequence that waits."""
    return [
        each for each in candidates if isinstance(each.parallelism, Parallelism) and holds(each.parallelism)
    ]
