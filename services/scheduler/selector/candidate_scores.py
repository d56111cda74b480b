"""The candidates of a pool, weighed for a workload. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from earl.parallelism import Replica
from services.scheduler.selector.decision import LayoutCandidate, LayoutChoice, Outlook, Workload

# Points of a profile that are looked at to begin with, for all candidates together, and for each at least.
_POINTS, _LEAST = 256, 8


def weigh(
    table: Outlook, devices: int, load: Workload, must_fit: Sequence[tuple[float, float]] = ()
) -> tuple[LayoutCandidate, ...]:
    """Scores each parallelism: throughput at the mean length, memory at the maximum.

    must_fit: (length in tokens, concurrency) that have to fit; the load's own maximum if none are given.
    Raises ConfigError if no layout has so many devices.
    """
    corners = must_fit or ((load.max_tokens, load.concurrency),)
    weighed = []
    for layout in table.candidates(devices):
        predicted = table.predict(layout, load.mean_tokens, load.concurrency)
        rate = predicted.tokens_per_device_s
        predictions = [table.uncorrected(layout, *corner) for corner in corners]
        worst = next((prediction for prediction in predictions if not prediction.fits), predictions[0])
        known = (prediction.memory_fraction for prediction in predictions)
        fractions = [fraction for fraction in known if fraction is not None]
        weighed.append(
            LayoutCandidate(
                layout,
                rate,
                max(fractions, default=None),
                worst.fits and rate > 0,
                load.concurrency * load.mean_tokens / (rate * devices) if rate > 0 else math.inf,
                worst.reason,
                predicted.source,
            )
        )
    return tuple(weighed)


def best(candidates: Sequence[LayoutCandidate]) -> LayoutCandidate:
    """The quickest candidate that fits; of equals the smallest replica.

    If none fits, the one with most free memory.
    """
    fitting = [candidate for candidate in candidates if candidate.fits]
    if not fitting:
        return max(candidates, key=_free_memory)
    return min(fitting, key=lambda layout: (layout.step_s, _size(layout), layout.parallelism.replica))


def with_most_memory(
    table: Outlook, devices: int, margin: float
) -> tuple[LayoutChoice, tuple[LayoutCandidate, ...]]:
    """Chooses the parallelism to begin with when nothing is known, scored at the profile's longest context
    and highest load, within the table's bound.

    What fits the bound, or where nothing bounds it `margin` times the profile's extent, and all of the
    profile within that, is safe. The quickest of what is safe is chosen, by the geometric mean over the
    profile's points, of a long profile some. If nothing is: what fits most points, then with most free
    memory.
    """
    longest, highest = table.bound
    points = sorted({(min(context, longest), min(load, highest)) for context, load in table.points})
    most = max(_LEAST, _POINTS // len(table.candidates(devices)))
    if len(points) > most:
        # By lot, always the same: every n-th point of a grid might have the same load.
        points = random.Random(0).sample(points, most)
    context, concurrency = (min(*each) for each in zip(table.extent, table.bound, strict=True))
    furthest = (
        context * margin if math.isinf(longest) else longest,
        concurrency * margin if math.isinf(highest) else highest,
    )
    largest = Workload(context, context, context, concurrency)
    candidates = weigh(table, devices, largest, [furthest, *points])
    safe = [candidate for candidate in candidates if candidate.fits]

    def pace(candidate: LayoutCandidate) -> float:
        rates = [table.predict(candidate.parallelism, *point).tokens_per_device_s for point in points]
        return sum(math.log(rate) for rate in rates)

    def fitting(candidate: LayoutCandidate) -> int:
        return sum(table.predict(candidate.parallelism, *point).fits for point in points)

    if safe:
        chosen = max(safe, key=lambda candidate: (pace(candidate), candidate.parallelism.replica))
    else:
        chosen = max(candidates, key=lambda candidate: (fitting(candidate), *_free_memory(candidate)))
    return chosen.parallelism, candidates


def _size(candidate: LayoutCandidate) -> int:
    """Number of devices of a replica."""
    return math.prod(candidate.parallelism.replica)


def _free_memory(candidate: LayoutCandidate) -> tuple[bool, float, int, Replica]:
    """More is safer: of what has a throughput, less memory used, then the larger replica."""
    used = candidate.memory_fraction if candidate.memory_fraction is not None else math.inf
    return math.isfinite(candidate.step_s), -used, _size(candidate), candidate.parallelism.replica
