"""Checks where a run's services listen, from its run.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.cli.lib.run_services import RunServices, services_of
from earl.errors import ConfigError
from tests.support.runs import tictactoe


def test_they_are_what_the_whole_configuration_says(tmp_path: Path):
    config = tictactoe(tmp_path)
    (tmp_path / "run.json").write_text(config.model_dump_json())
    services = services_of(tmp_path)
    assert services == RunServices(config.name, config.scheduler.bind, config.gateway.bind)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "is broken: it is not JSON"),
        ("[]", "another version: name"),
        (json.dumps({"name": "x", "scheduler": {"bind": 7}}), "another version: scheduler.bind"),
        (json.dumps({"name": "x", "scheduler": {"bind": "h:1"}}), "another version: gateway.bind"),
        (b"\xff", "is broken"),
    ],
)
def test_a_file_that_does_not_say_is_an_error(tmp_path: Path, content: str | bytes, fault: str):
    (tmp_path / "run.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=fault):
        services_of(tmp_path)


def test_a_directory_without_one_is_no_run(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a run directory"):
        services_of(tmp_path)
