"""Compares a mixture of environments with one environment: a rate of each, in turns, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from benchmarks.record.progress import counted

Environments = Annotated[
    int, typer.Option(min=1, help="Also measure a mixture of so many environments in turns with one; 1: not.")
]
MixtureRounds = Annotated[int, typer.Option(min=1, help="Rounds of that comparison.")]


def parts_to_measure(parts: str, known: Sequence[str], environments: int) -> list[str]:
    """The parts of a benchmark that --parts names; [] if the mixture alone is measured.

    Raises typer.BadParameter for a part that is not known, and where nothing would be measured.
    """
    chosen = parts.split(",") if parts else []
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join(known)}", param_hint="parts")
    if not chosen and environments == 1:
        raise typer.BadParameter(f"none: use {', '.join(known)}, or --environments 8", param_hint="parts")
    return chosen


async def in_turns(
    measured: Callable[[int, int], Awaitable[float]], environments: int, rounds: int
) -> dict[str, Any]:
    """Measures one environment and several alternately; the other one begins in each second round.

    measured: takes the number of environments and that of the round, and returns a rate.
    """
    rates: dict[int, list[float]] = {1: [], environments: []}
    for number in counted("mixture: rounds", range(rounds)):
        for count in (1, environments) if number % 2 == 0 else (environments, 1):
            rates[count].append(await measured(count, number))
    return mixture_figures(rates[1], rates[environments], environments)


def mixture_figures(alone: Sequence[float], several: Sequence[float], environments: int) -> dict[str, Any]:
    """mixture_ratio: the median rate with several environments over that with one. mixture_rounds: both
    rates of each round."""
    rounds = [
        {"one": round(single, 1), "several": round(mixed, 1)}
        for single, mixed in zip(alone, several, strict=True)
    ]
    return {
        "environments": environments,
        "mixture_ratio": round(statistics.median(several) / statistics.median(alone), 4),
        "mixture_rounds": rounds,
    }
