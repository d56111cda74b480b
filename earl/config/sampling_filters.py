"""The filters of the distribution that a token is sampled from. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

# Bounds of repetition_penalty: beyond them a logit may overflow.
LEAST_PENALTY, MOST_PENALTY = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class SamplingFilters:
    """Filters in the order in which they apply; with the defaults nothing is filtered.

    repetition_penalty: positive logits of the tokens that the context has, prompt included, are divided by
    it, negative ones multiplied (CTRL, Keskar et al., 1909.05858, section 4.1). The logits are divided by the
    temperature next. top_k: so many of the most probable tokens are kept, 0: all. top_p: of those the fewest
    most probable ones that have this part of their probability (nucleus sampling, Holtzman et al.,
    1904.09751). min_p: of those the ones at least min_p times as probable as the most probable one (Nguyen et
    al., 2407.01082). A token as probable as the last one that a filter keeps is kept too.
    """

    repetition_penalty: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def active(self) -> dict[str, float]:
        """The values by name that are not defaults; SamplingFilters(**active) is equal to this."""
        defaults = asdict(SamplingFilters())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def __bool__(self) -> bool:
        return self != SamplingFilters()
