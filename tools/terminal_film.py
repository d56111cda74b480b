"""Draws what a terminal was sent as one animated SVG that needs nothing else: no script, no font, no address.

    Cast ─► Screen (pyte) ─► frames: rows and cursor at their times, waits cut ─► SVG

Each row of the screen is a film of its own, all that it ever shows one below the other; CSS moves it behind a
window of one row. Who has asked for less motion sees the last frame.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

import pyte

# Waits are shortened to this, changes within a frame are shown as one, the end stays for a while. What is
# shown faster than it was has longer frames: it is many bytes.
LONGEST_S, FRAME_S, FAST_FRAME_S, HOLD_S = 1.0, 0.12, 0.3, 6.0
CELL, ROW, SIZE, BASE, MARGIN = 8.4, 17, 14, 13, 12
# Runs of text from here on are held to their cells, whatever the reader's font.
HELD = 6
# Private sequences that pyte would draw.
UNKNOWN = re.compile(r"\x1b\[[<=][0-9;]*[A-Za-z]")
ALTERNATE = 1049
GROUND, INK, DIM, EDGE = "0d1117", "c9d1d9", "8b949e", "30363d"
NAMED = {
    "black": "484f58", "red": "ff7b72", "green": "3fb950", "brown": "d29922", "blue": "58a6ff",
    "magenta": "bc8cff", "cyan": "39c5cf", "white": "b1bac4",
    "brightblack": "6e7681", "brightred": "ffa198", "brightgreen": "56d364", "brightbrown": "e3b341",
    "brightblue": "79c0ff", "brightmagenta": "d2a8ff", "brightcyan": "56d4dd",
    "brightwhite": "f0f6fc",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """An event. at_s: since the start. kind: "o" for output; "m" for the speed at which the rest is shown."""

    at_s: float
    kind: str
    text: str


@dataclass(slots=True)
class Cast:
    """A recording, in asciinema's format (asciicast v2) as text."""

    columns: int
    lines: int
    events: list[Event] = field(default_factory=list)

    def dumps(self) -> str:
        head = {"version": 2, "width": self.columns, "height": self.lines}
        rows = [[round(event.at_s, 4), event.kind, event.text] for event in self.events]
        return "".join(f"{json.dumps(line)}\n" for line in (head, *rows))

    @classmethod
    def loads(cls, text: str) -> Cast:
        head, *rows = map(json.loads, text.splitlines())
        return cls(head["width"], head["height"], [Event(*row) for row in rows])

    def refuse(self, secrets: Iterable[str]) -> None:
        """Raises ValueError if any screen shows one of `secrets`."""
        screen = Screen(self.columns, self.lines)
        for event in self.events:
            if event.kind == "o":
                screen.feed(event.text)
                # A line that is full continues in the next line.
                shown = f"{screen.text}\n{screen.text.replace(chr(10), '')}"
                if leaked := [
                    secret for secret in secrets if re.search(rf"(?<!\w){re.escape(secret)}\b", shown)
                ]:
                    raise ValueError(f"the terminal shows {leaked[0]}; run what shows relative paths")


class _Emulated(pyte.Screen):
    """pyte's screen, with the second screen that full-screen programs draw on. titles: how many were set."""

    titles = 0
    _first: tuple[Any, Any] | None = None

    def set_title(self, param: str) -> None:
        if param.startswith(";"):
            return  # the end of another command, of two digits: pyte knows those of one alone
        super().set_title(param)
        self.titles += 1

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        if kwargs.get("private") and ALTERNATE in modes and self._first is None:
            self._first = copy.deepcopy(self.buffer), copy.copy(self.cursor)
            self.erase_in_display(2)
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        super().reset_mode(*modes, **kwargs)
        if kwargs.get("private") and ALTERNATE in modes and self._first is not None:
            (self.buffer, self.cursor), self._first = self._first, None


@dataclass(frozen=True, slots=True)
class Style:
    """Colours as rrggbb."""

    ink: str = INK
    ground: str = GROUND
    bold: bool = False


@dataclass(frozen=True, slots=True)
class TerminalRun:
    """Cells of the same style in a row, from `column` on."""

    column: int
    text: str
    style: Style
    cells: int


Row = tuple[TerminalRun, ...]


class Screen:
    """The screen of a terminal after the output that it was sent."""

    def __init__(self, columns: int, lines: int) -> None:
        self._screen = _Emulated(columns, lines)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        self._stream.feed(UNKNOWN.sub("", text))

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    @property
    def title(self) -> str:
        return self._screen.title

    @property
    def titles(self) -> int:
        """The number of titles that were set so far."""
        return self._screen.titles

    @property
    def cursor(self) -> tuple[int, int] | None:
        """The cursor's column and line, None while it is hidden."""
        cursor = self._screen.cursor
        return None if cursor.hidden else (min(cursor.x, self._screen.columns - 1), cursor.y)

    def rows(self) -> tuple[Row, ...]:
        return tuple(self._row(number) for number in range(self._screen.lines))

    def _row(self, number: int) -> Row:
        line, runs = self._screen.buffer[number], []
        column = 0
        while column < self._screen.columns:
            style, begin, text = styled(line[column]), column, ""
            while column < self._screen.columns and styled(line[column]) == style:
                text += line[column].data  # "" right of a wide one
                column += 1
            runs.append(TerminalRun(begin, text, style, column - begin))
        return tuple(run for run in runs if run.text.strip() or run.style.ground != GROUND)


def styled(cell: Any) -> Style:
    ink, ground = colour(cell.fg, INK), colour(cell.bg, GROUND)
    return Style(*((ground, ink) if cell.reverse else (ink, ground)), bold=cell.bold)


def colour(name: str, default: str) -> str:
    return default if name == "default" else NAMED.get(name, name).lower()


@dataclass(frozen=True, slots=True)
class FilmFrame:
    """A screen of the film. at_s: when it is shown. real_s: when it was recorded. cursor: column, line."""

    at_s: float
    real_s: float
    rows: tuple[Row, ...]
    cursor: tuple[int, int] | None


def frames(cast: Cast) -> list[FilmFrame]:
    """The screens of a recording in order; each differs from the screen before."""
    screen, shown = Screen(cast.columns, cast.lines), []
    shown_s = last_s = 0.0
    speed, pending_s = 1.0, None

    def take(at_s: float, real_s: float) -> None:
        frame = FilmFrame(at_s, real_s, screen.rows(), screen.cursor)
        if not shown or (shown[-1].rows, shown[-1].cursor) != (frame.rows, frame.cursor):
            shown.append(frame)

    for event in cast.events:
        shown_s += min((event.at_s - last_s) / speed, LONGEST_S)
        if pending_s is not None and shown_s - pending_s >= (FRAME_S if speed == 1 else FAST_FRAME_S):
            take(pending_s, last_s)
            pending_s = None
        last_s = event.at_s
        if event.kind == "m":
            speed = speed_of(event.text)[0]
            continue
        pending_s = shown_s if pending_s is None else pending_s
        screen.feed(event.text)
    if pending_s is not None:
        take(pending_s, last_s)
    return shown


def speed_of(mark: str) -> tuple[float, str]:
    """ "10 earl top" → 10 and what is shown so fast."""
    speed, _, what = mark.partition(" ")
    return float(speed), what


def caption(cast: Cast) -> str:
    """The film's caption, which tells how its times were changed."""
    text = f"A real run. Waits are shortened to {LONGEST_S:g} s"
    for event in cast.events:
        if event.kind == "m" and (mark := speed_of(event.text))[0] > 1:
            text += f"; {mark[1]} is shown {mark[0]:g} times as fast"
    return f"{text}."


def drawn(cast: Cast) -> str:
    """The SVG. The last frame is what it shows without animation."""
    shown = frames(cast)
    return Film(cast, shown).svg()


class Film:
    """Draws frames as an SVG."""

    def __init__(self, cast: Cast, shown: Sequence[FilmFrame]) -> None:
        self._cast, self._shown = cast, shown
        self._length_s = shown[-1].at_s + HOLD_S
        self._classes: dict[str, str] = {}
        self._css: list[str] = []
        self._films = 0

    def svg(self) -> str:
        width = self._cast.columns * CELL + 2 * MARGIN
        height = (self._cast.lines + 2) * ROW + 2 * MARGIN
        inside = [self._row(number) for number in range(self._cast.lines)]
        inside.append(self._cursor())
        inside.append(self._caption())
        title = escape(f"{caption(self._cast)} {clock(self._shown[-1].real_s)}")
        style = (
            f"text{{fill:#{INK}}}"
            f"svg svg>g,.c{{animation:{self._length_s:.2f}s step-end infinite}}"
            f"@media(prefers-reduced-motion:reduce){{svg svg>g,.c{{animation:none!important}}}}"
        )
        font = "ui-monospace,SFMono-Regular,Menlo,Consolas,&quot;DejaVu Sans Mono&quot;,monospace"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'font-family="{font}" font-size="{SIZE}"><title>{title}</title>'
            f"<style>{style}{''.join(self._css)}</style>\n"
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="#{GROUND}" '
            f'stroke="#{EDGE}"/><g transform="translate({MARGIN} {MARGIN})">\n'
            + "\n".join(inside)
            + "\n</g></svg>\n"
        )

    def _row(self, number: int) -> str:
        rows = [frame.rows[number] for frame in self._shown]
        return self._film(number * ROW, rows, self._picture)

    def _film(self, y: float, contents: Sequence[Any], picture: Any) -> str:
        """One row of the film: a window that keyframes move over what the row shows in each frame."""
        places: dict[Any, int] = {}
        stops: list[tuple[float, int]] = []
        for frame, content in zip(self._shown, contents, strict=True):
            place = places.setdefault(content, len(places))
            if not stops or stops[-1][1] != place:
                stops.append((frame.at_s, place))
        pictures = "".join(picture(content, place * ROW) for content, place in places.items())
        if not pictures:
            return ""
        name = ""
        if len(stops) > 1:
            name = f' class="{self._animated([(at_s, f"0,{-place * ROW}px") for at_s, place in stops])}"'
        return f'<svg y="{y:g}" height="{ROW}"><g{name}>{pictures}</g></svg>'

    def _animated(self, stops: Sequence[tuple[float, str]]) -> str:
        """The class of what is moved so, and stays where the last one puts it."""
        self._films += 1
        name = f"f{self._films}"
        steps = [
            f"{100 * at_s / self._length_s:.2f}%{{transform:translate({place})}}"
            for at_s, place in [(0.0, stops[0][1]), *stops[1:]]
        ]
        self._css.append(
            f"@keyframes {name}{{{''.join(steps)}}}"
            f"svg .{name}{{animation-name:{name};transform:translate({stops[-1][1]})}}\n"
        )
        return name

    def _picture(self, row: Row, top: float) -> str:
        """A row's backgrounds and texts."""
        back = "".join(
            f'<path fill="#{ground}" d="M{short(column * CELL)} {top:g}h{short(cells * CELL)}v{ROW}'
            f'h-{short(cells * CELL)}z"/>'
            for column, cells, ground in grounds(row)
        )
        words = "".join(self._word(run, column, text) for run in row for column, text in pieces(run))
        return back + (f'<text y="{top + BASE:g}">{words}</text>' if words else "")

    def _word(self, run: TerminalRun, column: int, text: str) -> str:
        name = self._class(run.style)
        held = f' textLength="{short(len(text) * CELL)}"' if len(text) >= HELD else ""
        return f'<tspan x="{short(column * CELL)}"{name}{held}>{escape(text)}</tspan>'

    def _class(self, style: Style) -> str:
        rule = f"fill:#{style.ink}" if style.ink != INK else ""
        rule += ";font-weight:bold" if style.bold else ""
        if not rule:
            return ""
        if rule not in self._classes:
            self._classes[rule] = f"i{len(self._classes)}"
            self._css.append(f".{self._classes[rule]}{{{rule.removeprefix(';')}}}\n")
        return f' class="{self._classes[rule]}"'

    def _cursor(self) -> str:
        stops: list[tuple[float, str]] = []
        for frame in self._shown:
            column, line = frame.cursor or (-2, -2)
            place = f"{short(column * CELL)}px,{line * ROW}px"
            if not stops or stops[-1][1] != place:
                stops.append((frame.at_s, place))
        name = self._animated(stops)
        return f'<path class="c {name}" fill="#{INK}" opacity=".6" d="M0 0h{CELL}v{ROW}h-{CELL}z"/>'

    def _caption(self) -> str:
        """The caption, and the time of the recording at each frame."""
        y, right = (self._cast.lines + 1) * ROW, self._cast.columns - len("00:00")
        text = TerminalRun(0, caption(self._cast), Style(DIM), 0)
        clocks = [(TerminalRun(right, f"{clock(frame.real_s):>5}", Style(DIM), 0),) for frame in self._shown]
        return f'<g transform="translate(0 {y})">{self._picture((text,), 0)}</g>' + self._film(
            y, clocks, self._picture
        )


def grounds(row: Row) -> list[tuple[int, int, str]]:
    """Column, cells and colour of each background in a row that is not the terminal's."""
    spans: list[tuple[int, int, str]] = []
    for run in row:
        if run.style.ground == GROUND:
            continue
        column, cells, ground = spans[-1] if spans else (-1, 0, "")
        if column + cells == run.column and ground == run.style.ground:
            spans[-1] = column, cells + run.cells, ground
        else:
            spans.append((run.column, run.cells, run.style.ground))
    return spans


def pieces(run: TerminalRun) -> list[tuple[int, str]]:
    """A run's texts with their columns, split at two spaces or more, so that each stands in its column."""
    texts = []
    for match in re.finditer(r"\S+(?: \S+)*", run.text):
        texts.append((run.column + match.start(), match[0]))
    return texts


def short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
