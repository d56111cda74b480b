"""The screen of `earl top`: the tables of `earl.cli.show.panels`, brought up to date in place.

    every_s ─► Looker.look ─► Look ─► headline, remarks, tables: only cells that changed are written

Looks are taken one at a time, each bounded; whatever does not answer is a remark, and what was known stays.
"""

from __future__ import annotations

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
from textual.widgets import DataTable, Footer, Static

from earl.cli.lib.find_run import CALL_S
from earl.cli.lib.recent import Recent
from earl.cli.lib.snapshot import Look, State
from earl.cli.run.live_view import sparkline
from earl.cli.show import panels
from earl.cli.show.panels import Table
from earl.errors import EarlError
from earl.stack.status import RunStatus, WorkerState

# Points of the trend that is drawn.
HISTORY = 48
# Of one screen, the most important first.
ORDER = (
    "stages",
    "learning",
    "tickets",
    "queues",
    "leases",
    "environments",
    "workers",
    "switches",
    "processes",
    "endpoints",
)
STYLES = {
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.COMPLETE: "green",
    State.STOPPED: "yellow",
    State.FAILED: "red",
    State.LOST: "red",
}


class Looks(Protocol):
    """Where looks come from."""

    async def pin(self, stage: str, *, pin: bool, deadline_s: float) -> None: ...

    async def look(self) -> Look: ...

    async def close(self) -> None: ...


class Section(Static):
    """One table under its title; not there while it has no rows."""

    DEFAULT_CSS = """
    Section { height: auto; margin-bottom: 1; }
    Section > .title { text-style: bold; color: $text-muted; }
    Section DataTable { height: auto; max-height: 12; }
    """

    def __init__(self, title: str) -> None:
        super().__init__(id=f"section-{title}")
        self.name_of_it = title
        self._shown = Table(title, (), ())
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static(self.name_of_it, classes="title")
        yield DataTable(id=self.name_of_it, cursor_type="row", zebra_stripes=False)

    def show(self, table: Table | None) -> None:
        """Brings it up to date; only what changed is drawn anew."""
        self.display = table is not None
        if table is None or table == self._shown:
            return
        grid = self.query_one(DataTable)
        before, self._shown = self._shown, table
        if (before.columns, len(before.rows), before.keys) != (table.columns, len(table.rows), table.keys):
            row = grid.cursor_row
            grid.clear(columns=True)
            for column in table.columns:
                grid.add_column(_cell(column, column in table.numbers), key=column)
            for index, cells in enumerate(table.rows):
                key = table.keys[index] if table.keys else str(index)
                shown = zip(table.columns, cells, strict=True)
                grid.add_row(*(_cell(cell, name in table.numbers) for name, cell in shown), key=key)
            grid.move_cursor(row=min(row, max(0, len(table.rows) - 1)))
            return
        for index, (old, new) in enumerate(zip(before.rows, table.rows, strict=True)):
            key = table.keys[index] if table.keys else str(index)
            for name, was, cell in zip(table.columns, old, new, strict=True):
                if was != cell:
                    grid.update_cell(key, name, _cell(cell, name in table.numbers), update_width=True)


def _cell(text: str, number: bool) -> Text:
    return Text(text, justify="right" if number else "left", no_wrap=True)


class Details(ModalScreen[None]):
    """All that a worker measures."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Back"),
    ]
    DEFAULT_CSS = """
    Details { align: center middle; }
    Details VerticalScroll { width: 80%; height: 80%; border: round $primary; padding: 0 1; }
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


class Top(App[None]):
    """A run, looked at every `every_s` seconds."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Leave"),
        Binding("space", "pause", "Pause"),
        Binding("r", "now", "Refresh"),
        Binding("p", "pin", "Pin/unpin stage"),
        Binding("tab", "focus_next", "Next table", show=False),
    ]
    CSS = """
    #headline { height: 1; padding: 0 1; text-style: bold; }
    #trend { height: 1; padding: 0 1; color: $text-muted; }
    #remarks { height: auto; max-height: 4; padding: 0 1; color: $error; }
    #tables { padding: 0 1; }
    """

    def __init__(self, looks: Looks, every_s: float = 1.0) -> None:
        super().__init__()
        self.paused = False
        self.last: Look | None = None
        self._looks = looks
        self._every_s = every_s
        self._said = ""
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._step = (0, "")
        self._recent = Recent()

    def compose(self) -> ComposeResult:
        yield Static("looking …", id="headline", markup=False)
        yield Static("", id="trend", markup=False)
        yield Static("", id="remarks", markup=False)
        with VerticalScroll(id="tables"):
            for title in ORDER:
                yield Section(title)
        yield Footer()

    def on_mount(self) -> None:
        self.title = "earl top"
        self.set_interval(self._every_s, self._tick)
        self.look()

    async def on_unmount(self) -> None:
        await self._looks.close()

    def _tick(self) -> None:
        if not self.paused and not any(
            worker.group == "look" for worker in self.workers if worker.is_running
        ):
            self.look()

    @work(group="look")
    async def look(self) -> None:
        self.show(self._of_late(await self._looks.look()))

    def _of_late(self, look: Look) -> Look:
        """With the latencies of the last minute."""
        return replace(look, environments=self._recent.of(look.environments, time.monotonic()))

    def show(self, look: Look) -> None:
        """Draws what a look has found."""
        if not self.screen_stack or not (base := self.screen_stack[0]).query("#headline"):
            return  # it is being left
        if self.last is None and look.status.stages:
            self.call_after_refresh(base.query_one("#stages", DataTable).focus)
        self.last = look
        paused = "  (paused)" if self.paused else ""
        headline = Text(panels.headline(look) + paused, style=STYLES[look.state], no_wrap=True)
        base.query_one("#headline", Static).update(headline)
        self._trend(base, look.status)
        remarks = [*panels.remarks(look), *([self._said] if self._said else [])]
        line = base.query_one("#remarks", Static)
        line.display = bool(remarks)
        line.update("\n".join(remarks))
        found = {table.title: table for table in panels.tables(look)}
        for section in base.query(Section):
            section.show(found.get(section.name_of_it))

    def _trend(self, base: Screen, status: RunStatus) -> None:
        """Tokens/s end to end, a point a step."""
        rate = status.metrics.get("tokens_per_s")
        if rate is not None and (status.step, status.phase) != self._step:
            self._step = (status.step, status.phase)
            self._rates.append(rate)
        line = base.query_one("#trend", Static)
        line.display = bool(self._rates)
        if self._rates:
            line.update(f"tokens/s {self._rates[-1]:,.0f}  {sparkline(self._rates)}")

    # --- keys -------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.paused = not self.paused
        if self.last is not None:
            self.show(self.last)

    def action_now(self) -> None:
        self.look()

    @on(DataTable.RowSelected, "#workers")
    def selected(self, event: DataTable.RowSelected) -> None:
        name = event.row_key.value
        workers = self.last.status.workers if self.last is not None else ()
        found = next((one for one in workers if one.name == name), None)
        if found is not None:
            self.push_screen(Details(found))

    @work(group="pin", exclusive=True)
    async def action_pin(self) -> None:
        """Pins the stage under the cursor, or unpins it; says what came of it."""
        stages = self.last.status.stages if self.last is not None else ()
        row = self.screen_stack[0].query_one("#stages", DataTable).cursor_row
        if self.last is None or not self.last.state.goes_on or not 0 <= row < len(stages):
            return
        stage = stages[row]
        try:
            await self._looks.pin(stage.name, pin=not stage.pinned, deadline_s=CALL_S)
            self._said = ""
        except EarlError as error:
            self._said = f"{stage.name} stays {'pinned' if stage.pinned else 'unpinned'}: {error}"
        self.show(self._of_late(await self._looks.look()))
