"""The film of a terminal: what it shows, when, and that it needs nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.film import animated, needs_nothing, still
from tests.support.paths import ROOT
from tools.terminal_film import FRAME_S, LONGEST_S, Cast, Event, Screen, Style, caption, drawn, frames

FIGURES = ROOT / "docs" / "figures"


def cast(*events: tuple[float, str, str]) -> Cast:
    return Cast(40, 4, [Event(*event) for event in events])


def test_the_recording_in_readme_is_small_moves_and_needs_nothing() -> None:
    file = FIGURES / "recording.svg"
    svg = file.read_text(encoding="utf-8")
    assert file.stat().st_size < 400_000
    needs_nothing(svg)
    assert animated(svg) > 10
    shown = "\n".join(still(svg))
    assert "earl stop" in shown and "report.html" in shown and "A real run." in shown


def test_waits_are_shortened_and_what_is_marked_passes_faster() -> None:
    found = cast(
        (0.0, "o", "a"), (0.5, "o", "b"), (100.0, "o", "c"),
        (100.0, "m", "10 sleep"), (105.0, "o", "d"), (105.0, "m", "1"), (106.0, "o", "e"),
    )  # fmt: skip
    shown = frames(found)
    assert [frame.at_s for frame in shown] == pytest.approx([0.0, 0.5, 0.5 + LONGEST_S, 2.0, 3.0])
    assert [frame.real_s for frame in shown] == [0.0, 0.5, 100.0, 105.0, 106.0]
    assert caption(found) == "A real run. Waits are shortened to 1 s; sleep is shown 10 times as fast."


def test_changes_within_a_frame_are_one_and_a_screen_that_stays_is_none() -> None:
    near = [(0.01 * number, "o", str(number)) for number in range(5)]
    shown = frames(cast(*near, (1.0, "o", "\x1b[m"), (1.5, "o", "!")))
    assert ["".join(run.text for run in frame.rows[0]).strip() for frame in shown] == ["01234", "01234!"]
    assert all(after.at_s - before.at_s >= FRAME_S for before, after in pairwise(shown))


def test_a_full_screen_program_gives_back_what_it_covered() -> None:
    screen = Screen(20, 3)
    screen.feed("$ top\r\n")
    screen.feed("\x1b[?1049h\x1b[?25l\x1b[1;1Hcovered\x1b[>1u\x1b[?2026$p")
    assert "covered" in screen.text and "$ top" not in screen.text and screen.cursor is None
    screen.feed("\x1b[<u\x1b[?1049l\x1b[?25h")
    assert screen.text.split() == ["$", "top"] and screen.cursor == (0, 1)


def test_only_a_title_is_a_title() -> None:
    screen = Screen(40, 4)
    screen.feed("\x1b]2;ended 0\a")
    screen.feed("\x1b]22;default\aa")  # the pointer's shape, as full-screen programs ask for it
    assert (screen.titles, screen.title) == (1, "ended 0") and screen.text.startswith("a")


def test_colours_are_the_cells_own() -> None:
    screen = Screen(20, 1)
    screen.feed("\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3;48;5;16mtrue\x1b[7mback")
    red, true, back = screen.rows()[0]
    assert (red.text, red.style) == ("red", Style("ff7b72", bold=True))
    assert true.style == Style("010203", "000000") and back.style == Style("000000", "010203")


def test_it_is_drawn_cell_by_cell_and_still_shows_its_end() -> None:
    svg = drawn(
        cast((0.0, "o", "one  two\r\n"), (1.0, "o", "\x1b[2J\x1b[Hlast & <best>\r\n"), (2.0, "o", "$ "))
    )
    needs_nothing(svg)
    assert still(svg)[:2] == ["last & <best>", "$"]
    # The second word stands in its column, whatever is between.
    assert f'x="{5 * 8.4:g}">two' in svg
    assert animated(svg) == 4  # two rows, the cursor, the clock


def test_a_cast_is_written_and_read_back() -> None:
    made = cast((0.25, "o", "ä\x1b[m"), (1.5, "m", "1"))
    assert Cast.loads(made.dumps()) == made
    assert made.dumps().splitlines()[0] == '{"version": 2, "width": 40, "height": 4}'


def test_a_path_of_this_machine_is_refused_even_if_it_was_seen_for_a_moment() -> None:
    seen = cast((0.0, "o", "in /home/me/earl\r\n"), (0.1, "o", "\x1b[2J"))
    with pytest.raises(ValueError, match="shows /home/me"):
        seen.refuse(["/home/you", "/home/me"])
    seen.refuse(["/home/m", "ear"])
