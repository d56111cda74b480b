"""The key `devices`: what it takes, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.devices import DeviceChoice, shown_devices
from earl.config.load import load_run
from earl.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ("auto", DeviceChoice()),
        (1, DeviceChoice(count=1)),
        (8, DeviceChoice(count=8)),
        ("0", DeviceChoice(numbers=(0,))),
        ("0-3", DeviceChoice(numbers=(0, 1, 2, 3))),
        ("4, 6-7,0", DeviceChoice(numbers=(4, 6, 7, 0))),
    ],
)
def test_what_the_key_takes(value, choice):
    assert DeviceChoice.of(value) == choice


WRONG = ["", "gpu", "-1", "0-", "3-0", "0,0", "0-2,1", "1,,2", "0-99999", "cuda:0", "0;1"]


@pytest.mark.parametrize("stage", ["rollout", "trainer", "reference"])
@pytest.mark.parametrize(
    "value", [*(f'"{text}"' for text in WRONG), "0", "-2", "1.5", "true", "[0, 1]", "5000"]
)
def test_what_it_refuses_names_the_value_and_what_would_do(tmp_path: Path, stage, value):
    file = tmp_path / "run.toml"
    file.write_text(f'name = "a"\n[environment]\nname = "e"\n[{stage}]\ndevices = {value}\n')
    with pytest.raises(ConfigError, match=f"{stage}.devices") as caught:
        load_run(file)
    assert 'give "auto", how many devices' in caught.value.remedy and "\n" not in str(caught.value)


@given(st.sets(st.integers(0, 20), min_size=1))
def test_shown_numbers_are_read_again(numbers):
    assert set(DeviceChoice.of(shown_devices(tuple(numbers))).numbers) == numbers
