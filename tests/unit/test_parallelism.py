"""Parallelisms as text and over devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import IllegalParallelism
from earl.parallelism import Parallelism

DEGREES = st.integers(1, 9)
LAYOUTS = st.builds(Parallelism, DEGREES, DEGREES, DEGREES, DEGREES)


@given(LAYOUTS)
def test_what_is_written_is_read_again(layout):
    assert Parallelism.parse(str(layout)) == layout
    assert (
        Parallelism.parse(",".join(f"{name}={degree}" for name, degree in layout.as_dict().items())) == layout
    )


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("tp=4", Parallelism(tp=4)),
        ("dp=2,tp=4", Parallelism(2, 4)),
        (" pp2 · cp=3 ", Parallelism(cp=3, pp=2)),
        ("tp1", Parallelism()),
    ],
)
def test_degrees_are_read_in_any_order(text, layout):
    assert Parallelism.parse(text) == layout


@pytest.mark.parametrize(
    "text", ["", "4", "tp", "tp=", "tp=-1", "tp=4.0", "ep=2", "tp=2,tp=4", "tp=" + "9" * 5000]
)
def test_what_is_none_is_refused_with_its_value_and_the_way_to_write_one(text):
    with pytest.raises(IllegalParallelism) as error:
        Parallelism.parse(text)
    assert repr(text) in error.value.message and "dp=2,tp=4" in error.value.remedy


@pytest.mark.parametrize("name", ["dp", "tp", "cp", "pp"])
def test_a_degree_of_nothing_is_refused_by_name(name):
    for make in (lambda: Parallelism(**{name: 0}), lambda: Parallelism.parse(f"{name}=0")):
        with pytest.raises(IllegalParallelism, match=f"{name} = 0.*at least 1"):
            make()


@given(LAYOUTS, st.integers(1, 64))
def test_replicas_spread_over_devices_or_do_not_divide_them(layout, devices):
    spread = layout.over(devices)
    size = layout.tp * layout.cp * layout.pp
    if spread is None:
        assert devices % size
    else:
        assert spread.replica == layout.replica and spread.devices == devices
    assert layout.over(layout.devices) == layout
