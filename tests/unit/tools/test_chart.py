"""Positions, ticks and texts of charts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.drawings import Drawing
from tools.chart import Chart, ChartAxis, Plot, bytes_text, spread, tokens_text


def test_an_axis_places_its_ends_and_its_middle():
    assert [ChartAxis(0, 10, 100, 300).position(value) for value in (0, 5, 10)] == [100, 200, 300]
    logarithmic = ChartAxis(1, 16, 200, 0, log=True)
    assert [logarithmic.position(value) for value in (1, 4, 16)] == [200, 100, 0]


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(1.0, [0, 0.5, 1]), (38.0, [0, 20]), (40.0, [0, 20, 40]), (7.0, [0, 5]), (480.0, [0, 200, 400])],
)
def test_ticks_are_round_and_within_the_axis(high: float, ticks: list[float]):
    assert ChartAxis(0, high, 0, 1).ticks(2) == ticks


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.floats(0, 20),
)
def test_labels_are_moved_apart_in_their_order(positions: list[float], gap: float):
    placed = spread(positions, gap, 0, 100)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in placed)
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    assert all(placed[after] - placed[before] >= gap - 1e-6 for before, after in itertools.pairwise(order))


def test_labels_that_are_apart_stay():
    assert spread([70.0, 10.0, 40.0], 30, 0, 100) == [70.0, 10.0, 40.0]
    assert spread([50.0, 50.0], 20, 0, 100) == [40.0, 60.0]
    assert spread([95.0, 99.0], 20, 0, 100) == [79.5, 99.5]


@pytest.mark.parametrize(
    ("tokens", "text"), [(512, "512"), (1024, "1K"), (1536, "1.5K"), (46_848, "45.8K"), (131_072, "128K")]
)
def test_tokens_are_counted_in_1024(tokens: int, text: str):
    assert tokens_text(tokens) == text


@pytest.mark.parametrize(
    ("size", "text"), [(7, "7 B"), (139_264, "136 KiB"), (71_303_168, "68 MiB"), (15.6 * 2**30, "15.6 GiB")]
)
def test_bytes_have_three_digits_at_most(size: float, text: str):
    assert bytes_text(size) == text


def test_words_are_escaped_and_a_mark_keeps_its_value():
    chart = Chart(100, "a < b", 'of "c" & d')
    plot = Plot(chart, ChartAxis(0, 1, 10, 90), ChartAxis(0, 1, 90, 10))
    plot.dot(0.5, 0.5, "blue", "5 > 4")
    plot.line([(0, 0), (1, 1)], "blue", "up")
    chart.words(10, 90, "<&>")
    drawing = Drawing.parsed(chart.svg())
    assert drawing.words == ["a < b", "<&>"] and drawing.marks("circle").keys() == {"5 > 4"}
    assert drawing.marks("circle")["5 > 4"].attrib["cx"] == "50"
    assert drawing.marks("polyline")["up"].attrib["points"] == "10,90 90,10"
