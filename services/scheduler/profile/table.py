"""Predicts throughput and memory of a parallelism from a stage's profile. Pure.

    measured      the point is a row's
    interpolated  between rows: log throughput is piecewise linear in (log context, log concurrency)
    extrapolated  beyond them: the nearest point of the table, times the roofline's ratio on the way there

What does not fit at (L, C) does not fit at any length >= L and concurrency >= C. Elsewhere the memory
decides, where the table has fractions, in the same way.

Throughput belongs to a replica (tp, cp, pp) at its share of the pool's concurrency: where a profile has no
rows of the dp that is asked for, those of the nearest dp serve, at the same share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.roofline import Roofline
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.surface import Surface, SurfaceShape

Source = Literal["measured", "interpolated", "extrapolated"]
# The fraction of a device's memory that a parallelism takes at a context in tokens and a concurrency of the
# whole pool; None where that is unknown.
MemoryModel = Callable[[Parallelism, float, float], float | None]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed and memory of one parallelism at one point.

    tokens_per_device_s: what it would do if it fitted; 0 where the profile knows no throughput at all.
    memory_fraction: of a device's memory; None where the profile has none.
    source: of the throughput. reason: in words, where it does not fit.
    """

    tokens_per_device_s: float
    memory_fraction: float | None
    fits: bool
    source: Source
    reason: str = ""


_Values = dict[tuple[float, float], float]


def _seconds(rows: Iterable[ProfileRow]) -> _Values:
    """Seconds of a device per token where they were measured: a sum of the terms of a roofline."""
    return {
        (row.context_tokens, row.concurrency): 1 / row.tokens_per_device_s
        for row in rows
        if row.tokens_per_device_s
    }


def _fractions(rows: Iterable[ProfileRow]) -> _Values:
    """Fractions of a device's memory, where they were measured."""
    return {
        (row.context_tokens, row.concurrency): row.peak_memory_fraction
        for row in rows
        if row.peak_memory_fraction
    }


class _Pool:
    """The change of a token's seconds with length and concurrency, fitted over all parallelisms."""

    def __init__(self, each: Iterable[_Values]) -> None:
        self._each = [values for values in each if values]
        self._roofline: Roofline | None = None

    @property
    def roofline(self) -> Roofline:
        """Fitted to every parallelism's values over their own mean."""
        if self._roofline is None:
            means = [math.exp(sum(map(math.log, seconds.values())) / len(seconds)) for seconds in self._each]
            pooled = {
                (index, *point): value / mean
                for index, (seconds, mean) in enumerate(zip(self._each, means, strict=True))
                for point, value in seconds.items()
            }
            points = [(context, sequences) for _, context, sequences in pooled]
            self._roofline = Roofline.of_time(points, list(pooled.values()))
        return self._roofline

    def with_pool(self, points: Sequence[tuple[float, float]], values: Sequence[float]) -> SurfaceShape:
        """The roofline of one parallelism; where its points have one length or one concurrency, what another
        would change comes from the pool."""
        roofline = Roofline.of_time(points, values)
        lengths, loads = ({*along} for along in zip(*points, strict=True))
        if len(lengths) > 1 and len(loads) > 1:
            return roofline
        length = min(lengths) if len(lengths) == 1 else None
        return _WithPool(roofline, self.roofline, length, min(loads) if len(loads) == 1 else None)


@dataclass(frozen=True, slots=True)
class _WithPool:
    """A roofline that knows one length or one concurrency alone, and the pool's, which knows the others."""

    roofline: Roofline
    pool: Roofline
    context_tokens: float | None
    concurrency: float | None

    def value_at(self, context_tokens: float, concurrency: float) -> float:
        known = self.context_tokens or context_tokens, self.concurrency or concurrency
        way = self.pool.value_at(context_tokens, concurrency) / self.pool.value_at(*known)
        return self.roofline.value_at(context_tokens, concurrency) * way


class _Sheet:
    """All rows of one parallelism."""

    def __init__(self, rows: Sequence[ProfileRow], pool: _Pool) -> None:
        self.parallelism = rows[0].parallelism
        seconds, fractions = _seconds(rows), _fractions(rows)
        self.seconds = Surface(list(seconds), list(seconds.values()), pool.with_pool) if seconds else None
        memory = Roofline.of_memory
        self.memory = Surface(list(fractions), list(fractions.values()), memory) if fractions else None
        self.bursts = _corners((row.context_tokens, row.concurrency) for row in rows if not row.fits)

    def predict(self, context: float, concurrency: float) -> Prediction:
        if self.seconds is None:
            rate, source = 0.0, "extrapolated"
        else:
            seconds, source = self.seconds.value_at(context, concurrency)
            rate = 1 / seconds
        fraction = self.memory.value_at(context, concurrency)[0] if self.memory is not None else None
        bursts = [point for point in self.bursts if context >= point[0] and concurrency >= point[1]]
        reason = ""
        if bursts:
            tokens, sequences = bursts[0]
            reason = f"out of memory at {tokens:g} tokens x {sequences:g} sequences, by the profile"
        elif fraction is not None and fraction > 1.0:
            reason = _too_much(fraction)
        elif not rate:
            reason = "the profile has no throughput of it"
        return Prediction(rate, fraction, not reason, source, reason)


class ProfileTable:
    """The rows of one stage. Raises ConfigError if there are none.

    points: (context in tokens, concurrency) that any row has, in order. extent: the longest context and the
    highest concurrency of any row. model: of the memory, for parallelisms whose rows have no fractions.
    bound: (context in tokens, concurrency) that no workload exceeds; infinite where nothing bounds it.
    """

    def __init__(
        self,
        rows: Iterable[ProfileRow],
        stage: str,
        model: MemoryModel | None = None,
        *,
        bound: tuple[float, float] = (math.inf, math.inf),
    ) -> None:
        self.stage = stage
        self.bound = bound
        self._model = model
        self.rows = [row for row in rows if row.stage == stage]
        if not self.rows:
            raise ConfigError(f"the profile has no rows of stage {stage!r}", "measure it: earl profile")
        by: dict[Parallelism, list[ProfileRow]] = {}
        for row in self.rows:
            by.setdefault(row.parallelism, []).append(row)
        self.points = sorted({(row.context_tokens, row.concurrency) for row in self.rows})
        self.extent = max(context for context, _ in self.points), max(load for _, load in self.points)
        pool = _Pool(map(_seconds, by.values()))
        self._sheets = {parallelism: _Sheet(rows, pool) for parallelism, rows in sorted(by.items())}
        self._measured = lru_cache(maxsize=1 << 16)(self._by_rows)

    @property
    def parallelisms(self) -> tuple[Parallelism, ...]:
        """The parallelisms that have rows."""
        return tuple(self._sheets)

    def candidates(self, devices: int) -> tuple[Parallelism, ...]:
        """Layouts of so many devices. Raises ConfigError if nothing can."""
        layouts = sorted({layout for known in self._sheets if (layout := known.over(devices)) is not None})
        if not layouts:
            raise ConfigError(
                f"no parallelism of the profile ({', '.join(map(str, self._sheets))}) divides "
                f"{devices} devices",
                "profile one that does, or give another number of devices",
            )
        return tuple(layouts)

    def predict(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts speed and memory at a context in tokens, with `concurrency` sequences in the whole pool.

        Raises ConfigError if the profile has no rows of it.
        """
        prediction = self._measured(layout, context_tokens, concurrency)
        if prediction.memory_fraction is not None or self._model is None:
            return prediction
        # Not kept: the model knows more as soon as workers have reported their devices.
        fraction = self._model(layout, context_tokens, concurrency)
        if fraction is None or fraction <= 1.0 or not prediction.fits:
            return replace(prediction, memory_fraction=fraction)
        return replace(prediction, memory_fraction=fraction, fits=False, reason=_too_much(fraction))

    def uncorrected(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts as `predict` does: here nothing is corrected."""
        return self.predict(layout, context_tokens, concurrency)

    def _by_rows(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        sheet = self._sheet(layout)
        share = concurrency * sheet.parallelism.dp / layout.dp
        return sheet.predict(max(1.0, context_tokens), max(1e-9, share))

    def _sheet(self, parallelism: Parallelism) -> _Sheet:
        sheet = self._sheets.get(parallelism)
        if sheet is not None:
            return sheet
        same = [known for known in self._sheets.values() if known.parallelism.replica == parallelism.replica]
        if not same:
            raise ConfigError(
                f"the profile has no rows of {parallelism}",
                f"it has {', '.join(map(str, self._sheets))}; measure more: earl profile",
            )
        return min(
            same, key=lambda known: (abs(math.log(known.parallelism.dp / parallelism.dp)), known.parallelism)
        )


def _too_much(fraction: float) -> str:
    return f"{fraction:.0%} of a device's memory predicted"


def _corners(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that no other lies below in both respects: the rest follows from them."""
    kept: list[tuple[float, float]] = []
    for tokens, sequences in sorted(set(points)):
        if not kept or sequences < kept[-1][1]:
            kept.append((tokens, sequences))
    return tuple(kept)
