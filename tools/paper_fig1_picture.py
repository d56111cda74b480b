"""Draws Fig. 1 of the paper as EARL makes it: episodes that may grow, next to those that have a limit.

    episodes, over training steps:   turns   │   tokens, with the limit   │   share truncated
    tasks without a mistake, in training                                  │   score on held-out tasks

Thin lines are seeds, bold ones their means over WINDOW steps. Arms differ by colour and by dashes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tools.chart import LINE, MARGIN, WIDTH, Chart, ChartAxis, Plot, spread

Result = Mapping[str, Any]
# By the result's names of them (benchmarks/paper/fig1.py): name, style, dashes, and what the arm does.
ARMS = {
    "earl": ("EARL", "blue", "", "no limit, the layout changes"),
    "limit": ("limit", "orange", "7 3", "episodes end at {limit} tokens"),
    "penalty": ("penalty", "green", "2 3", "the same, and long ones cost reward"),
}
# Small plots by the curves' names: title, left and right end; then the large one.
SMALL = {
    "turns_mean": ("turns", 46, 154),
    "length_mean": ("tokens", 200, 308),
    "truncated": ("truncated", 356, 464),
}
SMALL_TOP, SMALL_BOTTOM, TOP, BOTTOM = 190.0, 280.0, 358.0, 498.0
WINDOW = 5


def fig1(result: Result) -> Chart:
    """Turns, tokens, truncation and success over training steps, and scores, of every arm and seed."""
    runs, limit = result["runs"], result["limit_tokens"]
    chart = Chart(
        round(BOTTOM) + 54,
        "Contexts with and without a limit",
        "Three arms over training steps: turns and tokens of an episode, the share that is truncated, and "
        "the share of tasks that are played to their end, with the score on held-out tasks after training.",
    )
    for number, (name, style, dash, text) in enumerate(ARMS.values()):
        y = 54.0 + number * LINE
        chart.path([(MARGIN, y - 5), (MARGIN + 34.0, y - 5)], style, "", bold=True, dash=dash)
        chart.words(MARGIN + 44, y, f"{name}: {text.format(limit=limit)}", style)
    note = f"thin: each seed; bold: their mean over {WINDOW} steps"
    chart.words(MARGIN, 54 + LINE * len(ARMS), note, "faint")
    steps = max([2, *(len(run["curves"]["success"]) for run in runs)])
    chart.words(MARGIN, SMALL_TOP - 40, "Episodes", bold=True)
    for key, (title, left, right) in SMALL.items():
        least = {"length_mean": limit, "truncated": 1.0}.get(key, 1.0)
        most = max([least, *(value for run in runs for value in run["curves"][key])])
        plot = Plot(chart, ChartAxis(1, steps, left, right), ChartAxis(0, most, SMALL_BOTTOM, SMALL_TOP))
        plot.grid([(tick, f"{tick:g}") for tick in plot.y.ticks(2)])
        chart.words(left, SMALL_TOP - 14, title)
        if key == "length_mean":
            chart.rule(left, plot.y.position(limit), right, plot.y.position(limit), "orange", "2 2")
        draw_curves(plot, runs, key)
        plot.ticks([(step, str(step)) for step in (1, steps)])
    chart.words(MARGIN, TOP - 16, "Share of tasks without a mistake", bold=True)
    plot = Plot(chart, ChartAxis(1, steps, 46, 310), ChartAxis(0, 1, BOTTOM, TOP))
    plot.grid([(0, "0"), (0.5, "0.5"), (1, "1")])
    draw_curves(plot, runs, "success")
    plot.ticks([(step, str(step)) for step in (1, steps // 2, steps) if steps > 3 or step != steps // 2])
    chart.words((plot.x.start + plot.x.end) / 2, BOTTOM + 20 + LINE, "training step", "faint", "middle")
    draw_scores(plot, runs)
    return chart


def draw_curves(plot: Plot, runs: Sequence[Result], key: str) -> None:
    """A thin line for each run, and a bold one for the mean of an arm's runs, as far as the longest got."""
    for arm, (name, style, dash, _) in ARMS.items():
        values = {run["seed"]: run["curves"][key] for run in runs if run["arm"] == arm}
        for seed, curve in values.items():
            if curve:
                plot.line(enumerate(curve, 1), style, f"{name}, seed {seed}: {key}", bold=False)
        means = [
            statistics.fmean(value for value in step if value is not None)
            for step in zip_longest(*values.values())
        ]
        means = [statistics.fmean(means[max(0, end - WINDOW) : end]) for end in range(1, len(means) + 1)]
        if means:
            plot.line(enumerate(means, 1), style, f"{name}, mean: {key}", dash=dash)


def draw_scores(plot: Plot, runs: Sequence[Result]) -> None:
    """The score of every run on held-out tasks, right of the curves, with its range for each arm."""
    x, chart = plot.x.end + 24, plot.chart
    chart.words(WIDTH - MARGIN, plot.y.end - 16, "held-out score", anchor="end")
    scores: dict[str, dict[int, float]] = {}
    for run in runs:
        scores.setdefault(run["arm"], {})[run["seed"]] = run["score"]
    middles = [plot.y.position(statistics.fmean(each.values())) for each in scores.values()]
    places = spread(middles, 2 * LINE + 4, plot.y.end + 8, plot.y.start - LINE + 4)
    for (arm, each), place in zip(scores.items(), places, strict=True):
        name, style, _, _ = ARMS[arm]
        for seed, score in each.items():
            title = f"{name}, seed {seed}: score {score:.2f}"
            chart.dot(x, plot.y.position(score), style, title, hollow=True)
        texts = dict.fromkeys(f"{score:.2f}" for score in (min(each.values()), max(each.values())))
        chart.words(x + 16, place, name, style, bold=True)
        chart.words(x + 16, place + LINE - 2, "–".join(texts), style)
