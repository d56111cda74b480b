"""The screen of `earl top`: the tables of `earl.cli.show.panels`, brought up to date in place.

    every_s ─► RunMonitor.snapshot ─► headline, remarks, tables: only lines that changed are drawn

Snapshots are taken one at a time, each bounded; a service that does not answer is a remark, and what was last
known of it stays.
"""

from __future__ import annotations

import textwrap
import time
from collections import deque
from dataclasses import replace
from typing import ClassVar, Protocol

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from earl.cli.lib.find_run import CALL_S
from earl.cli.lib.recent import Recent
from earl.cli.lib.snapshot import RunSnapshot
from earl.cli.lib.status_text import drafts_line, sparkline
from earl.cli.show import panels
from earl.cli.top.section import TableSection
from earl.errors import EarlError
from earl.stack.status import RunStatus, WorkerState

# Points of the trend that is drawn.
HISTORY = 48
# Parts of the screen, the most important first.
ORDER = (
    "stages",
    "learning",
    "mixture",
    "tickets",
    "queues",
    "playing",
    "environments",
    "workers",
    "switches",
    "processes",
    "endpoints",
)


class SnapshotSource(Protocol):
    """Takes snapshots of a run: a RunMonitor."""

    async def pin(self, stage: str, *, pin: bool, deadline_s: float) -> None: ...

    async def snapshot(self) -> RunSnapshot: ...

    async def close(self) -> None: ...


class Tables(VerticalScroll, can_focus=False):
    """The tables, one below the other. What has the focus is always one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "page_down", "Scroll", key_display="PgUp/PgDn"),
    ]


class WorkerDetails(ModalScreen[None]):
    """Everything that one worker measures."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Back"),
    ]
    DEFAULT_CSS = """
    WorkerDetails { align: center middle; }
    WorkerDetails VerticalScroll { width: 80%; height: 80%; border: round $primary; padding: 0 1; }
    """

    def __init__(self, worker: WorkerState) -> None:
        super().__init__()
        self._worker = worker

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(details(self._worker)), id="details", markup=False)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(None)


def details(worker: WorkerState) -> list[str]:
    """A worker as lines: what it is, its gauges by name, units in the names."""
    width = max(map(len, worker.gauges), default=0)
    return [
        f"{worker.name}, {worker.stage} {worker.parallelism}, version {worker.version}",
        *(f"{name:{width}}  {value:,.6g}" for name, value in sorted(worker.gauges.items())),
    ]


def write(place: Static, text: Text) -> None:
    """Shows a text; one that is shown already is not drawn again, one as high moves nothing.

    Without a text, the place takes no line.
    """
    before = place.content
    if before == text:
        return
    if place.display != bool(text):
        place.display = bool(text)
    width = max(1, place.content_size.width)
    former = before if isinstance(before, Text) else Text(str(before))
    place.update(text, layout=height(former, width) != height(text, width))


def height(text: Text, width: int) -> int:
    return sum(max(1, len(textwrap.wrap(line, width))) for line in text.plain.splitlines())


class Top(App[None]):
    """The screen of a run, refreshed every `every_s` seconds."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("tab", "focus_next", "Table", key_display="Tab", priority=True),
        Binding("space", "pause", "Pause"),
        Binding("r", "now", "Refresh"),
        Binding("p", "pin", "Pin/unpin"),
    ]
    CSS = """
    #headline { height: auto; padding: 0 1; text-style: bold; }
    #step { height: auto; padding: 0 1; }
    #seats { height: auto; padding: 0 1; }
    #drafts { height: auto; padding: 0 1; }
    #trend { height: 1; padding: 0 1; color: $text-muted; }
    #ending { height: auto; padding: 0 1; }
    #problems { height: auto; max-height: 4; padding: 0 1; color: $error; }
    #tables { padding: 0 1; }
    """

    def __init__(self, source: SnapshotSource, every_s: float = 1.0) -> None:
        super().__init__()
        self.paused = False
        self.last: RunSnapshot | None = None
        self._source = source
        self._every_s = every_s
        self._refusal = ""
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._step = (0, "")
        self._recent = Recent()

    def compose(self) -> ComposeResult:
        yield Static("connecting …", id="headline", markup=False)
        yield Static("", id="step", markup=False)
        yield Static("", id="seats", markup=False)
        yield Static("", id="drafts", markup=False)
        yield Static("", id="trend", markup=False)
        yield Static("", id="ending", markup=False)
        yield Static("", id="problems", markup=False)
        with Tables(id="tables"):
            for title in ORDER:
                yield TableSection(title)
        yield Footer()

    def on_mount(self) -> None:
        self.title = "earl top"
        self.set_interval(self._every_s, self._tick)
        self.refresh_snapshot()

    async def on_unmount(self) -> None:
        await self._source.close()

    def _tick(self) -> None:
        if not self.paused and not any(
            worker.group == "snapshot" for worker in self.workers if worker.is_running
        ):
            self.refresh_snapshot()

    @work(group="snapshot")
    async def refresh_snapshot(self) -> None:
        self.show(self._of_late(await self._source.snapshot()))

    def _of_late(self, snapshot: RunSnapshot) -> RunSnapshot:
        """The snapshot with the latencies of the last minute."""
        return replace(snapshot, environments=self._recent.of(snapshot.environments, time.monotonic()))

    def show(self, snapshot: RunSnapshot) -> None:
        """Draws a snapshot."""
        if not self.screen_stack or not (base := self.screen_stack[0]).query("#headline"):
            return  # it is being left
        if self.last is None and snapshot.status.stages:
            self.call_after_refresh(base.query_one("#stages", TableSection).focus)
        self.last = snapshot
        paused = "  (paused)" if self.paused else ""
        headline = Text(panels.headline(snapshot) + paused, style=panels.STYLES[snapshot.state])
        write(base.query_one("#headline", Static), headline)
        write(base.query_one("#step", Static), Text(panels.step_line(snapshot)))
        write(base.query_one("#seats", Static), Text("\n".join(panels.seat_lines(snapshot.status))))
        write(base.query_one("#drafts", Static), Text(drafts_line(snapshot.status)))
        self._trend(base, snapshot.status)
        write(base.query_one("#ending", Static), Text(*panels.ending_line(snapshot)))
        problems = [*panels.problems(snapshot), *([self._refusal] if self._refusal else [])]
        write(base.query_one("#problems", Static), Text("\n".join(problems)))
        tables = {table.title: table for table in panels.tables(snapshot)}
        for section in base.query(TableSection):
            section.show(tables.get(section.id or ""), keep_place=snapshot.state.is_active)

    def _trend(self, base: Screen, status: RunStatus) -> None:
        """Tokens/s end to end, a point a step."""
        rate = status.metrics.get("tokens_per_s")
        if rate is not None and (status.step, status.phase) != self._step:
            self._step = (status.step, status.phase)
            self._rates.append(rate)
        text = f"tokens/s {self._rates[-1]:,.0f}  {sparkline(self._rates)}" if self._rates else ""
        write(base.query_one("#trend", Static), Text(text))

    # --- keys -------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.paused = not self.paused
        if self.last is not None:
            self.show(self.last)

    def action_now(self) -> None:
        self.refresh_snapshot()

    @on(TableSection.RowSelected, "#workers")
    def selected(self, event: TableSection.RowSelected) -> None:
        workers = self.last.status.workers if self.last is not None else ()
        worker = next((worker for worker in workers if worker.name == event.key), None)
        if worker is not None:
            self.push_screen(WorkerDetails(worker))

    @work(group="pin", exclusive=True)
    async def action_pin(self) -> None:
        """Pins the stage under the cursor, or unpins it, and shows the outcome."""
        stages = self.last.status.stages if self.last is not None else ()
        row = self.screen_stack[0].query_one("#stages", TableSection).cursor
        if self.last is None or not self.last.state.is_active or not 0 <= row < len(stages):
            return
        stage = stages[row]
        try:
            await self._source.pin(stage.name, pin=not stage.pinned, deadline_s=CALL_S)
            self._refusal = ""
        except EarlError as error:
            self._refusal = f"{stage.name} stays {'pinned' if stage.pinned else 'unpinned'}: {error}"
        self.show(self._of_late(await self._source.snapshot()))
