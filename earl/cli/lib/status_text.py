"""A run's status in words and figures: the same in every view of a run. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from earl.cli.lib.ticket_words import ROLES, TICKETS
from earl.stack.status import LedgerStatus, ProcessState, RoleState, RunStatus, Transfers

PHASES = {
    "warmup": "warm-up: imitate random legal play",
    "evaluate:start": "evaluate before training",
    "train": "reinforcement learning",
    "evaluate:final": "evaluate after training",
    "done": "done",
}
SPARKS = "▁▂▃▄▅▆▇█"
# Metrics of a batch: name, label, format of a value.
LEARNING = (
    ("reward_mean", "reward", "{:+.3f}"),
    ("win_rate", "win rate", "{:.1%}"),
    ("illegal_rate", "illegal moves", "{:.1%}"),
    ("loss", "loss", "{:+.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("clip_fraction", "clipped", "{:.1%}"),
    ("grad_norm", "gradient norm", "{:.3f}"),
    ("logprob_mismatch", "mismatch", "{:.2g} nats"),
    ("staleness_mean", "staleness", "{:.2f} versions"),
    ("staleness_max", "stalest", "{:.0f} versions"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
)


def paced_line(status: RunStatus) -> str:
    """That the run's times are simulated, and how many steps took longer than they should; "" where devices
    are real."""
    steps, late = (status.metrics.get(name, 0.0) for name in ("paced_steps", "late_steps"))
    if not status.paced or not steps:
        return status.paced
    return f"{status.paced}; {late / steps:.1%} of {steps:,.0f} steps over pace"


def drafts_line(status: RunStatus) -> str:
    """The worth of the run's drafts so far: the part of their tokens that was accepted, and the tokens that a
    sequence gets of a step, which is 1 without drafts. "" where engines do not draft."""
    names = ("drafted_tokens", "accepted_tokens", "drafting_steps", "drafting_tokens")
    drafted, accepted, steps, tokens = (status.metrics.get(name, 0.0) for name in names)
    if not steps:
        return ""
    share = f"{accepted / drafted:.1%} of {drafted:,.0f} tokens accepted" if drafted else "none so far"
    return f"drafts: {share}, {tokens / steps:.2f} tokens a step"


def progress_of(status: RunStatus) -> tuple[int, int]:
    """(done, total) of the phase."""
    if status.phase.startswith("evaluate:"):
        current = status.evaluation(status.phase.removeprefix("evaluate:"))
        if current:
            return current.done, current.episodes
    return status.step, status.steps


def time_left(status: RunStatus) -> str:
    """About how long the phase will still take, ", about 3:10 left"; "" while nobody knows."""
    left_s = status.metrics.get("phase_left_s")
    return f", about {clock(left_s)} left" if left_s is not None else ""


def start_text(process: ProcessState) -> str:
    """Seconds that a process has been starting, and those that it will still take as far as they are known.

    "4 s, about 23 s left" by the last start with the same model; "4 s of at most 60 s" without one.
    """
    seconds = f"{process.seconds:.0f} s"
    if process.state != "starting":
        return seconds
    if process.usual_s > process.seconds:
        return f"{seconds}, about {math.ceil(process.usual_s - process.seconds)} s left"
    most = f"{seconds} of at most {process.most_s:.0f} s" if process.most_s else seconds
    return f"{most}, the last start took {process.usual_s:.0f} s" if process.usual_s else most


def shutdown_text(status: RunStatus) -> str:
    """The reason why a run ends, while its workers save and exit; "" before its scheduler has ended it."""
    return f"{status.message or 'the run has ended'}: the workers save and exit" if status.done else ""


def learning_figures(status: RunStatus) -> Iterator[tuple[str, str, str]]:
    """(metric, label, value) of the last batch's figures; rewards are scores where nothing is won or lost."""
    for name, label, form in LEARNING:
        if name not in status.metrics or (name == "win_rate" and not status.has_winners):
            continue
        is_score = name == "reward_mean" and not status.has_winners
        yield name, "score" if is_score else label, form.format(status.metrics[name])


def ticket_figures(ledger: LedgerStatus) -> list[tuple[str, str, str]]:
    """(word, number, colour) of each state of a ticket, then of all that were issued, which is their sum."""
    figures = []
    for state in TICKETS:
        count = ledger.dropped_total if state.name == "dropped" else getattr(ledger, state.name)
        if state.name == "replayed" and not count:  # as in every run without replay
            continue
        figures.append((state.word, f"{count:,}", state.style))
    return [*figures, ("issued", f"{ledger.issued:,}", "")]


def role_figures(role: RoleState) -> list[tuple[str, int, str]]:
    """(label, number of trajectories, colour) of each state of a role."""
    return [(word, getattr(role, name), colour) for name, word, colour in ROLES]


def transfer(path: str, moved: Transfers) -> str:
    """A path's transfers as text, for example "shm 1.2 GiB at 3.4 GB/s"; repeated requests are counted."""
    retries = f", {moved.retries} retries" if moved.retries else ""
    return f"{path} {size(moved.size_bytes)} at {moved.gb_per_s:.2f} GB/s{retries}"


def sparkline(values: Sequence[float]) -> str:
    """The last values as small blocks, lowest to highest."""
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if not values or high <= low:
        return ""
    return "".join(SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))] for value in values)


def clock(seconds: float) -> str:
    """A duration as minutes:seconds, from an hour on as hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def size(count_bytes: float) -> str:
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    for unit in ("KiB", "MiB"):
        count_bytes /= 1024
        if count_bytes < 1024:
            return f"{count_bytes:.1f} {unit}"
    return f"{count_bytes / 1024:.1f} GiB"
