"""A replay as a picture: lengths and load, layouts as bands, what was predicted and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from earl.errors import ConfigError
from earl.parallelism import Replica
from services.scheduler.selector.decision import Outlook
from services.scheduler.selector.replay import Taken
from services.scheduler.selector.trace import TraceStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")


def draw(
    path: Path,
    table: Outlook,
    steps: Sequence[TraceStep],
    taken: Sequence[Taken],
    oracle: Sequence[Replica],
    name: str,
) -> None:
    """Draws the replay into a PNG file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"{path} cannot be drawn: {error}", 'pip install "earl[plot]"') from error

    named = {layout.replica: layout for step in steps for layout in table.candidates(step.devices)}
    used = [*dict.fromkeys([*oracle, *(replayed.decision.after.replica for replayed in taken)])]
    # If there are many, only those that a policy used.
    replicas = sorted(named) if len(named) <= len(COLOURS) else sorted(used)
    colour = {replica: COLOURS[index % len(COLOURS)] for index, replica in enumerate(replicas)}
    numbers = [step.step for step in steps]
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, rates, bands = figure.subplots(3, 1, sharex=True, height_ratios=(4, 4, 1.2))

    for what, alpha in (("mean", 1), ("p95", 0.5), ("max", 0.3)):
        values = [getattr(step.workload, f"{what}_tokens") for step in steps]
        lengths.plot(numbers, values, color="black", alpha=alpha, label=what)
    lengths.set(yscale="log", ylabel="tokens", title=f"{name}: lengths, throughput, layouts")
    load = lengths.twinx()
    load.plot(numbers, [step.workload.concurrency for step in steps], color="black", ls=":", lw=1)
    load.set(ylabel="concurrency (dotted)", ylim=(0, None))
    lengths.legend(loc="upper left", frameon=False)

    drawn = {replica: (str(named[replica]), colour[replica]) for replica in replicas}
    _draw_rates(rates, table, steps, taken, drawn)
    chosen = [replayed.decision.after.replica for replayed in taken]
    _draw_bands(bands, numbers, {"oracle": oracle, name: chosen}, colour)
    for step, replayed in zip(steps, taken, strict=True):
        if replayed.decision.switched:
            for axes in (lengths, rates):
                axes.axvline(step.step, color=colour[replayed.decision.after.replica], lw=0.8, ls="--")
    figure.savefig(path, dpi=130)


def _draw_rates(
    rates: Axes,
    table: Outlook,
    steps: Sequence[TraceStep],
    taken: Sequence[Taken],
    layouts: Mapping[Replica, tuple[str, str]],
) -> None:
    """Draws each layout's predicted rate where it fits, and the rate of the chosen one.

    layouts: label and colour of each that is drawn.
    """
    for replica, (label, colour) in layouts.items():
        points = [(step.step, *_rate(table, step, replica)) for step in steps]
        whole = [(number, rate if fits else None) for number, rate, fits in points]
        rates.plot(*zip(*whole, strict=True), color=colour, lw=1, label=label)
    pairs = list(zip(steps, taken, strict=True))
    chosen = [_rate(table, step, replayed.decision.after.replica)[0] for step, replayed in pairs]
    rates.plot([step.step for step in steps], chosen, color="black", lw=2.5, alpha=0.6, label="chosen")
    failed = [(step.step, rate) for (step, replayed), rate in zip(pairs, chosen, strict=True) if replayed.oom]
    if failed:
        rates.scatter(*zip(*failed, strict=True), marker="x", color="red", zorder=3, label="out of memory")
    rates.set(ylabel="tokens / device / s\n(where it fits)", ylim=(0, None))
    rates.legend(loc="upper right", frameon=False, ncols=min(6, len(layouts) + 2))


def _draw_bands(
    bands: Axes, numbers: Sequence[int], rows: Mapping[str, Sequence[Replica]], colour: Mapping[Replica, str]
) -> None:
    """Draws a row for each policy: its layouts one after the other, over the numbers of the steps."""
    for row, path_taken in enumerate(rows.values()):
        begins = [
            index for index, replica in enumerate(path_taken) if not index or replica != path_taken[index - 1]
        ]
        for first, after in pairwise([*begins, len(numbers)]):
            end = numbers[after] if after < len(numbers) else numbers[-1] + 1
            begin, shade = numbers[first], colour[path_taken[first]]
            bands.barh(row, end - begin, left=begin, height=0.8, color=shade)
    bands.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel="step")


def _rate(table: Outlook, step: TraceStep, replica: Replica) -> tuple[float, bool]:
    """(tokens a second and device, whether it fits) of a step; (0, False) where its devices forbid it."""
    layout = next((layout for layout in table.candidates(step.devices) if layout.replica == replica), None)
    if layout is None:
        return 0.0, False
    load = step.workload
    rate = table.predict(layout, load.mean_tokens, load.concurrency).tokens_per_device_s
    return rate, table.predict(layout, load.max_tokens, load.concurrency).fits
