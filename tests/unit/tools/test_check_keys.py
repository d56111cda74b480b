"""Every key of a run file needs a description, an advice and, if it is a number, a decision on its unit."""

from __future__ import annotations

import pytest
from pydantic import Field

from earl.config import keys
from earl.config.base import ConfigSection
from earl.config.descriptions import KeyComment, comments
from earl.config.units import UNITS, unit
from tools.check_keys import incomplete, lacking


class ExampleSection(ConfigSection):
    # Seconds that a test
    # may take.
    #
    # Raise it on slow
    # machines.
    #
    # Lower it on fast ones.
    limit_s: float = 1.0
    # Only what it is.
    speed: int = Field(default=1, ge=1)
    bare: str = ""


def test_the_keys_of_a_run_file_lack_nothing():
    assert len(keys.leaves()) > 150
    assert incomplete() == []


def test_a_comment_is_read_as_description_and_advice():
    assert comments(ExampleSection) == {
        "limit_s": KeyComment(
            "Seconds that a test may take.", "Raise it on slow machines. Lower it on fast ones."
        ),
        "speed": KeyComment("Only what it is.", ""),
        "bare": KeyComment("", ""),
    }


@pytest.mark.parametrize(
    ("comment", "unit_name", "message"),
    [
        (("", "Raise it on slow machines."), "", "x has no description; write above its field"),
        (("What it is.", ""), "", "x has no advice; write below its description"),
        (("What it is", "Raise it on slow machines."), "", "x's comment does not end with a full stop;"),
        (("What it is.", "Raise it on slow machines."), None, "x is a number without a unit; add the end of"),
    ],
)
def test_what_a_key_lacks_is_named(comment: tuple[str, str], unit_name: str | None, message: str):
    (line,) = lacking("x", KeyComment(*comment), unit_name)
    assert line.startswith(message)


def test_a_complete_key_lacks_nothing():
    assert lacking("x", KeyComment("What it is.", "Raise it on slow machines."), "seconds") == []


def test_a_unit_is_decided_by_the_end_of_a_numbers_name():
    fields = ExampleSection.model_fields
    assert unit("example.limit_s", fields["limit_s"]) == "seconds"
    assert unit("example.speed", fields["speed"]) is None
    assert unit("example.bare", fields["bare"]) == ""  # a text has none
    assert unit("scheduler.heartbeats_per_s", keys.leaves()["scheduler.heartbeats_per_s"]) == (
        "heartbeats per second"
    )


def test_no_unit_is_left_that_no_key_has():
    numbers = [key for key, field in keys.leaves().items() if field.annotation in (int, float)]
    ends = {end for end in UNITS if any(f".{key}".endswith((f".{end}", f"_{end}")) for key in numbers)}
    assert set(UNITS) == ends
