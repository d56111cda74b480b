"""The parallelism of a stage: data, tensor, context and pipeline parallel degrees of its devices. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from earl.errors import IllegalParallelism

# The stages that have a parallelism of their own, in the order in which they work on a trajectory.
ROLLOUT, REFERENCE, TRAINER = STAGES = ("rollout", "reference", "trainer")
# The stages of a teacher and of a reward model: they keep the parallelism that they start with.
TEACHER, REWARD_MODEL = "teacher", "reward_model"
# Every stage, as the contract numbers them from 1.
NUMBERED_STAGES = (*STAGES, TEACHER, REWARD_MODEL)
# The stages that may draw on one pool of devices, in the order in which records of it count their devices:
# two numbers in a run without a reference stage.
POOLED = (ROLLOUT, TRAINER, REFERENCE)
# Devices by stage, in that order.
Division = tuple[int, ...]
# The parallelism of a replica, (tp, cp, pp); of stages that share devices, one after the other.
Replica = tuple[int, ...]
_DEGREES = ("dp", "tp", "cp", "pp")
_PART = re.compile(r"^(dp|tp|cp|pp)=?([0-9]{1,9})$")


@dataclass(frozen=True, slots=True, order=True)
class Parallelism:
    """Degrees >= 1; dp replicas of tp x cp x pp devices each. Raises IllegalParallelism."""

    dp: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name in _DEGREES:
            if getattr(self, name) < 1:
                raise IllegalParallelism(f"{name} = {getattr(self, name)}", "every degree is at least 1")

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """From "tp=4", "dp=2,tp=4" or what str() makes, "dp2·tp4". Raises IllegalParallelism."""
        degrees: dict[str, int] = {}
        for part in re.split(r"[,·\s]+", text.strip()):
            match = _PART.match(part)
            if not match or match[1] in degrees:
                raise IllegalParallelism(
                    f"{text!r} is no parallelism", 'write degrees, each once, like "tp=4" or "dp=2,tp=4"'
                )
            degrees[match[1]] = int(match[2])
        return cls(**degrees)

    @property
    def replica(self) -> tuple[int, int, int]:
        """(tp, cp, pp): the parallelism of a replica."""
        return self.tp, self.cp, self.pp

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.cp * self.pp

    def over(self, devices: int) -> Parallelism | None:
        """The same replicas over so many devices; None if they do not divide them."""
        size = self.tp * self.cp * self.pp
        if devices < size or devices % size:
            return None
        return Parallelism(devices // size, self.tp, self.cp, self.pp)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _DEGREES}

    def __str__(self) -> str:
        parts = [f"{name}{degree}" for name, degree in self.as_dict().items() if degree > 1]
        return "·".join(parts) or "tp1"


def divisors(heads: int, kv_heads: int) -> list[int]:
    """Numbers of ranks over which heads can be dealt: each gets equally many, and whole kv_heads or shares
    one with others.
    """
    return [
        n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)
    ]  # fmt: skip
