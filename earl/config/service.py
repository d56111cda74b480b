"""The configuration of a service that is started by itself: `python -m services.X --run FILE`.

FILE is a run file (.toml) or the run.json that a launcher wrote. The run's directory is EARL_RUN_DIR,
otherwise the file's: services of one run share it (model, checkpoints, records). A dtype "auto", and a bound
of contexts that the file leaves open, are taken from that directory's run.json. EARL_BIND is where the
service listens, in place of its section's `bind`, so that one run file does for machines of all kinds.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from earl.config.auto_dtype import auto_keys, resolve_as_before
from earl.config.load import load_run, validation_error
from earl.config.run import RunConfig
from earl.errors import ConfigError


def service_run(file: Path, section: str = "") -> tuple[RunConfig, Path]:
    """The configuration and the run's directory.

    section: of the service, such as "gateway", if it listens. Raises ConfigError and what `load_run` raises.
    """
    config = read_run(file)
    bind = os.environ.get("EARL_BIND", "")
    if bind and section:
        listening = getattr(config, section).model_copy(update={"bind": bind})
        config = config.model_copy(update={section: listening})
    directory = Path(os.environ.get("EARL_RUN_DIR", "") or file.parent)
    launched = directory / "run.json"
    is_open = config.context_bound.source == "unknown"
    if (auto_keys(config) or is_open) and launched.is_file():
        before = read_run(launched)
        if auto_keys(config):
            config = resolve_as_before(config, before)
        if is_open:
            config = _bounded_as(config, before)
    return config, directory


def _bounded_as(config: RunConfig, before: RunConfig) -> RunConfig:
    """The configuration with the bound of contexts that the launch decided."""
    names = ("max_context_tokens", "held_context_tokens", "kv_tokens")
    bounds = {name: getattr(config.rollout, name) or getattr(before.rollout, name) for name in names}
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=bounds)})


def read_run(file: Path) -> RunConfig:
    """A run file by its name's ending. Raises ConfigError and what `load_run` raises."""
    if file.suffix == ".toml":
        return load_run(file)
    try:
        return RunConfig.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"run file {file} cannot be read: {error.strerror}", "give a .toml run file or a run.json"
        ) from None
    except ValidationError as error:
        raise validation_error(error, str(file)) from None
