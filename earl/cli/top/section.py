"""One table of `earl top`: lines of text, of which only those that changed are drawn again.

    StatusTable ─► table_lines ─► compare with the lines on the screen ─► refresh(lines that differ)

Textual's own DataTable draws every cell again when one has changed, which cost most of what `earl top` took
of a core. What moves the tables below draws the whole screen again: a table that gets shorter keeps its place
for a while, since leases come and go with every batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from earl.cli.lib.status_table import StatusTable
from earl.cli.top.table_lines import TableLine, TableLines, table_lines

NO_TABLE = StatusTable("", (), ())
# Changes for which a table that got shorter keeps its lines, as blank ones.
KEPT_CHANGES = 30
# Styles of the title and of headers, of rows, and of the row under the cursor of the focused table.
HEADER, ROW, CURSOR = Style(bold=True, dim=True), Style(), Style(reverse=True)


class TableSection(Widget, can_focus=True):
    """One table under its title; not there while it has no rows.

    cursor: index of the row that keys are about, drawn while the section has the focus.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("enter", "select", "Select", show=False),
    ]
    DEFAULT_CSS = """
    TableSection { height: auto; margin-bottom: 1; }
    """

    class RowSelected(Message):
        """Enter was pressed on a row. key: of the row, "" if the table has none."""

        def __init__(self, section: TableSection, key: str) -> None:
            super().__init__()
            self.section, self.key = section, key

        @property
        def control(self) -> TableSection:
            return self.section

    def __init__(self, title: str) -> None:
        super().__init__(id=title)
        self.cursor = 0
        self.table = NO_TABLE
        self._title_line = TableLine(title)
        self._shown = TableLines()
        self._lines: tuple[TableLine, ...] = (self._title_line,)
        self._fewer = 0
        self.display = False

    @property
    def lines(self) -> list[str]:
        """The drawn lines, from the title on."""
        return [line.text for line in self._lines]

    def show(self, table: StatusTable | None, *, keep_place: bool = True) -> None:
        """Shows the table: lines that have not changed are not drawn again.

        keep_place: rows that are gone stay as blank lines for KEPT_CHANGES changes; else the rest moves up.
        """
        if table is None:
            self._fewer += 1
            if self.display and keep_place and self._fewer < KEPT_CHANGES:
                table = replace(self.table, rows=(), keys=())
            else:
                self._hide()
                return
        if not self.display:
            self.display = True
        if table == self.table:
            return
        if self.table.keys[self.cursor : self.cursor + 1] != table.keys[self.cursor : self.cursor + 1]:
            self.cursor = self._followed(table)
        self.table = table
        self.cursor = max(0, min(self.cursor, len(table.rows) - 1))
        self._draw(self.size.width, self._shown, keep_place=keep_place)

    def _hide(self) -> None:
        if self.display:
            self.display = False
            self.table, self._shown, self._fewer = NO_TABLE, TableLines(), 0

    def _followed(self, table: StatusTable) -> int:
        """The row of the new table that has the key of the one under the cursor."""
        key = self.table.keys[self.cursor] if self.cursor < len(self.table.keys) else ""
        return table.keys.index(key) if key in table.keys else self.cursor

    def on_resize(self, event: events.Resize) -> None:
        if self.table is not NO_TABLE:
            self._draw(event.size.width, None, keep_place=False)

    def _draw(self, width: int, before: TableLines | None, *, keep_place: bool) -> None:
        if not width:
            return  # Resize follows once the section has a place
        self._shown = table_lines(self.table, width, before)
        former, lines = self._lines, (self._title_line, *self._shown.lines)
        if len(lines) < len(former):
            self._fewer += 1
            if keep_place and self._fewer < KEPT_CHANGES:
                lines += (TableLine(""),) * (len(former) - len(lines))
        else:
            self._fewer = 0
        self._lines = lines
        if len(former) != len(lines):
            self.refresh(layout=True)
            return
        changed = [y for y, (old, new) in enumerate(zip(former, lines, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width == self.size.width or self.table is NO_TABLE:
            return len(self._lines)
        return 1 + len(table_lines(self.table, width).lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[y]
        style = HEADER if line.row is None else ROW
        if self.has_focus and line.row == self.cursor:
            style = CURSOR
        return Strip([Segment(set_cell_size(line.text, width), self.rich_style + style)], width)

    def on_focus(self) -> None:
        self._show_cursor()

    def on_blur(self) -> None:
        self._show_cursor()

    def _show_cursor(self) -> None:
        """Draws the rows again, with the one under the cursor on the screen."""
        self.refresh()
        if self.has_focus:
            ys = [y for y, line in enumerate(self._lines) if line.row == self.cursor]
            if ys and self.parent is not None:
                place = Region(0, ys[0], self.size.width, len(ys)).translate(self.virtual_region.offset)
                self.screen.query_one("#tables").scroll_to_region(place, animate=False)

    def move_cursor(self, row: int) -> None:
        self.cursor = max(0, min(row, len(self.table.rows) - 1))
        self._show_cursor()

    def action_move(self, rows: int) -> None:
        """Moves the cursor; past the first and the last row to the next table."""
        if 0 <= self.cursor + rows < len(self.table.rows):
            self.move_cursor(self.cursor + rows)
            return
        section = self.screen.focus_next() if rows > 0 else self.screen.focus_previous()
        if isinstance(section, TableSection):
            section.move_cursor(0 if rows > 0 else len(section.table.rows) - 1)

    def action_select(self) -> None:
        key = self.table.keys[self.cursor] if self.cursor < len(self.table.keys) else ""
        self.post_message(self.RowSelected(self, key))
