"""The cases that assignments are judged on: a trace, a fleet, a staleness.

An engine's cost follows by division from an 8B model with grouped-query attention in bfloat16 and a device
with 3.2 TB/s of memory and 400 TFLOP/s: a step reads 16 GB of weights (5 ms), a sequence computes 16 GFLOP
(40 µs), a token of context has 128 KiB of KV (40 ns). With tp 4 each device reads and computes a quarter, and
a step waits 0.6 ms for collectives. Nothing here was measured on a device.

Seeds that constants were chosen on and seeds that are reported are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.assign.traces import LengthTrace, generated
from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.plan import EngineKind

# Whoever changes a constant of services/scheduler/assign looks at these alone, and at the reported ones only
# afterwards.
TUNING_SEEDS = tuple(range(4))
REPORTED_SEEDS = (1000, 1001, 1002)

TP1 = DecodeCost(step_s=5e-3, sequence_s=4e-5, context_s=4e-8, prompt_s=4e-5)
TP4 = DecodeCost(step_s=1.85e-3, sequence_s=1e-5, context_s=1e-8, prompt_s=1e-5)
# Devices of a fleet, one simulated worker each where tp is 1; sequences of a batch, in groups.
DEVICES, BATCH_GROUPS, GROUP_SIZE = 1000, 1024, 16
# Steps of an epoch, and epochs that are played after those that the history has recorded.
STEPS, PLAYED_EPOCHS = 3, 2
# The factor of all lengths from one epoch to the next.
GROWTH = 1.05


@dataclass(frozen=True, slots=True)
class AssignCase:
    """One case. rank_change: of tasks between epochs. slots: sequences that a device decodes at once. growth:
    factor of lengths between epochs. recorded: epochs before the first batch. wide: devices that are in
    engines of tp 4, each with four devices' slots."""

    name: str
    rank_change: float = 0.03
    staleness: int = 1
    slots: int = 8
    growth: float = GROWTH
    recorded: int = 2
    wide: int = 0

    def trace(self, seed: int, devices: int = DEVICES) -> LengthTrace:
        """Its trace; batches shrink with the devices."""
        return generated(
            seed,
            epochs=self.recorded + PLAYED_EPOCHS,
            steps=STEPS,
            batch_groups=BATCH_GROUPS * devices // DEVICES,
            group_size=GROUP_SIZE,
            rank_change=self.rank_change,
            growth=self.growth,
        )

    def fleet(self, devices: int = DEVICES) -> tuple[Sequence[EngineKind], np.ndarray]:
        """(kinds of engines, the kind of each engine)."""
        wide = self.wide * devices // DEVICES // 4
        kinds = (EngineKind(TP1, self.slots), EngineKind(TP4, 4 * self.slots))
        return kinds, np.asarray([0] * (devices - 4 * wide) + [1] * wide)


# The paper's ranks; beside it ranks that change much more; then one thing different at a time.
PAPER, RESHUFFLED = AssignCase("paper"), AssignCase("reshuffled", rank_change=0.20)
CASES = (
    PAPER,
    RESHUFFLED,
    AssignCase("synchronous", staleness=0),
    AssignCase("few-slots", slots=4),
    AssignCase("many-slots", slots=16),
    AssignCase("growing", growth=1.3),
    AssignCase("cold", recorded=0),
    AssignCase("wide-engines", wide=300),
)
