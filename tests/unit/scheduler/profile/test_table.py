"""Checks what a profile predicts: at its rows, between them, beyond them, and what does not fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.roofline import Roofline
from services.scheduler.profile.rows import ProfileRow, parse
from services.scheduler.profile.surface import Surface
from services.scheduler.profile.table import ProfileTable

CONTEXTS, LOADS = (512.0, 2048.0, 8192.0), (8.0, 32.0, 128.0)
GRID = [(context, load) for context in CONTEXTS for load in LOADS]
TP4 = Parallelism(2, 4)
VALUES = st.floats(1e-6, 1e6)
quick = settings(max_examples=50)


def near(a: float, b: float, relative: float = 1e-6) -> bool:
    return math.isclose(a, b, rel_tol=relative)


def row(
    layout: Parallelism, context: float, load: float, rate: float | None = 100.0, fraction=None
) -> ProfileRow:
    return ProfileRow("rollout", layout, context, load, rate, fraction, rate is None and fraction is None)


def table(*rows: ProfileRow) -> ProfileTable:
    return ProfileTable(rows, "rollout")


@st.composite
def ragged(draw):
    """Points that form no grid, and a value for each."""
    lengths = st.integers(0, 200).map(lambda at: 1.07**at)
    loads = st.integers(0, 140).map(lambda at: 1.07**at)
    points = draw(st.lists(st.tuples(lengths, loads), min_size=1, max_size=8, unique=True))
    return points, [draw(VALUES) for _ in points]


GROWTHS = st.tuples(st.floats(1, 8), st.floats(1, 8))


@st.composite
def place(draw, factor: float = 1e4):
    """A point within the grid, or beyond it by up to a factor."""
    log = math.log(factor)
    context = draw(st.floats(math.log(CONTEXTS[0]) - log, math.log(CONTEXTS[-1]) + log))
    load = draw(st.floats(math.log(LOADS[0]) - log, math.log(LOADS[-1]) + log))
    return math.exp(context), math.exp(load)


# --- surface --------------------------------------------------------------------------------


@quick
@given(ragged(), st.sampled_from((Roofline.of_time, Roofline.of_memory)))
def test_a_surface_is_exact_at_its_points(points, shape):
    surface = Surface(points[0], points[1], shape)
    for point, value in zip(*points, strict=True):
        assert surface.value_at(*point) == (value, "measured")


@quick
@given(
    ragged(),
    st.sampled_from((Roofline.of_time, Roofline.of_memory)),
    st.floats(1e-3, 1e9),
    st.floats(1e-6, 1e9),
)
def test_every_point_has_a_value(points, shape, context, load):
    value, _ = Surface(points[0], points[1], shape).value_at(context, load)
    assert 0 < value < math.inf


@quick
@given(
    st.lists(VALUES, min_size=9, max_size=9),
    st.integers(0, 1),
    st.integers(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_between_points_it_is_within_the_neighbours(values, i, j, right, up):
    context = CONTEXTS[i] ** (1 - right) * CONTEXTS[i + 1] ** right
    load = LOADS[j] ** (1 - up) * LOADS[j + 1] ** up
    value, source = Surface(GRID, values, Roofline.of_time).value_at(context, load)
    around = [values[3 * a + b] for a in (i, i + 1) for b in (j, j + 1)]
    assert min(around) * (1 - 1e-9) <= value <= max(around) * (1 + 1e-9)
    assert source != "extrapolated" or (right in (0, 1) or up in (0, 1))


@quick
@given(VALUES, st.floats(-2, 2), st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1))
def test_power_laws_are_exact_between_points(scale, a, b, right, up):
    values = [scale * context**a * load**b for context, load in GRID]
    context, load = (low ** (1 - by) * high**by for low, high, by in ((512, 8192, right), (8, 128, up)))
    value, _ = Surface(GRID, values, Roofline.of_time).value_at(context, load)
    assert near(value, scale * context**a * load**b)


@quick
@given(*[st.floats(0.01, 1.0)] * 3, place(100.0))
def test_beyond_points_a_roofline_is_followed(weights, compute, kv, point):
    def seconds(context: float, load: float) -> float:
        return weights / load + compute / 100 + kv * context / 1e5

    value, source = Surface(GRID, [seconds(*one) for one in GRID], Roofline.of_time).value_at(*point)
    outside = not (CONTEXTS[0] <= point[0] <= CONTEXTS[-1])
    if source == "extrapolated" and outside and not (LOADS[0] <= point[1] <= LOADS[-1]):
        assert near(value, seconds(*point), 1e-3)
    else:
        assert near(value, seconds(*point), 0.25)


@quick
@given(ragged(), st.data())
def test_it_is_continuous_where_lines_of_points_end(points, data):
    surface = Surface(points[0], points[1], Roofline.of_time)
    lines = sorted({context for context, _ in points[0]})
    context = data.draw(st.floats(lines[0] / 4, lines[-1] * 4))
    load = data.draw(st.sampled_from(sorted({load for _, load in points[0]})))
    for border in ((context, load), (lines[0], load * 1.01), (lines[-1], load * 1.01)):
        middle, *around = (
            surface.value_at(border[0] * (1 + a), border[1] * (1 + b))[0]
            for a, b in ((0, 0), (1e-12, 0), (-1e-12, 0), (0, 1e-12), (0, -1e-12))
        )
        assert all(near(middle, one, 1e-3) for one in around), border


@quick
@given(st.data(), st.booleans())
def test_memory_that_grows_in_the_rows_grows_everywhere(data, inside):
    terms = [data.draw(st.floats(0.01, 1.0)) for _ in range(4)]

    def fraction(context: float, load: float) -> float:
        m, b, length, kv = terms
        return m + b * load / 100 + length * context / 1e4 + kv * context * load / 1e6

    surface = Surface(GRID, [fraction(*one) for one in GRID], Roofline.of_memory)
    (context, load), longer, more = data.draw(place(1.0 if inside else 1e4)), *data.draw(GROWTHS)
    if inside:
        longer, more = min(longer, CONTEXTS[-1] / context), min(more, LOADS[-1] / load)
    # Beyond the rows, what interpolation is off by at their border is carried along.
    tolerance = 1e-9 if inside else 0.05
    assert surface.value_at(context, load)[0] <= surface.value_at(context * longer, load * more)[0] * (
        1 + tolerance
    )


@pytest.mark.parametrize("shape", [Roofline.of_time, Roofline.of_memory])
def test_one_point_is_the_same_everywhere(shape):
    surface = Surface([(1000.0, 16.0)], [3.0], shape)
    assert surface.value_at(1000, 16) == (3.0, "measured")
    for point in ((1, 1), (1000, 64), (1e6, 1e4)):
        value, source = surface.value_at(*point)
        assert near(value, 3.0) and source == "extrapolated"


def test_of_equal_points_the_last_counts():
    assert Surface([(8, 8), (8, 8)], [1.0, 2.0], Roofline.of_time).value_at(8, 8)[0] == 2.0


@quick
@given(*[st.floats(1e-9, 1e3)] * 4)
def test_a_roofline_finds_the_sum_that_its_values_come_from(a, b, c, d):
    def seconds(context: float, load: float) -> float:
        return a + b / load + c * context + d / (context * load)

    fitted = Roofline.of_time(GRID, [seconds(*one) for one in GRID])
    assert all(near(fitted.value_at(*one), seconds(*one), 1e-4) for one in GRID)
    assert near(fitted.value_at(65536, 1024), seconds(65536, 1024), 1e-2)


# --- table ----------------------------------------------------------------------------------


@quick
@given(st.lists(VALUES, min_size=9, max_size=9), place())
def test_throughput_is_exact_at_rows_and_positive_everywhere(rates, point):
    of = table(*(row(TP4, *at, rate) for at, rate in zip(GRID, rates, strict=True)))
    for at, rate in zip(GRID, rates, strict=True):
        found = of.predict(TP4, *at)
        assert near(found.tokens_per_device_s, rate) and found.fits and found.source == "measured"
    found = of.predict(TP4, *point)
    assert 0 < found.tokens_per_device_s < math.inf and found.fits and found.memory_fraction is None


@pytest.mark.parametrize("bad", [{"rate": None}, {"fraction": 1.2}, {"rate": None, "fraction": 1.01}])
@settings(max_examples=30)
@given(point=place())
def test_what_does_not_fit_extends_to_everything_longer_and_more_concurrent(bad, point):
    of = table(row(TP4, 512, 8), row(TP4, 2048, 32, **bad))
    found = of.predict(TP4, *point)
    beyond = point[0] >= 2048 and point[1] >= 32
    if beyond:
        assert not found.fits and "2048 tokens x 32 sequences" in found.reason
    elif "fraction" not in bad:
        assert found.fits and not found.reason
    assert found.tokens_per_device_s > 0


@quick
@given(st.lists(st.sampled_from(GRID), max_size=4), place(8.0))
def test_it_fits_unless_a_row_below_says_otherwise(bursts, point):
    of = table(row(TP4, 1, 1), *(row(TP4, at[0], at[1], None) for at in bursts))
    fits = not any(point[0] >= context and point[1] >= load for context, load in bursts)
    assert of.predict(TP4, *point).fits == fits


def test_predicted_memory_above_a_device_does_not_fit():
    of = table(row(TP4, 1000, 10, 100, 0.3), row(TP4, 2000, 10, 100, 0.5))
    assert of.predict(TP4, 3000, 10).memory_fraction == pytest.approx(0.7)
    assert of.predict(TP4, 3000, 10).fits
    beyond = of.predict(TP4, 5000, 10)
    assert not beyond.fits and beyond.source == "extrapolated" and "110%" in beyond.reason


def test_without_a_throughput_nothing_fits():
    of = table(row(TP4, 1000, 10, None, 0.3), row(Parallelism(8), 1000, 10))
    found = of.predict(TP4, 1000, 10)
    assert (found.tokens_per_device_s, found.fits, found.reason) == (
        0,
        False,
        "the profile has no throughput of it",
    )


@quick
@given(place(100.0), st.sampled_from((1, 2, 3, 4, 6)))
def test_replicas_work_alike_at_the_same_share_of_the_load(point, dp):
    rows = [row(TP4, *at, 1000 / at[0] * at[1]) for at in GRID]
    of = table(*rows, row(TP4, 8192, 512, None))
    context, load = point
    found, here = of.predict(Parallelism(dp, 4), context, load * dp), of.predict(TP4, context, load * 2)
    assert near(found.tokens_per_device_s, here.tokens_per_device_s) and found.fits == here.fits


def test_shares_of_what_does_not_fit_are_exact():
    of = table(row(Parallelism(1, 4), 1000, 1), row(Parallelism(1, 4), 1000, 32, None))
    for dp in (2, 3, 5, 6, 7, 11):
        assert not of.predict(Parallelism(dp, 4), 1000, 32 * dp).fits
        assert of.predict(Parallelism(dp, 4), 1000, 32 * dp - 1).fits


def test_of_several_rows_of_a_replica_the_nearest_dp_serves():
    of = table(row(Parallelism(1, 4), 1000, 8, 10.0), row(Parallelism(8, 4), 1000, 64, 80.0))
    assert of.predict(Parallelism(2, 4), 1000, 16).tokens_per_device_s == 10.0
    assert of.predict(Parallelism(4, 4), 1000, 32).tokens_per_device_s == 80.0


def test_candidates_are_what_divides_the_devices():
    of = table(
        *(row(Parallelism(8 // tp, tp), 1000, 8) for tp in (1, 2, 4, 8)), row(Parallelism(2, 4), 2000, 8)
    )
    assert of.parallelisms == tuple(Parallelism(8 // tp, tp) for tp in (8, 4, 2, 1))
    assert of.candidates(8) == of.parallelisms
    assert of.candidates(6) == (Parallelism(3, 2), Parallelism(6, 1))
    assert of.candidates(1) == (Parallelism(),)
    with pytest.raises(ConfigError, match=r"\(dp2·tp4\) divides 6 devices; profile one"):
        table(row(TP4, 1000, 8)).candidates(6)


def test_what_the_profile_lacks_is_said():
    of = table(row(TP4, 1000, 8))
    with pytest.raises(ConfigError, match=r"no rows of dp8; it has dp2·tp4; measure more"):
        of.predict(Parallelism(8), 1000, 8)
    with pytest.raises(ConfigError, match="no rows of stage 'trainer'; measure it"):
        ProfileTable(of.rows, "trainer")


def test_a_stage_has_its_own_rows():
    rows = [row(TP4, 1000, 8), ProfileRow("trainer", TP4, 9000, 99, 7.0)]
    of = ProfileTable(rows, "trainer")
    assert of.points == [(9000, 99)] and of.extent == (9000, 99)
    assert of.predict(TP4, 9000, 99).tokens_per_device_s == 7.0


LENGTHS_ALONE = """stage,dp,tp,context_tokens,concurrency,tokens_per_device_s
rollout,8,1,2048,32,200
rollout,8,1,8192,32,120
rollout,2,4,2048,32,131
rollout,2,4,16384,32,95
rollout,1,8,2048,32,100
rollout,1,8,16384,32,100
"""


@pytest.mark.parametrize("load", [1, 8, 64, 1024])
def test_one_profiled_load_ranks_alike_at_every_other(load: float):
    table = ProfileTable(parse(LENGTHS_ALONE, "lengths.csv"), "rollout")
    for context in (512, 2048, 5000, 16384):
        for one in table.candidates(8):
            rates = [table.predict(one, context, each).tokens_per_device_s for each in (32, load)]
            assert near(rates[0], rates[1])


def test_what_other_loads_change_is_learned_from_whoever_was_profiled_at_them():
    rows = LENGTHS_ALONE + "rollout,1,8,2048,128,300\n"
    table = ProfileTable(parse(rows, "loads.csv"), "rollout")
    for one in table.candidates(8):
        few, some, many = (table.predict(one, 2048, each).tokens_per_device_s for each in (8, 32, 128))
        assert few < some < many
    # What a parallelism's own rows say of lengths stays its own.
    tp1, tp8 = Parallelism(8, 1), Parallelism(1, 8)
    assert table.predict(tp1, 8192, 32).tokens_per_device_s == 120
    assert (
        table.predict(tp1, 32768, 32).tokens_per_device_s
        < 80
        < table.predict(tp8, 16384, 32).tokens_per_device_s
    )


def test_memory_at_another_load_is_taken_to_grow_with_it():
    rows = "stage,tp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction\n"
    rows += "rollout,1,1024,16,100,0.3\nrollout,1,4096,16,80,0.6\n"
    table = ProfileTable(parse(rows, "memory.csv"), "rollout")
    assert table.predict(Parallelism(), 4096, 16).fits
    twice, four = (table.predict(Parallelism(), 4096, load) for load in (32, 64))
    assert twice.memory_fraction is not None and near(twice.memory_fraction, 1.0, 0.01)
    assert not four.fits
