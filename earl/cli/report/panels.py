"""The report's charts: what was measured, each with a note; what was not is said in place of a chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from earl.cli.lib.decisions import changes
from earl.cli.lib.switches import record_of
from earl.cli.report.charts import Series, line_chart, smooth
from earl.cli.report.data import Record, RunRecord
from earl.cli.report.heatmap import columns, heat_map
from earl.cli.report.layouts import layouts_chart

TRAIN = "train"
SMOOTHING_STEPS = 8
STEP = "training step"


def card(title: str, body: str, *, wide: bool = False, note: str = "") -> str:
    text = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}</h2>{text}{body}</section>'


@dataclass(frozen=True, slots=True)
class Absent:
    """A chart that has nothing to show, and why."""

    title: str
    why: str


def panels(run: RunRecord) -> tuple[str, str]:
    """(the cards of what was measured, one card that says what was not; empty if nothing is missing)."""
    cards_or_absent = list(charts(run))
    missing = [absent for absent in cards_or_absent if isinstance(absent, Absent)]
    items = "".join(f"<li><b>{escape(absent.title)}</b>: {escape(absent.why)}</li>" for absent in missing)
    cards = "".join(shown_card for shown_card in cards_or_absent if isinstance(shown_card, str))
    return cards, card("Not measured", f"<ul>{items}</ul>", wide=True) if missing else ""


def charts(run: RunRecord) -> Iterable[str | Absent]:
    """Cards in order of what a reader asks first, and what takes the place of those that there are not."""
    yield win_rate(run)
    yield reward(run)
    yield gain(run)
    yield lengths(run)
    yield from parallelism(run)
    yield from switched(run)
    yield staleness(run)
    yield mismatch(run)
    truncated = run.points("truncated_fraction", phase=TRAIN)
    if truncated:
        yield card(
            "Truncated importance weights",
            line_chart([Series("fraction of tokens", truncated, 3)], x_label=STEP, percent=True, zero=True),
            note="Tokens whose weight, trainer over engine, was cut at trainer.importance_cap.",
        )
    yield reference(run)
    if done := run.points("stages.reference.done", phase=TRAIN):
        waiting = run.points("stages.reference.waiting", phase=TRAIN)
        yield card(
            "Reference log-probs",
            line_chart([Series("waiting", waiting, 3), Series("done", done, 0)], x_label=STEP, zero=True),
            note="Trajectories left for later batches, after each step. Where many wait, so do batches.",
        )
    yield card(
        "Throughput",
        line_chart(
            [Series("tokens/s", smooth(run.points("tokens_per_s", over="time_s"), 3), 4)], x_label="seconds"
        ),
        note="Tokens of finished episodes per second, over the whole run.",
    )
    for title, key, colour in (
        ("Entropy", "entropy", 5),
        ("Gradient norm", "grad_norm", 3),
        ("Clipped ratios", "clip_fraction", 6),
        ("Loss", "loss", 1),
    ):
        points = run.points(key, phase=TRAIN)
        if points:
            yield card(title, line_chart([Series(key, points, colour)], x_label=STEP))


def win_rate(run: RunRecord) -> str:
    wins = run.points("win_rate", phase=TRAIN)
    return card(
        "Win rate",
        line_chart(
            [
                Series("training episodes", wins, 0, faint=True),
                Series(f"mean of {SMOOTHING_STEPS} steps", smooth(wins, SMOOTHING_STEPS), 0),
                evaluated(run, "evaluation", "win_rate"),
            ],
            x_label=STEP,
            percent=True,
            y_range=(0.0, 1.0),
        ),
        note="Training episodes are sampled as they are learned from; evaluations use seeds never trained "
        "on, the same each time. " + intervals(run, "win_rate", "Wilson's score interval"),
    )


def reward(run: RunRecord) -> str:
    rewards = run.points("reward_mean", phase=TRAIN)
    return card(
        "Reward",
        line_chart(
            [
                Series("mean of the batch", rewards, 1, faint=True),
                Series(f"mean of {SMOOTHING_STEPS} steps", smooth(rewards, SMOOTHING_STEPS), 1),
                evaluated(run, "evaluation", "mean_reward"),
            ],
            x_label=STEP,
        ),
        note=intervals(run, "mean_reward", "Student's t interval"),
    )


def gain(run: RunRecord) -> str | Absent:
    title = "Gain over the first evaluation"
    series = evaluated(run, "gain", "gain")
    if not series.points:
        reason = "one evaluation alone: there is no other to compare it with."
        if not run.evaluations:
            reason = "no evaluation has been finished."
        elif len(run.evaluations) > 1:
            reason = "this run did not record its evaluations task by task, so they cannot be paired."
        return Absent(title, reason)
    pairs = [
        evaluation["gain_episodes"]
        for evaluation in run.evaluations
        if isinstance(evaluation.get("gain_episodes"), int)
    ]
    tasks = f"{min(pairs)}" if min(pairs) == max(pairs) else f"{min(pairs)} to {max(pairs)}"
    return card(
        title,
        line_chart([series], x_label=STEP, reach=[(step_of(run, run.evaluations[0]), 0.0)]),
        note=f"Mean difference of rewards on the same {tasks} tasks, with the 95 % t interval of the paired "
        "differences. Above 0 it is an improvement that chance would rarely show.",
    )


def lengths(run: RunRecord) -> str:
    title = "Episode length"
    binned, per_octave = columns([record for record in run.metrics if record.get("phase") == TRAIN])
    if binned:
        body = heat_map(binned, per_octave, x_label=STEP)
        return card(title, body, note="Tokens of the whole episodes that each step trained on.")
    # A run of before the histogram: quantiles of what was played of late.
    names = (("95th percentile", "p95", 3), ("mean", "mean", 0), ("median", "p50", 2))
    series = [
        Series(text, run.points(f"episode_tokens.{key}", phase=TRAIN), colour) for text, key, colour in names
    ]
    return card(
        title, line_chart(series, x_label=STEP), note="Tokens of whole episodes that were played of late."
    )


def parallelism(run: RunRecord) -> Iterable[str | Absent]:
    """What the selector decided, a card a stage."""
    if not run.decisions:
        reason = "there was no profile to decide by; `earl profile` measures one."
        if run.config.scheduler.selector == "static":
            reason = 'nothing was decided (scheduler.selector = "static").'
        yield Absent("Parallelism", reason)
    for stage, lines in run.decisions.items():
        changed = len(changes(lines))
        yield card(
            f"Parallelism of {stage}",
            layouts_chart(lines, x_label=STEP),
            note=f"Tokens of what each step worked on. Tint: what the selector chose for the step; strip: "
            f"what it ran with. The verdict changed {changed} time{'s' * (changed != 1)}; "
            "earl explain tells why at every step.",
        )


def switched(run: RunRecord) -> Iterable[str]:
    """What was switched, whoever asked for it; nothing for a run without switches."""
    if run.switches:
        note = (
            "Stall: the longest time in which a worker of the stage made nothing. The timeline below has a "
            "row of them, each stall at the end of its switch."
        )
        yield card("Switches of parallelism", switch_table(run.switches), wide=True, note=note)


def switch_table(switches: Iterable[Record]) -> str:
    heads = ("second", "stage", "switch", "asked for by", "stall", "seconds", "moved", "why")
    rows = []
    for line in switches:
        switch = record_of(line)
        if switch is None:
            continue
        reason = f"rolled back: {switch.message}" if switch.rolled_back else switch.reason
        rows.append(
            (
                f"{line['time_s']:.1f}", switch.stage, f"{switch.before} → {switch.after}", switch.by,
                f"{switch.stall_s:.2f} s", f"{switch.seconds:.2f} s",
                f"{switch.moved_bytes / (1 << 20):,.1f} MiB", reason,
            )
        )  # fmt: skip
    return table(heads, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def staleness(run: RunRecord) -> str:
    return card(
        "Staleness",
        line_chart(
            [
                Series("most", run.points("staleness_max", phase=TRAIN), 6, faint=True),
                Series("mean", run.points("staleness_mean", phase=TRAIN), 6),
            ],
            x_label=STEP,
            zero=True,
        ),
        note="Versions between a trajectory's oldest token and the one trained; at most "
        f"scheduler.staleness = {run.config.scheduler.staleness}.",
    )


def mismatch(run: RunRecord) -> str:
    return card(
        "Mismatch of trainer and engine",
        line_chart(
            [
                Series("mean |difference| of log-probs", run.points("logprob_mismatch", phase=TRAIN), 3),
                Series("KL from what sampled", run.points("kl_behaviour", phase=TRAIN), 0),
            ],
            x_label=STEP,
            zero=True,
        ),
        note="What the engine recorded against what the trainer computes for the same tokens, in nats. With "
        "staleness it holds the change of the weights too.",
    )


def reference(run: RunRecord) -> str | Absent:
    title = "KL to the reference"
    if run.config.trainer.kl_coefficient <= 0:
        return Absent(title, "this run has no reference policy (trainer.kl_coefficient = 0).")
    return card(
        title,
        line_chart([Series("KL", run.points("kl_reference", phase=TRAIN), 7)], x_label=STEP, zero=True),
        note="To the policy that reinforcement learning started from, in nats a token (k3 estimate).",
    )


# --- evaluations ----------------------------------------------------------------------------


def step_of(run: RunRecord, evaluation: Record) -> int:
    """Training steps in the parameters that were evaluated: every step makes one version."""
    return max(0, int(evaluation.get("version", 1)) - 1 - run.config.warmup.batches)


def evaluated(run: RunRecord, name: str, key: str) -> Series:
    """A figure of every evaluation that has it, with its interval where that was recorded."""
    points, bars = [], []
    for evaluation in run.evaluations:
        value, low, high = (evaluation.get(f"{key}{end}") for end in ("", "_low", "_high"))
        if not isinstance(value, (int, float)):
            continue
        points.append((float(step_of(run, evaluation)), float(value)))
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            bars.append((float(step_of(run, evaluation)), float(low), float(high)))
    return Series(name, points, 2, dots=True, bars=bars)


def intervals(run: RunRecord, key: str, kind: str) -> str:
    """What the bars are; that there are none, if an evaluation has not recorded them."""
    if not run.evaluations:
        return "No evaluation has been finished."
    if not evaluated(run, "", key).bars:
        return "Intervals of the evaluations were not recorded."
    return f"Bars: 95 %, {kind}."
