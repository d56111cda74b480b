"""What the person sees on a terminal while a run goes on: a live screen of the last snapshot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from earl.cli.lib.figures import interval
from earl.cli.lib.switches import parallelism_text, switch_text
from earl.stack.status import (
    EvaluationStatus,
    LedgerStatus,
    ProcessState,
    RoleState,
    RunStatus,
    StageState,
    Transfers,
    WorkerState,
)

REFRESH_PER_S = 4
HISTORY_STEPS = 22
BAR_CELLS = 44

# Ledger states in the order that a ticket goes through them, with their colours.
STATES = (
    ("pending", "grey50"),
    ("leased", "cyan"),
    ("ready", "yellow"),
    ("planned", "magenta"),
    ("trained", "green"),
    ("evaluated", "blue"),
    ("dropped", "red"),
)
STATE_WORDS = {"leased": "playing", "planned": "in a batch"}
PHASES = {
    "warmup": "warm-up: imitate random legal play",
    "evaluate:start": "evaluate before training",
    "train": "reinforcement learning",
    "evaluate:final": "evaluate after training",
    "done": "done",
}
SPARKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Redraws one screen of panels several times a second, so that spinners and clocks move."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._processes: Sequence[ProcessState] = ()
        self._status = RunStatus()
        self._history: dict[str, deque[float]] = {}
        self._last_step = (0, "")
        self._spinners: dict[str, Spinner] = {}
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=REFRESH_PER_S, transient=False
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
        self._processes, self._status = processes, status
        if (status.step, status.phase) != self._last_step:
            if status.phase != self._last_step[1]:
                self._history.clear()  # a phase's trends are its own
            self._last_step = (status.step, status.phase)
            for name, value in status.metrics.items():
                self._history.setdefault(name, deque(maxlen=HISTORY_STEPS)).append(value)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._head()]
        if not self._status.phase or any(state.state in ("waiting", "starting") for state in self._processes):
            parts.append(
                Panel(self._start_up(), title="processes", title_align="left", border_style="grey50")
            )
        elif troubled := [state for state in self._processes if state.state in ("restarting", "failed")]:
            parts += [Text(f"{state.name} is {state.state}", style="red") for state in troubled]
        if self._status.phase:
            parts.append(phase_line(self._status))
            middle = Table.grid(expand=True, padding=(0, 1))
            middle.add_column(ratio=1)
            middle.add_column(ratio=1)
            middle.add_row(
                Panel(self._learning(), title="learning", title_align="left", border_style="grey50"),
                Panel(self._running(), title="running", title_align="left", border_style="grey50"),
            )
            parts.append(middle)
            trajectories = ledger_table(self._status.ledger)
            if self._status.roles:
                trajectories = Group(trajectories, Text(), roles_table(self._status.roles))
            parts.append(
                Panel(
                    trajectories, title="where each trajectory is", title_align="left", border_style="grey50"
                )
            )
            if self._status.stages:
                parts.append(stage_lines(self._status.stages))
            if self._status.evaluations:
                parts.append(evaluation_table(self._status.evaluations, self._status.best_version))
            if self._status.done:
                what = self._status.message or "the run is over"
                parts.append(Spinner("dots", f"{what}: the workers save and leave"))
        return Group(*parts)

    def _head(self) -> RenderableType:
        elapsed = clock(time.monotonic() - self._started)
        name = self._status.run or "run"
        return Text.assemble(("EARL ", "bold"), (name, "bold cyan"), (f"  {elapsed}", "grey50"))

    def _start_up(self) -> RenderableType:
        """A row per process, and a bar over all of them."""
        table = Table.grid(padding=(0, 2))
        for state in self._processes:
            mark: RenderableType
            if state.state in ("starting", "restarting"):
                mark = self._spinners.setdefault(state.name, Spinner("dots"))
            else:
                mark = Text({"ready": "✓", "done": "✓", "failed": "✗"}.get(state.state, "·"))
            seconds = f"{state.seconds:.0f} s" if state.state == "starting" else ""
            table.add_row(mark, state.name, state.state, seconds)
        ready = sum(state.state in ("ready", "done") for state in self._processes)
        bar = ProgressBar(total=max(1, len(self._processes)), completed=ready, width=BAR_CELLS)
        return Group(table, bar)

    def _learning(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, label, form in LEARNING:
            value = self._status.metrics.get(name)
            if value is not None:
                trend = sparkline(self._history.get(name, ()))
                table.add_row(label, Text(form.format(value), style="bold"), Text(trend, style="cyan"))
        for label, lengths in (
            ("episode tokens", self._status.episode_tokens),
            ("turn tokens", self._status.turn_tokens),
        ):
            if lengths.max:
                quantiles = f"p50 {lengths.p50:.0f} · p95 {lengths.p95:.0f} · max {lengths.max:.0f}"
                table.add_row(
                    label, Text(f"{lengths.mean:.1f}", style="bold"), Text(quantiles, style="grey50")
                )
        return table

    def _running(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_row("policy version", Text(str(self._status.version), style="bold"), "")
        for worker in self._status.workers:
            silent = self._status.silent(worker)
            rates = Text(worker_rates(worker, silent=silent), style="grey50")
            table.add_row(worker.name, worker_load(worker, silent=silent), rates)
        return table


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


def phase_line(status: RunStatus) -> RenderableType:
    """What the run is at, as a bar: steps of a training phase, episodes of an evaluation."""
    done, total = progress_of(status)
    grid = Table.grid(padding=(0, 2))
    label = PHASES.get(status.phase, status.phase)
    grid.add_row(
        Text(label, style="bold"),
        ProgressBar(total=max(1, total), completed=done, width=BAR_CELLS),
        f"{done}/{total}" if total else "",
    )
    return grid


def progress_of(status: RunStatus) -> tuple[int, int]:
    """(done, total) of the phase."""
    if status.phase.startswith("evaluate:"):
        under_way = status.evaluation(status.phase.removeprefix("evaluate:"))
        if under_way:
            return under_way.done, under_way.episodes
    return status.step, status.steps


def ledger_table(ledger: LedgerStatus) -> RenderableType:
    """Counts by state; issued is their sum."""
    counts = {name: getattr(ledger, name) for name, _ in STATES if name != "dropped"}
    counts["dropped"] = ledger.dropped_total
    table = Table.grid(padding=(0, 3))
    table.add_row(*(Text(STATE_WORDS.get(name, name), style=style) for name, style in STATES), Text("issued"))
    table.add_row(
        *(Text(f"{counts[name]:,}", style=f"bold {style}") for name, style in STATES),
        Text(f"{ledger.issued:,}", style="bold"),
    )
    if ledger.dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(ledger.dropped.items()))
        return Group(table, Text(f"dropped: {reasons}", style="red"))
    return table


def roles_table(roles: Sequence[RoleState]) -> RenderableType:
    """How far each consumer of trajectories is."""
    table = Table.grid(padding=(0, 3))
    for role in roles:
        table.add_row(
            role.name, *(Text(f"{count:,} {word}", style=style) for word, count, style in role_figures(role))
        )
    return table


def stage_lines(stages: Sequence[StageState]) -> RenderableType:
    """How each stage is cut; where the selector decides for it, what it said last; switches."""
    undecided = " · ".join(parallelism_text(stage) for stage in stages if not stage.chosen)
    lines = [Text(f"parallelism  {undecided}", style="grey50")] if undecided else []
    for stage in stages:
        if stage.chosen:
            pinned = " (pinned)" if stage.pinned else ""
            lines.append(Text(f"{stage.sentence}{pinned}", style="yellow" if stage.differs else ""))
    for stage in stages:
        if stage.switching is not None:
            lines.append(Text(f"{stage.name} {switch_text(stage.switching, runs=True)}", style="bold yellow"))
        elif stage.last is not None:
            style = "red" if stage.last.rolled_back else "green"
            lines.append(Text(f"{stage.name} {switch_text(stage.last)}", style=style))
    return Group(*lines)


def role_figures(role: RoleState) -> list[tuple[str, int, str]]:
    """(word, trajectories, colour)"""
    colours = (("waiting", "yellow"), ("leased", "cyan"), ("done", "green"))
    return [(word, getattr(role, word), colour) for word, colour in colours]


def evaluation_table(evaluations: Sequence[EvaluationStatus], best_version: int) -> RenderableType:
    """The last evaluations with their 95 % intervals; the gain is over the run's first one, paired."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="grey50")
    shown = evaluations[-5:]
    illegal = any("illegal" in item.metrics for item in shown)
    for name in ("evaluation", "version", "episodes", "win rate", "reward", "gain", *["illegal"] * illegal):
        table.add_column(name)
    for item in shown:
        gain = item.gain
        best = " (best)" if item.version == best_version else ""
        cells = [
            item.name,
            f"{item.version}{best}",
            f"{item.done}/{item.episodes}",
            Text(interval(item.win_rate, item.win_bounds) if item.done else "", style="bold green"),
            interval(item.mean_reward, item.reward_bounds, signed=True) if item.done else "",
            interval(gain.value, gain.bounds, signed=True) if gain else "",
        ]
        if illegal:
            cells.append(f"{item.metrics['illegal']:.2%}" if "illegal" in item.metrics else "")
        table.add_row(*cells)
    return table


def worker_load(worker: WorkerState, *, silent: bool) -> Text:
    """Episodes running and possible of a rollout worker, ranks of a trainer."""
    text = f"{worker.running}/{worker.capacity}"
    if worker.stage == "trainer":
        text = f"{worker.capacity} rank{'s' if worker.capacity != 1 else ''}"
    return Text(text, style="bold red" if silent else "bold")


def worker_rates(worker: WorkerState, *, silent: bool) -> str:
    """Version, generation rate, and what it moved by which path."""
    parts = [f"v{worker.version}"] if worker.version else []
    rate = worker.gauges.get("generated_tokens_per_s")
    if rate:
        parts.append(f"{rate:,.0f} tokens/s")
    parts += [transfer(path, moved) for path, moved in worker.transfers.items()]
    if silent:
        parts.append(f"silent for {worker.silent_s:.0f} s")
    return " · ".join(parts)


def transfer(path: str, moved: Transfers) -> str:
    """For example "shm 1.2 GiB at 3.4 GB/s"; requests that were sent again are named."""
    retries = f", {moved.retries} retries" if moved.retries else ""
    return f"{path} {size(moved.size_bytes)} at {moved.gb_per_s:.2f} GB/s{retries}"


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """The last values as small blocks, lowest to highest."""
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if not values or high <= low:
        return ""
    return "".join(SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))] for value in values)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def size(count_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024 or unit == "GiB":
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1024
    return ""
