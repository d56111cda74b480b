"""The demo's run file with other keys: whole runs that end within a minute."""

from __future__ import annotations

from collections.abc import Sequence

from earl.cli.run.demo import RUN_FILE, example
from earl.config.check import cross_check
from earl.config.load import Override, read_toml, set_override, validate
from earl.config.run import RunConfig


def small_demo(overrides: Sequence[Override]) -> RunConfig:
    """The demo's run file without a placement of its own, and with these keys, of which later ones win.

    Raises ConfigError, and what else a launch would refuse it with.
    """
    file = example(RUN_FILE)
    table = read_toml(file)
    table.pop("stack", None)
    for key, text in overrides:
        set_override(table, key, text)
    config = validate(table, str(file), frozenset(key for key, _ in overrides))
    cross_check(config)
    return config
