"""The live view of a running run on a terminal: one screen of the last status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from earl.cli.lib.concerns import concerns
from earl.cli.lib.figures import interval
from earl.cli.lib.status_table import StatusTable
from earl.cli.lib.status_text import (
    PHASES,
    clock,
    learning_figures,
    paced_line,
    progress_of,
    role_figures,
    shutdown_text,
    sparkline,
    start_text,
    ticket_figures,
    time_left,
    transfer,
)
from earl.cli.lib.step_text import step_text
from earl.cli.lib.switches import parallelism_text, switch_text
from earl.cli.run.run_clock import RunClock
from earl.stack.status import (
    EvaluationStatus,
    LedgerStatus,
    ProcessState,
    RoleState,
    RunStatus,
    StageState,
    WorkerState,
)

REFRESH_PER_S = 4
HISTORY_STEPS = 22
BAR_CELLS, LEAST_BAR_CELLS = 44, 6
# A screen as wide as this has two panels side by side; what a panel's frame takes.
WIDE_CELLS, PANEL_CELLS = 120, 4


class RunView(AbstractContextManager["RunView"], ABC):
    """A place to show a run's status; open as a context manager."""

    @abstractmethod
    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None: ...


class LiveView(RunView):
    """Redraws one screen of panels several times a second, so that spinners and clocks move.

    The screen begins with the first update, so a launch that is refused before shows its error alone.
    hint: the second line of the screen while the run continues.
    """

    def __init__(self, console: Console, hint: str = "") -> None:
        self._hint = hint
        self._is_open = False
        self._clock = RunClock()
        self._processes: Sequence[ProcessState] = ()
        self._status = RunStatus()
        self._history: dict[str, deque[float]] = {}
        self._last_step = (0, "")
        self._spinners: dict[str, Spinner] = {}
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=REFRESH_PER_S, transient=False
        )

    def __enter__(self) -> LiveView:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._live.stop()

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
        self._processes, self._status = processes, status
        if self._is_open and not self._live.is_started:
            self._live.start()
        self._clock.update(status.elapsed_s)
        if (status.step, status.phase) != self._last_step:
            if status.phase != self._last_step[1]:
                self._history.clear()  # a phase's trends are its own
            self._last_step = (status.step, status.phase)
            for name, value in status.metrics.items():
                self._history.setdefault(name, deque(maxlen=HISTORY_STEPS)).append(value)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._head()]
        if paced := paced_line(self._status):
            parts.append(Text(paced, style="bold yellow"))
        if self._hint and not self._status.done:
            parts.append(Text(self._hint, style="grey50"))
        if not self._status.phase or any(state.state in ("waiting", "starting") for state in self._processes):
            parts.append(
                Panel(self._start_up(), title="processes", title_align="left", border_style="grey50")
            )
        elif troubled := [state for state in self._processes if state.state in ("restarting", "failed")]:
            parts += [Text(f"{state.name} is {state.state}", style="red") for state in troubled]
        parts += [Text(concern, style="yellow") for concern in concerns(self._status.workers)]
        if self._status.phase:
            cells = self._live.console.width
            parts.append(phase_line(self._status, cells))
            if step := step_text(self._status):
                parts.append(Text(step, style="grey50"))
            panels = (
                Panel(self._learning(), title="learning", title_align="left", border_style="grey50"),
                Panel(self._running(), title="running", title_align="left", border_style="grey50"),
            )
            parts += [side_by_side(*panels)] if cells >= WIDE_CELLS else panels
            trajectories = ledger_table(self._status.ledger, cells - PANEL_CELLS)
            if self._status.roles:
                trajectories = Group(trajectories, Text(), roles_table(self._status.roles))
            parts.append(Panel(trajectories, title="trajectories", title_align="left", border_style="grey50"))
            if self._status.stages:
                parts.append(stage_lines(self._status.stages))
            if self._status.evaluations:
                parts.append(
                    evaluation_table(
                        self._status.evaluations,
                        self._status.best_version,
                        winners=self._status.has_winners,
                        cells=cells,
                    )
                )
            if shutdown := shutdown_text(self._status):
                parts.append(Spinner("dots", shutdown))
        return Group(*parts)

    def _head(self) -> RenderableType:
        elapsed = clock(self._clock.seconds)
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
            seconds = start_text(state) if state.state == "starting" else ""
            table.add_row(mark, state.name, state.state, seconds)
        ready = sum(state.state in ("ready", "done") for state in self._processes)
        bar = ProgressBar(total=max(1, len(self._processes)), completed=ready, width=BAR_CELLS)
        return Group(table, bar)

    def _learning(self) -> RenderableType:
        table = figures_grid()
        for name, label, text in learning_figures(self._status):
            trend = sparkline(self._history.get(name, ()))
            table.add_row(label, Text(text, style="bold"), Text(trend, style="cyan"))
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
        table = figures_grid()
        table.add_row("policy version", Text(str(self._status.version), style="bold"), "")
        for worker in self._status.workers:
            late = self._status.is_late(worker)
            rates = Text(worker_rates(worker, late=late), style="grey50")
            table.add_row(worker.name, worker_load(worker, late=late), rates)
        return table


def side_by_side(*panels: Panel) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    for _ in panels:
        grid.add_column(ratio=1)
    grid.add_row(*panels)
    return grid


def figures_grid() -> Table:
    """Rows of a name, a value and what else there is, which may take several lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    return grid


def phase_line(status: RunStatus, cells: int) -> RenderableType:
    """The phase's progress as a bar: steps of a training phase, episodes of an evaluation."""
    done, total = progress_of(status)
    label = PHASES.get(status.phase, status.phase)
    progress = f"{done}/{total}{time_left(status)}" if total else ""
    width = min(BAR_CELLS, cells - len(label) - len(progress) - 4)
    if width < LEAST_BAR_CELLS:
        return Text.assemble((label, "bold"), f"  {progress}")
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, total), completed=done, width=width)
    grid.add_row(Text(label, style="bold"), bar, progress)
    return grid


def ledger_table(ledger: LedgerStatus, cells: int) -> RenderableType:
    """Tickets by state. cells: the screen's width, which may take several rows."""
    columns = ticket_figures(ledger)
    widest = max(len(text) for word, count, _ in columns for text in (word, count))
    fits = all_in_line(columns) <= cells
    each = len(columns) if fits else max(1, cells // (widest + 3))
    table = Table.grid(padding=(0, 3))
    for i in range(0, len(columns), each):
        part = columns[i : i + each]
        table.add_row(*(Text(word, style=style, no_wrap=True) for word, _, style in part))
        table.add_row(*(Text(count, style=f"bold {style}", no_wrap=True) for _, count, style in part))
    if ledger.dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(ledger.dropped.items()))
        return Group(table, Text(f"dropped: {reasons}", style="red"))
    return table


def all_in_line(columns: Sequence[tuple[str, str, str]]) -> int:
    """Returns the width of one row with all columns of (word, count, style), in characters."""
    return sum(max(len(word), len(count)) + 3 for word, count, _ in columns)


def roles_table(roles: Sequence[RoleState]) -> RenderableType:
    """Returns how far each consumer of trajectories is."""
    table = Table.grid(padding=(0, 3))
    for role in roles:
        table.add_row(
            role.name, *(Text(f"{count:,} {word}", style=style) for word, count, style in role_figures(role))
        )
    return table


def stage_lines(stages: Sequence[StageState]) -> RenderableType:
    """Draws each stage's parallelism, or the selector's last verdict where it decides, and its switches."""
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


def evaluation_table(
    evaluations: Sequence[EvaluationStatus], best_version: int, *, winners: bool, cells: int
) -> RenderableType:
    """The last evaluations with their 95 % intervals; the gain is over the run's first one, paired.

    winners: of a game; elsewhere a reward is a score. cells: the screen's width, which decides the columns.
    """
    shown = evaluations[-5:]
    result = "reward" if winners else "score"
    hidden = set[str]() if winners else {"win rate"}
    hidden |= {"illegal"} if not any("illegal" in item.metrics for item in shown) else set()
    table = StatusTable(
        "evaluations",
        ("evaluation", "version", "episodes", "win rate", result, "gain", "illegal"),
        tuple(evaluation_cells(item, best_version) for item in shown),
        least=("illegal", "episodes", *(["reward"] if winners else []), "version"),
    )
    fitted = table.without(hidden).fitted(cells)
    best = "win rate" if winners else result
    return fitted.drawn(best, box=None, padding=(0, 2, 0, 0), header_style="grey50")


def evaluation_cells(item: EvaluationStatus, best_version: int) -> tuple[str, ...]:
    return (
        item.name,
        f"{item.version}{' (best)' if item.version == best_version else ''}",
        f"{item.done}/{item.episodes}",
        interval(item.win_rate, item.win_bounds) if item.done else "",
        interval(item.mean_reward, item.reward_bounds, signed=True) if item.done else "",
        interval(item.gain.value, item.gain.bounds, signed=True) if item.gain else "",
        f"{item.metrics['illegal']:.2%}" if "illegal" in item.metrics else "",
    )


def worker_load(worker: WorkerState, *, late: bool) -> Text:
    """Episodes running and possible of a rollout worker, ranks of a trainer."""
    text = f"{worker.running}/{worker.capacity}"
    if worker.stage == "trainer":
        text = f"{worker.capacity} rank{'s' if worker.capacity != 1 else ''}"
    return Text(text, style="bold red" if late else "bold")


def worker_rates(worker: WorkerState, *, late: bool) -> str:
    """Version, generation rate, and what it moved by which path."""
    parts = [f"v{worker.version}"] if worker.version else []
    rate = worker.gauges.get("generated_tokens_per_s")
    if rate:
        parts.append(f"{rate:,.0f} tokens/s")
    if worker.gauges.get("asleep"):
        parts.append("asleep")
    parts += [transfer(path, moved) for path, moved in worker.transfers.items()]
    if late:
        parts.append(f"last seen {worker.silent_s:.0f} s ago")
    return " · ".join(parts)
