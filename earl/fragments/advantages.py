"""Advantage fragments: from the rewards of a batch's groups to one advantage of each trajectory. Pure.

    def mine(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
        return [[reward - max(group.rewards) for reward in group.rewards] for group in groups]

A fragment gets all groups of a batch at once, so it may compare a trajectory with its group or with the
batch. It returns a list for each group, in order, with a finite number for each of its trajectories. They
are scalars, from scalars: no tensor is gathered for them (EARL, arXiv 2510.05943, distributed advantage).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from earl.errors import FragmentError

# Below this rewards are equal up to rounding, and their advantages are 0.
SMALLEST_DEVIATION = 1e-6
# Added to a deviation, so that rewards that hardly differ do not become large advantages; TRL's.
DEVIATION_MARGIN = 1e-4


@dataclass(frozen=True, slots=True)
class GroupOutcomes:
    """The trajectories of one task instance, of one seat where the policy has several.

    rewards: of each trajectory, the sum of its episode's. trained_tokens: of each, the tokens that the policy
    generated.
    """

    rewards: tuple[float, ...]
    trained_tokens: tuple[int, ...]


AdvantageFragment = Callable[[Sequence[GroupOutcomes]], Sequence[Sequence[float]]]


def grpo(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = (r - mean) / (std + 1e-4), of the group; all 0 where every member got the same.

    DeepSeekMath, arXiv 2402.03300, 4.1.2; std of the sample (n - 1) and the margin as TRL has them.
    """
    return [_scaled(centred, _deviation(centred)) for centred in mean(groups)]


def mean(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = r - mean of the group. Dr. GRPO, arXiv 2503.20783."""
    return [_centred(group.rewards) for group in groups]


def rloo(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = r - mean of the other members' rewards; 0 in a group of one. RLOO, arXiv 2402.14740."""
    return [
        [value * len(centred) / max(1, len(centred) - 1) for value in centred] for centred in mean(groups)
    ]


def opo(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = r - (sum of l r) / (sum of l), of the group, where l are trained tokens: the baseline of least
    variance if a gradient's size grows with its trajectory. OPO, arXiv 2505.23585.

    The mean of the group where it has no trained token.
    """
    advantages = []
    for group in groups:
        tokens = sum(group.trained_tokens)
        if not tokens:
            advantages.append(_centred(group.rewards))
            continue
        weighted = math.fsum(
            reward * count for reward, count in zip(group.rewards, group.trained_tokens, strict=True)
        )
        advantages.append([reward - weighted / tokens for reward in group.rewards])
    return advantages


def reinforce_plus_plus(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = (r - mean) / (std + 1e-4), of all trajectories of the batch; all 0 where all rewards are equal.

    REINFORCE++, arXiv 2501.03262; std of the sample (n - 1).
    """
    return _of_batch([list(group.rewards) for group in groups])


def reinforce_plus_plus_baseline(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """r - mean of the group, then as in REINFORCE++ over the batch. REINFORCE++ with baseline, arXiv
    2501.03262."""
    return _of_batch(mean(groups))


def reward(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
    """A = r, compared with nothing: for a critic, whose values are the baseline (trainer.credit = "gae")."""
    return [list(group.rewards) for group in groups]


ADVANTAGES: Mapping[str, AdvantageFragment] = {
    "grpo": grpo,
    "mean": mean,
    "rloo": rloo,
    "opo": opo,
    "reinforce++": reinforce_plus_plus,
    "reinforce++-baseline": reinforce_plus_plus_baseline,
    "reward": reward,
}


# Those of which a group whose rewards are all equal teaches nothing.
GROUP_RELATIVE = frozenset(ADVANTAGES) - {"reinforce++", "reward"}


def advantages_of(
    name: str, fragment: AdvantageFragment, groups: Sequence[GroupOutcomes]
) -> list[list[float]]:
    """The fragment's advantages, checked. Raises FragmentError that names the fragment and the group."""
    try:
        made = [[float(value) for value in values] for values in fragment(groups)]
    except Exception as error:
        raise FragmentError(
            f"scheduler.advantage = {name!r} failed: {type(error).__name__}: {error}", "correct the function"
        ) from error
    if len(made) != len(groups):
        raise FragmentError(
            f"scheduler.advantage = {name!r} returned {len(made)} lists for {len(groups)} groups",
            "return one for each group, in order",
        )
    for number, (group, values) in enumerate(zip(groups, made, strict=True)):
        if len(values) != len(group.rewards) or not all(map(math.isfinite, values)):
            raise FragmentError(
                f"scheduler.advantage = {name!r} returned {values} for group {number} of the batch, whose "
                f"rewards are {list(group.rewards)}",
                "return a finite number for each trajectory",
            )
    return made


def _centred(values: Sequence[float]) -> list[float]:
    centre = math.fsum(values) / max(1, len(values))
    return [value - centre for value in values]


def _deviation(centred: Sequence[float]) -> float:
    """The standard deviation of a sample with mean 0."""
    return math.sqrt(math.fsum(value * value for value in centred) / max(1, len(centred) - 1))


def _scaled(centred: Sequence[float], deviation: float) -> list[float]:
    if deviation < SMALLEST_DEVIATION:
        return [0.0] * len(centred)
    return [value / (deviation + DEVIATION_MARGIN) for value in centred]


def _of_batch(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Values less their mean over all groups, over their deviation."""
    centred = _centred([value for group in groups for value in group])
    scaled = iter(_scaled(centred, _deviation(centred)))
    return [[next(scaled) for _ in group] for group in groups]
