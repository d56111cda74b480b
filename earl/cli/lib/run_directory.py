"""The configuration in a run's directory."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from earl.cli.lib.run_services import broken_record, other_version, run_json_of
from earl.config.run import RunConfig


def config_of(directory: Path) -> RunConfig:
    """The configuration of a run. Raises ConfigError."""
    try:
        return RunConfig.model_validate_json(run_json_of(directory))
    except ValidationError as error:
        what = error.errors()[0]
        if what["type"] == "json_invalid":
            raise broken_record(directory) from None
        key = ".".join(map(str, what["loc"]))
        raise other_version(directory, f"{key}: {what['msg'].lower()}") from None
