"""Values and messages of equal names: nothing is lost, nothing is skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.message_fields import from_message, to_message
from earl.v1 import common_pb2, layout_pb2, scheduler_pb2


@dataclass(frozen=True, slots=True)
class PublishedRegion:
    slot: int
    generation: int
    offset_bytes: int
    size_bytes: int
    checksum_block_bytes: int
    checksums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    name: str
    done: int
    mean_reward: float
    metrics: Mapping[str, float]
    gain: float | None


NUMBERS, LARGE_NUMBERS = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
REGIONS = st.builds(
    PublishedRegion,
    NUMBERS,
    LARGE_NUMBERS,
    LARGE_NUMBERS,
    LARGE_NUMBERS,
    NUMBERS,
    st.lists(LARGE_NUMBERS).map(tuple),
)
FIGURES = st.floats(allow_nan=False)
EVALUATIONS = st.builds(
    Evaluated, st.text(), NUMBERS, FIGURES, st.dictionaries(st.text(), FIGURES), st.none() | FIGURES
)
# Fields of an EvaluationResult that Evaluated lacks.
UNSET = dict.fromkeys(
    set(scheduler_pb2.EvaluationResult.DESCRIPTOR.fields_by_name) - set(Evaluated.__slots__)
)


@given(REGIONS, NUMBERS)
def test_scalars_and_sequences_survive_the_wire(region: PublishedRegion, arena: int) -> None:
    message = layout_pb2.Region.FromString(
        to_message(layout_pb2.Region, region, arena=arena).SerializeToString()
    )
    assert message.arena == arena
    assert from_message(PublishedRegion, message) == region


@given(EVALUATIONS)
def test_maps_and_optional_scalars_survive_the_wire(evaluation: Evaluated) -> None:
    sent = to_message(scheduler_pb2.EvaluationResult, evaluation, **UNSET)
    message = scheduler_pb2.EvaluationResult.FromString(sent.SerializeToString())
    result = from_message(Evaluated, message)
    assert result == evaluation
    assert type(result.metrics) is dict


@given(REGIONS, NUMBERS)
def test_what_is_given_comes_before_the_other_side(region: PublishedRegion, slot: int) -> None:
    message = to_message(layout_pb2.Region, region, arena=0, slot=slot)
    assert from_message(PublishedRegion, message) == replace(region, slot=slot)
    assert from_message(PublishedRegion, message, slot=region.slot) == region


def test_a_field_that_the_message_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"PublishedRegion\.slot cannot be read from a Worker"):
        from_message(PublishedRegion, common_pb2.Worker())


def test_a_nested_message_must_be_given() -> None:
    @dataclass
    class Stage:
        running: str

    with pytest.raises(TypeError, match=r"Stage\.running .* give it by keyword"):
        from_message(Stage, scheduler_pb2.StageStatus())
    assert from_message(Stage, scheduler_pb2.StageStatus(), running="dp2").running == "dp2"


def test_a_field_that_the_value_lacks_is_refused() -> None:
    region = PublishedRegion(1, 2, 3, 4, 5)
    with pytest.raises(TypeError, match=r"Region cannot be made of a PublishedRegion: .*arena"):
        to_message(layout_pb2.Region, region)
