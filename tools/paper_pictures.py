"""Draws the paper's figures from saved results: `python tools/paper_pictures.py RESULT.json OUT.svg`.

    a result of `earl bench paper` ─► the function of its benchmark in PICTURES ─► Chart ─► SVG

The functions are pure: a result gives the same bytes at any time. Heading and description say what is drawn,
not how it came out, so they are true of every result. tools/figures.py draws the documentation's pictures,
from the newest results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.chart import (  # noqa: E402  found from wherever this is run
    LINE,
    MARGIN,
    WIDTH,
    Chart,
    ChartAxis,
    Plot,
    bytes_text,
    spread,
    tokens_text,
)
from tools.paper_fig1_picture import fig1  # noqa: E402

Result = Mapping[str, Any]
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = "context, tokens (K = 1,024)"
# Lines of labels that stand close.
GAP = 18.0


def draw(result: Result) -> Chart:
    """The picture of a result. Raises KeyError: its benchmark has none."""
    return PICTURES[result["benchmark"]](result)


# --- Table 1 --------------------------------------------------------------------------------


def table1(result: Result) -> Chart:
    """Bytes of a batch by context and workers, next to exactly linear growth and to the paper's estimate."""
    rows, contexts = result["rows"], result["contexts"]
    chart = Chart(
        490,
        "Bytes of a batch, by context",
        "Bytes of one batch by context length and number of workers, on logarithmic axes, next to lines of "
        "exactly linear growth and to the paper's estimate.",
    )
    each = result["settings"]["sequences"]
    chart.notes(
        f"{each} sequences on each worker.",
        "The lines are exactly linear.",
    )
    lengths = sorted({row["context_tokens"] for row in rows})
    estimates = [(row["context_tokens"], row["paper_gib"] * GIB) for row in contexts]
    plot = Plot(
        chart,
        ChartAxis(lengths[0], lengths[-1], 80, 292, log=True),
        ChartAxis(min(row["arena_bytes"] for row in rows) / 2, estimates[-1][1] * 2, 430, 90, log=True),
    )
    plot.grid([(size, bytes_text(size)) for size in (MIB, 32 * MIB, GIB, 32 * GIB)])
    labels: list[tuple[float, str]] = []
    plot.ticks([(tokens, tokens_text(tokens)) for tokens in lengths], CONTEXT)
    for workers in sorted({row["workers"] for row in rows}):
        batches = [row for row in rows if row["workers"] == workers]
        name = f"{workers} worker{'s' * (workers > 1)}"
        linear = [(row["context_tokens"], row["tokens"] * result["token_bytes"]) for row in batches]
        plot.line(linear, "blue", f"{name}: exactly linear", bold=False)
        sizes = [(row["context_tokens"], row["arena_bytes"]) for row in batches]
        _, y = batch_points(plot, sizes, "blue", name)
        labels.append((y + 5, f"{name}, {bytes_text(sizes[-1][1])}"))
    label_x = plot.x.end + 10
    for (_, text), y in zip(
        labels, spread([y for y, _ in labels], GAP, plot.y.end, plot.y.start), strict=True
    ):
        chart.words(label_x, y, text, "blue")
    plot.line(estimates, "orange", "the paper's estimate", bold=False)
    _, y = batch_points(plot, estimates, "orange", "paper", hollow=True)
    chart.lines(
        label_x, y + 5, (f"paper, {bytes_text(estimates[-1][1])}:", "an estimate", "for 1,000 GPUs"), "orange"
    )
    return chart


def batch_points(
    plot: Plot, sizes: list[tuple[float, float]], style: str, name: str, hollow: bool = False
) -> tuple[float, float]:
    """Draws a dot for each (tokens, bytes); the position of the last."""
    for tokens, size in sizes:
        plot.dot(tokens, size, style, f"{name}, {tokens_text(tokens)}: {bytes_text(size)}", hollow)
    return plot.point(*sizes[-1])


# --- Fig. 3 ---------------------------------------------------------------------------------


def fig3(result: Result) -> Chart:
    """A cell for each context and number of responses: TP8 over TP4 in percent."""
    cells = result["cells"]
    contexts = sorted({cell["context_tokens"] for cell in cells})
    responses = sorted({cell["responses"] for cell in cells}, reverse=True)
    left, top, height = 60.0, 140.0, 46.0
    width = (WIDTH - MARGIN - left) / len(contexts)
    bottom = top + height * len(responses)
    chart = Chart(
        round(bottom + 78),
        "TP8 against TP4: which is faster",
        "For each context length and number of responses at once, by how many percent TP8 is faster or "
        "slower than TP4, and where TP4 is out of memory.",
    )
    chart.notes(
        "Tokens per device and second, TP8 over TP4, %.",
        "The paper's ratios; not measured here.",
    )
    chart.words(MARGIN, 105, "− TP4 is faster", "orange", bold=True)
    chart.words(WIDTH - MARGIN, 105, "+ TP8 is faster", "blue", "end", bold=True)
    chart.words(MARGIN, top - 8, "responses at once", "faint")
    most = max(abs(cell["percent"]) for cell in cells if cell["percent"] is not None)
    for cell in cells:
        x = left + contexts.index(cell["context_tokens"]) * width
        y = top + responses.index(cell["responses"]) * height
        ratio_cell(chart, cell, (x, y, width, height), most)
    for number, count in enumerate(responses):
        chart.words(left - 10, top + (number + 0.5) * height + 5, str(count), "faint", "end")
    for number, tokens in enumerate(contexts):
        chart.words(left + (number + 0.5) * width, bottom + 20, tokens_text(tokens), "faint", "middle")
    chart.words((left + WIDTH - MARGIN) / 2, bottom + 20 + LINE, CONTEXT, "faint", "middle")
    if any(cell["percent"] is None for cell in cells):
        chart.words(WIDTH - MARGIN, bottom + 20 + 2 * LINE, "OOM: TP4 is out of memory", "ink", "end")
    return chart


def ratio_cell(chart: Chart, cell: Result, box: tuple[float, float, float, float], most: float) -> None:
    """One cell; the more a layout is ahead, the stronger its colour. most: the largest percentage of all."""
    x, y, width, height = box
    percent, paper = percent_text(cell["percent"]), percent_text(cell["paper_percent"])
    style, share = "faint", 0.4
    if cell["percent"] is not None:
        style, share = ("orange" if cell["percent"] < 0 else "blue"), abs(cell["percent"]) / most
    name = f"{tokens_text(cell['context_tokens'])}, {cell['responses']} responses: {percent}"
    chart.rectangle(x + 1, y + 1, width - 2, height - 2, style, name, 0.08 + 0.42 * share)
    middle = x + width / 2
    if cell["as_in_paper"]:
        chart.words(middle, y + height / 2 + 5, percent, "ink", "middle", bold=cell["percent"] is None)
    else:
        chart.words(middle, y + 20, percent, "ink", "middle", bold=True)
        chart.words(middle, y + 39, f"({paper})", "ink", "middle")


def percent_text(percent: float | None) -> str:
    """-21.1 as "−21.1", 5 as "+5.0"; without a value TP4 is out of memory."""
    return "OOM" if percent is None else f"{percent:+.1f}".replace("-", "−")


# --- memory at 70B sizes --------------------------------------------------------------------


# An engine's tp: its style, its dashes, and how far below a point its label stands.
TP_STYLES = {8: ("blue", "", -10), 4: ("orange", "7 3", 21), 2: ("green", "2 3", 21)}


def memory70b(result: Result) -> Chart:
    """The longest contexts by layout: of rollout over the number of responses, of trainers as bars."""
    rollout, trainer = result["rollout"], result["trainer"]
    gib = result["settings"]["device_gib"]
    chart = Chart(
        456 + 42 * len(trainer),
        "Longest contexts of a 72B model",
        "The longest context that each layout holds, as the memory model predicts it: of engines on 8 "
        "devices by the number of responses at once, and of trainers on 128 devices.",
    )
    chart.notes(
        f"Qwen2.5-72B on devices of {gib} GiB, as the memory",
        "model predicts it; nothing is allocated.",
    )
    counts = sorted({row["responses"] for row in rollout})
    tokens = [row["longest_tokens"] for row in rollout if row["longest_tokens"]]
    plot = Plot(
        chart,
        ChartAxis(counts[0] / 1.6, counts[-1], 60, 396, log=True),
        ChartAxis(min(tokens) / 1.9, max(tokens), 336, 136, log=True),
    )
    chart.words(MARGIN, 106, "Rollout on 8 devices: longest context, tokens", bold=True)
    ticks = [1024 * 2**power for power in range(2, 8, 2) if plot.y.low <= 1024 * 2**power <= plot.y.high]
    plot.grid([(tick, tokens_text(tick)) for tick in ticks])
    plot.ticks([(count, str(count)) for count in counts], "responses at once")
    held = {tp: [row for row in rollout if row["tp"] == tp and row["longest_tokens"]] for tp in TP_STYLES}
    lines = [(tp, *TP_STYLES[tp], rows) for tp, rows in held.items() if rows]
    for tp, style, dash, below, rows in lines:
        points = [(row["responses"], row["longest_tokens"]) for row in rows]
        plot.line(points, style, f"TP{tp}", dash=dash)
        for responses, longest in points:
            text = tokens_text(longest)
            plot.dot(responses, longest, style, f"TP{tp}, {responses} responses: {text}")
            x, y = plot.point(responses, longest)
            chart.words(x, y + below, text, style, "middle")
    ends = [plot.y.position(rows[-1]["longest_tokens"]) + 5 for *_, rows in lines]
    for (tp, style, *_), y in zip(lines, spread(ends, GAP, plot.y.end, plot.y.start), strict=True):
        chart.words(plot.x.end + 30, y, f"TP{tp}", style, bold=True)
    trainer_bars(chart, trainer, 418)
    return chart


def trainer_bars(chart: Chart, rows: list[Result], top: float) -> None:
    """A bar for each trainer's layout: its longest context, and the share of a device at 32K tokens."""
    chart.words(MARGIN, top, "Trainer on 128 devices: longest context", bold=True)
    chart.words(WIDTH - MARGIN, top + LINE, "share of a device at 32K", "faint", "end")
    bars = ChartAxis(0, max(row["longest_tokens"] for row in rows), MARGIN, 330)
    for number, row in enumerate(rows):
        y = top + 44 + number * 42
        layout = "·".join(f"{name}{row[name]}" for name in ("dp", "tp", "cp") if row[name] > 1)
        text, end = tokens_text(row["longest_tokens"]), bars.position(row["longest_tokens"])
        chart.words(MARGIN, y, layout)
        chart.rectangle(MARGIN, y + 6, end - MARGIN, 9, "blue", f"{layout}: {text}")
        chart.words(end + 8, y + 16, text, "blue", bold=True)
        share = f"{row['fraction_at_32768']:.0%}".replace("%", " %")
        chart.words(WIDTH - MARGIN, y + 16, share, "faint", "end")


# --- Fig. 4 ---------------------------------------------------------------------------------

WAYS = {"direct": ("directly", "blue"), "central": ("controller", "orange")}
GOAL_OF_LIMIT = 0.9


def fig4(result: Result) -> Chart:
    """Seconds of a dispatch by size, directly and through a controller; direct reads at growing rates."""
    sizes, rates = result["sizes"], result["rates"]
    settings = result["settings"]
    row, top = 98.0, 90.0
    bottom = top + row * len(sizes)
    chart = Chart(
        round(bottom + 54 + (210 if rates else 0)),
        "Dispatch, directly and through one host",
        "Seconds until all workers have their slices, by size: read directly from the other workers, and "
        "sent through one controller; and the share of the links' limit that direct reads reach.",
    )
    chart.notes(
        f"{settings['hosts']} hosts, links of {settings['gbps']:g} Gbit/s. Short bars: the least",
        "that such links allow. Small rings: each round.",
    )
    seconds = [size[f"{way}_{kind}"] for size in sizes for way in WAYS for kind in ("s", "limit_s")]
    axis = ChartAxis(min(seconds) / 1.3, max(seconds) * 1.3, 40, WIDTH - 40, log=True)
    for number, size in enumerate(sizes):
        dispatch_row(chart, axis, size, top + number * row)
    plot = Plot(chart, axis, ChartAxis(0, 1, bottom, bottom - 1))
    plot.ticks([(tick, f"{tick:g}") for tick in decades(axis)], "seconds, logarithmic")
    if rates:
        rate_plot(chart, rates, bottom + 112)
    return chart


def decades(axis: ChartAxis) -> list[float]:
    """1, 3, 10, 30 and so on within a logarithmic axis."""
    values = [each * 10.0**power for power in range(-4, 6) for each in (1, 3)]
    return [value for value in values if axis.low <= value <= axis.high]


def dispatch_row(chart: Chart, axis: ChartAxis, size: Result, top: float) -> None:
    """Both ways at one size, with each round, the links' limits and the speedup."""
    y = top + 60
    chart.words(MARGIN, top + 22, f"{size['mib']:.0f} MiB a worker", bold=True)
    paper = f", in the paper {size['paper_speedup']:.1f}" if size["paper_speedup"] is not None else ""
    chart.words(WIDTH - MARGIN, top + 22, f"{size['speedup']:.1f} times as fast{paper}", "ink", "end")
    begin, end = (axis.position(size[f"{way}_s"]) for way in WAYS)
    chart.rule(begin, y, end, y, "faint")
    for way, (name, style) in WAYS.items():
        median = size[f"{way}_s"]
        x, limit = axis.position(median), axis.position(size[f"{way}_limit_s"])
        chart.rule(limit, y - 8, limit, y + 8, style)
        for number, measured in enumerate(size[f"{way}_rounds_s"], 1):
            title = f"{size['mib']:.0f} MiB, {name}, round {number}: {seconds_text(measured)}"
            chart.dot(axis.position(measured), y, style, title, hollow=True)
        chart.dot(x, y, style, f"{size['mib']:.0f} MiB, {name}: {seconds_text(median)}")
        text = f"{name} {seconds_text(median)}"
        direct = way == "direct"
        chart.words(x, y - 13 if direct else y + 24, text, style, "start" if direct else "end")


def rate_plot(chart: Chart, rates: list[Result], top: float) -> None:
    """The share of the links' limit that direct reads reach, by the links' rate."""
    chart.words(MARGIN, top - 20, "Direct reads, share of the links' limit", bold=True)
    gbps = [rate["gbps"] for rate in rates]
    plot = Plot(
        chart,
        ChartAxis(gbps[0] / 1.6, gbps[-1] * 1.2, 68, WIDTH - 62, log=True),
        ChartAxis(0, 1, top + 100, top),
    )
    plot.grid([(0, "0 %"), (0.5, "50 %"), (1, "100 %")])
    goal = plot.y.position(GOAL_OF_LIMIT)
    chart.rule(plot.x.start, goal, plot.x.end, goal, "faint", "4 4")
    chart.words(plot.x.end + 8, goal + 5, "goal", "faint")
    plot.ticks([(rate, f"{rate:g}") for rate in gbps], "Gbit/s of each link")
    values = [(rate["gbps"], rate["direct_of_limit"]) for rate in rates]
    plot.line(values, "blue", "direct reads")
    for rate, share in values:
        text = f"{share:.0%}".replace("%", " %")
        plot.dot(rate, share, "blue", f"{rate:g} Gbit/s: {text}")
        x, y = plot.point(rate, share)
        chart.words(x, y + 24, text, "blue", "middle")


def seconds_text(seconds: float) -> str:
    return f"{seconds:.3g} s"


PICTURES: Mapping[str, Callable[[Result], Chart]] = {
    "paper-table1": table1,
    "paper-fig1": fig1,
    "paper-fig3": fig3,
    "paper-fig4": fig4,
    "paper-memory70b": memory70b,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="A saved result of earl bench paper.")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    if result.get("benchmark") not in PICTURES:
        raise SystemExit(f"{arguments.result} is none of {', '.join(PICTURES)}")
    arguments.out.write_text(draw(result).svg(), encoding="utf-8")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
