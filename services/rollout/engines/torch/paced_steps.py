"""The pace of an engine's steps, where its devices are simulated.

    step: computed for real ─► shortage? refuses the largest ─► waits until the step's time is over ─► replies

The wait is part of the step: commands are handled after it, as after a real step, and it is bounded.
"""

from __future__ import annotations

import time

from earl.errors import ContextTooLong
from earl.pacing.pace import PaceCount
from earl.parallelism import ROLLOUT, Parallelism
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.torch.batch import StepBatch

# The longest wait: calls to the engine are bounded by more.
MOST_WAIT_S = 30.0


class PacedSteps:
    """Does nothing on real devices. count: of the steps that were paced since `take`."""

    def __init__(self, spec: EngineSpec) -> None:
        pace = spec.pace
        self._pace = pace if pace is not None and pace.paces(ROLLOUT) else None
        self._spec = spec
        self._layout = Parallelism(1, spec.tp)
        self._longest = self._pace.held_tokens(ROLLOUT, self._layout.replica) if self._pace else 0.0
        self.count = PaceCount()

    def check_length(self, tokens: int) -> None:
        """Raises ContextTooLong for a sequence that the devices could not hold alone."""
        if self._pace is not None and tokens > self._longest:
            raise ContextTooLong(
                f"{tokens} tokens exceed the {self._longest:g} that {self._layout} holds by pace table "
                f"{self._pace.table.name}",
                "use engines of more devices",
            )

    def shortage(self, batch: StepBatch) -> str:
        """The reason why the step's sequences are out of memory by the table; "" if they are not."""
        if self._pace is None:
            return ""
        sequences, tokens = len(batch.slots), _mean_tokens(batch)
        if self._pace.fits(ROLLOUT, self._layout, tokens, sequences):
            return ""
        return (
            f"pace table {self._pace.table.name} has {self._layout} out of memory for {sequences} sequences "
            f"of {tokens:.0f} tokens"
        )

    def wait(self, batch: StepBatch, took_s: float) -> None:
        """Returns when the step's time is over. took_s: seconds since it began."""
        if self._pace is None:
            return
        sequences = len(batch.slots)
        prompts = int(batch.counts.sum()) - sequences
        pace_s = self._pace.engine_step_s(self._spec.tp, sequences, _mean_tokens(batch), prompts)
        time.sleep(min(MOST_WAIT_S, self.count.wait_s(pace_s, took_s)))

    def take(self) -> tuple[int, int]:
        """(steps, those of them over pace) since the last call."""
        count, self.count = self.count, PaceCount()
        return count.steps, count.late


def _mean_tokens(batch: StepBatch) -> float:
    return float((batch.starts + batch.counts).mean())
