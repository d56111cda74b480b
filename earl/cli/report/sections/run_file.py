"""The run file as a table: every key with its value and its default."""

from __future__ import annotations

from typing import Any

from earl.config.run import RunConfig
from earl.obs.metrics import flat

# Keys that no page shows: they hold passwords.
SECRET = frozenset({"bus.redis_url"})


def configuration(config: RunConfig) -> dict[str, Any]:
    """Every key of the run's file with its value, its default and whether they differ; nothing secret."""
    given, default = flat(config.model_dump(mode="json")), flat(defaults(config))
    rows = [
        {"key": key, "value": value, "default": default.get(key), "changed": value != default.get(key)}
        for key, value in sorted(given.items())
        if key not in SECRET
    ]
    return {"rows": rows}


def defaults(config: RunConfig) -> dict[str, Any]:
    """The configuration of a run file that has the required keys of this one alone."""
    environment = {"name": config.mixture[0].name}
    table: dict[str, Any] = {"name": config.name, "environment": environment}
    if config.environments:
        table = {"name": config.name, "environments": [{"name": entry.name} for entry in config.mixture]}
    return RunConfig.model_validate(table).model_dump(mode="json")
