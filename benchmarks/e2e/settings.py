"""The settings of both sides: one set of numbers. Needs the standard library alone."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.e2e.task import TASKS, UNEQUAL, SortTask


@dataclass(frozen=True, slots=True)
class Settings:
    """GRPO's numbers, the same in EARL's terms and in TRL's. task: a key of TASKS.

    A step is one batch of `groups` questions with `group_size` answers each and one optimizer step on
    it. Ended: the mean training reward of the last `window` steps is `threshold` or more, or `steps` are
    done, or `limit_s` have passed since the process started.
    """

    task: str = UNEQUAL.name
    seed: int = 0
    group_size: int = 16
    groups: int = 16
    steps: int = 400
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    max_grad_norm: float = 1.0
    epsilon: float = 0.2
    temperature: float = 1.0
    threads: int = 2
    window: int = 16
    threshold: float = UNEQUAL.threshold
    limit_s: float = 600.0

    @property
    def sort(self) -> SortTask:
        return TASKS[self.task]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def reached(rewards: list[float], settings: Settings) -> bool:
    """Returns whether the mean of the last `window` rewards, if there are as many, is at the threshold."""
    last = rewards[-settings.window :]
    return len(last) == settings.window and sum(last) / len(last) >= settings.threshold


@dataclass(slots=True)
class Trace:
    """The course of one side: after every step the seconds since its process was started, and the batch's
    mean reward. began_s: when it was ready to sample for the first time. settings, versions: that side's."""

    times_s: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    began_s: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def figures(self, settings: Settings) -> dict[str, Any]:
        """reached; seconds to the threshold with and without start-up (null if never); steps; step time."""
        count = next(
            (n for n in range(1, len(self.rewards) + 1) if reached(self.rewards[:n], settings)), None
        )
        until = self.times_s[count - 1] if count else None
        steps = [after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False)]
        return {
            "reached": count is not None,
            "steps": count or len(self.rewards),
            "seconds": until and round(until, 2),
            "seconds_without_start": until and round(until - self.began_s, 2),
            "start_s": round(self.began_s, 2),
            "step_s_median": round(statistics.median(steps), 3) if steps else None,
            "reward_first": round(statistics.fmean(self.rewards[: settings.window]), 4)
            if self.rewards
            else None,
            "reward_last": round(statistics.fmean(self.rewards[:count][-settings.window :]), 4)
            if self.rewards
            else None,
        }
