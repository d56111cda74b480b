"""What becomes of a decision: it is carried out, or there is a reason why not. Pure.

A decision is carried out if its stage is free: not pinned, not on its way already. What a switch costs and
what is no candidate, the next decision hears from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from earl.errors import EarlError
from earl.parallelism import Parallelism
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.selector.stages import Verdict
from services.scheduler.state.switch_records import By, Replica


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a stage is. heading: how it is cut, or being cut; None where its workers differ.

    cost_s: of a switch, as measured; None before the first. barred: no candidates, and why.
    """

    heading: Parallelism | None = None
    cost_s: float | None = None
    barred: Mapping[Replica, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """epoch: of the switch that carries the decision out, 0 if there is none; held: why not, "" if there was
    nothing to do."""

    epoch: int = 0
    held: str = ""


class Helm:
    """Carries decisions out."""

    def __init__(self, switching: Switching) -> None:
        self._switching = switching

    def stand(self, stage: str, now: float) -> Stand:
        """Before a decision."""
        costs_s = self._switching.stage(stage).costs_s
        return Stand(
            self._switching.target(stage),
            median(costs_s) if costs_s else None,
            self._switching.barred(stage, now),
        )

    def go(self, verdict: Verdict, now: float, *, must_fit: bool = False) -> Action:
        """After it. must_fit: only to what fits: a request waits for room, and elsewhere it would wait on."""
        stage, wanted = verdict.stage, verdict.chosen.replica
        if must_fit and not verdict.fits:
            return Action(held="no layout holds it")
        heading = self._switching.target(stage)
        if heading is not None and heading.replica == wanted:
            return Action()
        course = self._switching.stage(stage)
        if course.pinned:
            return Action(held=f"{stage} is pinned")
        if course.switch is not None:
            return Action(held=f"{stage} is being cut into {course.switch.target}")
        reason = verdict.decision.reason
        try:
            switch = self._switching.ask(
                stage, wanted, by=By.SELECTOR, reason=reason, now=now, step=verdict.decision.step
            )
        except EarlError as error:
            return Action(held=error.message)
        return Action(switch.epoch if switch is not None else 0)
