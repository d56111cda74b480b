"""The pace of a run's devices: a table, scaled to what this machine computes for real. Pure.

    a step of the run:  tokens, sequences ─ × scales ─► the table's ─► seconds of its device ─ × scale ─► wait

A step is computed with the run's own small model and then waits until its time has passed. The scales say
what the small run stands for, so that the table's contexts, loads and times fit the cores that compute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from earl.pacing.table import PaceTable
from earl.parallelism import ROLLOUT, Parallelism, Replica

# A table of rollout knows generated tokens alone: so many tokens of a prompt take the time of one of them.
PREFILL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PaceScale:
    """tokens, sequences: of the table, that one of the run stands for. seconds: of the run, for one of the
    table."""

    tokens: float = 1.0
    sequences: float = 1.0
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds and memory of a step in the run's own units. Methods raise ConfigError for a replica that the
    table lacks.

    Example: Pace(table, PaceScale(tokens=64)).engine_step_s(4, 8, 300.0, 0): a step of an engine of 4 devices
    that generates a token for each of 8 sequences of 300 tokens, which stand for 19,200 of the table.
    """

    table: PaceTable
    scale: PaceScale

    def paces(self, stage: str) -> bool:
        """Returns whether the table has rows of a stage; others run at the machine's own speed."""
        return stage in self.table.stages

    def has(self, stage: str, replica: Replica) -> bool:
        """Returns whether a stage may have replicas of this kind: those of the table, or all if it has none
        of the stage."""
        return not self.paces(stage) or replica in self.table.replicas(stage)

    def engine_step_s(self, tp: int, sequences: int, mean_tokens: float, prompt_tokens: int) -> float:
        """Seconds of an engine's step: a token for each sequence, and `prompt_tokens` more of prompts."""
        point = ROLLOUT, (tp, 1, 1), mean_tokens * self.scale.tokens, sequences * self.scale.sequences
        prompts_s = prompt_tokens * self.scale.sequences / PREFILL_TOKENS * self.table.token_s(*point)
        return self.scale.seconds * (self.table.step_s(*point) + prompts_s)

    def pass_s(self, stage: str, replica: Replica, sequences: int, total_tokens: int) -> float:
        """Seconds that a replica of trainer or reference stage takes for a pass over so many sequences."""
        if not sequences:
            return 0.0
        tokens, load = total_tokens / sequences * self.scale.tokens, sequences * self.scale.sequences
        return self.scale.seconds * tokens * load * self.table.token_s(stage, replica, tokens, load)

    def fits(self, stage: str, layout: Parallelism, context_tokens: float, concurrency: float) -> bool:
        """Returns whether a layout is not out of memory at a length, with so many sequences in the whole
        pool. A stage or a replica that the table lacks is not bounded by it."""
        if layout.replica not in self.table.replicas(stage):
            return True
        share = concurrency / layout.dp * self.scale.sequences
        return self.table.fits(stage, layout.replica, context_tokens * self.scale.tokens, share)

    def held_tokens(self, stage: str, replica: Replica) -> float:
        """Tokens of the longest sequence that a replica holds if it has no other; infinite if there is no
        bound, or the table lacks it."""
        if replica not in self.table.replicas(stage):
            return math.inf
        longest = self.table.longest(stage, replica) / self.scale.tokens
        return math.ceil(longest) - 1 if math.isfinite(longest) else longest


@dataclass(slots=True)
class PaceCount:
    """Steps that waited for their pace, and those that had taken longer already.

    steps: all. late: took longer. late_s: seconds beyond the pace, in all.
    """

    steps: int = 0
    late: int = 0
    late_s: float = 0.0

    def wait_s(self, pace_s: float, took_s: float) -> float:
        """Counts a step; returns the seconds that it still has to wait."""
        self.steps += 1
        if took_s <= pace_s:
            return pace_s - took_s
        self.late += 1
        self.late_s += took_s - pace_s
        return 0.0
