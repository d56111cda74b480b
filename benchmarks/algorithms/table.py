"""The algorithms that benchmarks and slow tests run: each is a name for keys of a run file.

A new one is a line here. What its keys compute is in docs/algorithms.md. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from earl.config.load import Override

# Stands in a value for the directory of a model that teaches.
TEACHER = "{teacher}"


@dataclass(frozen=True, slots=True)
class KnownAlgorithm:
    """Keys of a run file under the name that papers give them.

    about: a line for people. keys: dotted keys and their values as text, laid over the run file; TEACHER in a
    value is the directory of a model. least: the win rate that the demo's environment is to be learned to, in
    `in_each` every seed, else two of three. placed: `earl bench placements` runs it, too.
    """

    about: str
    keys: Mapping[str, str]
    least: float = 0.85
    in_each: bool = False
    placed: bool = False

    @property
    def needs_teacher(self) -> bool:
        return any(TEACHER in value for value in self.keys.values())

    def overrides(self, teacher: str = "") -> list[Override]:
        """The keys as overrides of a run file. teacher: the directory of a model, where one is needed."""
        return [(key, value.replace(TEACHER, teacher)) for key, value in self.keys.items()]

    def seeds_needed(self, seeds: int) -> int:
        """Returns the number of seeds, of so many, that have to reach `least`."""
        return seeds if self.in_each else -(-2 * seeds // 3)


ALGORITHMS: Mapping[str, KnownAlgorithm] = {
    "grpo": KnownAlgorithm("GRPO: the demo's run file as it is", {}, placed=True),
    "dr-grpo": KnownAlgorithm(
        "Dr. GRPO: no division by the group's deviation, nor by lengths",
        # A game has about ten trained tokens.
        {
            "scheduler.advantage": "mean",
            "trainer.loss_mean": "constant",
            "trainer.loss_sequence_tokens": "10",
        },
    ),
    "dapo": KnownAlgorithm(
        "DAPO: clip-higher, mean over tokens, dynamic sampling",
        {"trainer.clip_high": "0.28", "trainer.loss_mean": "token", "scheduler.resample": "1"},
    ),
    "rloo": KnownAlgorithm(
        "RLOO: the others' mean as baseline", {"scheduler.advantage": "rloo"}, placed=True
    ),
    "opo": KnownAlgorithm("OPO: a baseline weighted by lengths", {"scheduler.advantage": "opo"}, placed=True),
    "reinforce++": KnownAlgorithm(
        "REINFORCE++: normalised over the batch", {"scheduler.advantage": "reinforce++"}
    ),
    "reinforce++-baseline": KnownAlgorithm(
        "REINFORCE++ with the group's mean as baseline", {"scheduler.advantage": "reinforce++-baseline"}
    ),
    "gspo": KnownAlgorithm(
        "GSPO: the ratio of whole trajectories",
        # The paper's bounds of some 3e-4 are for a language model's learning rate; the demo's is much larger.
        {
            "trainer.loss": "gspo",
            "trainer.loss_mean": "sequence",
            "trainer.clip_low": "0.05",
            "trainer.clip_high": "0.05",
        },
        placed=True,
    ),
    "cispo": KnownAlgorithm(
        "CISPO: every token's gradient, its ratio bounded", {"trainer.loss": "cispo"}, placed=True
    ),
    "dual-clip": KnownAlgorithm("PPO's dual clip", {"trainer.loss": "dual-clip"}),
    "truncated": KnownAlgorithm("truncated importance sampling", {"trainer.importance": "truncated"}),
    "icepop": KnownAlgorithm("IcePop: importance masked outside of bounds", {"trainer.importance": "masked"}),
    "sequence-truncated": KnownAlgorithm(
        "truncated importance sampling of whole trajectories", {"trainer.importance": "sequence-truncated"}
    ),
    "sequence-masked": KnownAlgorithm(
        "trajectories masked by their importance", {"trainer.importance": "sequence-masked"}
    ),
    "turn-discount": KnownAlgorithm(
        "GRPO, with a smaller part for earlier turns", {"trainer.turn_discount": "0.8"}
    ),
    "decoupled": KnownAlgorithm("decoupled PPO", {"trainer.importance": "decoupled"}, placed=True),
    "ppo": KnownAlgorithm(
        "PPO with a critic and GAE",
        {"scheduler.advantage": "reward", "trainer.credit": "gae"},
        least=0.9,
        in_each=True,
        placed=True,
    ),
    "distillation": KnownAlgorithm(
        "on-policy distillation from a model of the same sizes, without rewards",
        {"teacher.path": TEACHER, "teacher.rewards": "false"},
        placed=True,
    ),
}
