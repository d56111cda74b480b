"""The costs of a switch of parallelism, of one worker or of a whole stage. Pure.

Every figure of a switch is one field of SwitchFigures. The messages (earl.parallelism_codec), the ledger,
switches.jsonl, the status and what commands print take figures from there, so that a new one needs a field
here, a field of the message SwitchFigures, and a line where it is measured.

Imports nothing of EARL: commands that show a run do without the run file's schema.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Self, TypeVar

# How many phases a sentence about a switch names.
PHASES_SHOWN = 3
# How a parallelism is written: as Parallelism, as text such as "dp2·tp2", or as its four degrees.
Written = TypeVar("Written")


def _farther(first: float, second: float) -> float:
    """The larger difference; one that is not a number is larger than any."""
    return first if math.isnan(first) or first >= second else second


def _slowest(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, each of the worker that took longest for it."""
    return {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}


def _longest(phases_s: Mapping[str, float]) -> str:
    """The longest phases in words, for example "longest phases: moving 0.41 s, canaries after 0.20 s"."""
    longest = sorted(phases_s.items(), key=lambda phase: phase[1], reverse=True)[:PHASES_SHOWN]
    return f"longest phases: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in longest)}"


def _mib(text: str) -> Callable[[int], str]:
    return lambda size_bytes: text.format(size_bytes / (1 << 20))


def _figure(
    default: Any, combine: Callable[[Any, Any], Any], words: Callable[[Any], str] | None = None
) -> Any:
    """combine: the figure of two workers together. words: the figure in a sentence; None leaves it out."""
    return field(default=default, metadata={"combine": combine, "words": words})


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchFigures:
    """The costs of a switch: of one worker, or of all workers of a stage together."""

    # Longest time in which a worker produced nothing.
    stall_s: float = _figure(0.0, max)
    # From the command to the end, the wait for a step boundary included.
    seconds: float = _figure(0.0, max)
    # Turns that were interrupted and continued with new engines.
    sequences_continued: int = _figure(0, operator.add, "{:,} sequences continued".format)
    # KV that new engines read from old ones; parameters and moments that trainer ranks sent each other.
    moved_bytes: int = _figure(0, operator.add, _mib("{:,.1f} MiB moved"))
    # Tokens whose KV was computed again instead of moved.
    kv_recomputed_tokens: int = _figure(0, operator.add)
    # Most that a rank needed beyond the larger of its shards before and after.
    peak_extra_bytes: int = _figure(0, max)
    # Between canaries' log-probs before and after; NaN if one was not a number.
    max_logprob_difference: float = _figure(0.0, _farther)
    # Old engines ended before new ones began, for lack of memory: stall_s is the gap.
    cold: bool = _figure(False, operator.or_)
    # Canaries' log-probs that were compared before and after; 0: nothing vouches for the new parallelism.
    logprobs_compared: int = _figure(0, operator.add, "{:,} log-probs compared".format)
    # Phases of a rollout worker's switch, in seconds, in this order unless it is cold. Until new engines had
    # started, in processes that were ready or new ones.
    start_s: float = _figure(0.0, max)
    # Until they had the weights, the wait for a publication that is loaded included.
    weights_s: float = _figure(0.0, max)
    # Canaries, and rounds of KV while turns ran; the number of those rounds.
    kv_ahead_s: float = _figure(0.0, max)
    kv_rounds: int = _figure(0, max)
    # Until every old engine had ended its step and its turns.
    interrupt_s: float = _figure(0.0, max)
    # The last round of KV, with the last checks of the new engines.
    kv_rest_s: float = _figure(0.0, max)
    # From then until each new engine had sampled a token for the turns that it got.
    resume_s: float = _figure(0.0, max)
    # Until the old engines, or those of a switch that was rolled back, had ended.
    end_s: float = _figure(0.0, max)
    # Seconds in which both sets of engines had processes, and competed for the same cores.
    competing_s: float = _figure(0.0, max)
    # Seconds of each phase of the stall by name, of the slowest rank; empty where they were not measured.
    phases_s: Mapping[str, float] = field(
        default_factory=dict, metadata={"combine": _slowest, "words": _longest}
    )

    def figures(self) -> dict[str, Any]:
        """Returns the figures by name, in the order of the fields, without those that a subclass adds."""
        return {figure.name: getattr(self, figure.name) for figure in fields(SwitchFigures)}

    def with_worker(self, other: SwitchFigures) -> Self:
        """Combines the figures with those of one more worker."""
        combined = {
            figure.name: figure.metadata["combine"](getattr(self, figure.name), getattr(other, figure.name))
            for figure in fields(SwitchFigures)
        }
        return replace(self, **combined)

    def words(self) -> list[str]:
        """Figures that are not zero, each as part of a sentence; stall_s and seconds are for the caller."""
        return [
            figure.metadata["words"](value)
            for figure in fields(SwitchFigures)
            if figure.metadata["words"] is not None and (value := getattr(self, figure.name))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSwitch(SwitchFigures, Generic[Written]):
    """One change of a stage's parallelism; while it runs its figures are those of the workers that answered.

    before, after: of all workers together. rolled_back: the stage has the parallelism of before, and message
    gives the reason.
    """

    epoch: int
    before: Written
    after: Written
    reason: str = ""
    rolled_back: bool = False
    message: str = ""
